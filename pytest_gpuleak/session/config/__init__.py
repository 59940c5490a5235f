"""What the command line, the ini and the markers say: options, kinds of values, settings."""
