"""Giving memory that is on its way out the chance to go."""
