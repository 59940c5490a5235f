"""The version, for whatever says what wrote a report."""

__version__ = "0.1.0"
