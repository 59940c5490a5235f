"""Run a test again, for a limited time."""
