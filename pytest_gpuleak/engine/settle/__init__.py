"""Settle: let memory that is about to be freed go."""
