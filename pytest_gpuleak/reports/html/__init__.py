"""The HTML report: one file for a browser."""
