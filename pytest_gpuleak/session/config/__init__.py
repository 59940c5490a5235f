"""Read the command line, the ini and the markers: options, kinds of values, settings."""
