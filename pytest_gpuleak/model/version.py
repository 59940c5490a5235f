"""The version: reports say what wrote them, and the build reads it from here."""

__version__ = "0.1.0"
