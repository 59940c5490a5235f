"""Hiding a re-run from whatever outlives it."""
