"""Hide a re-run from what outlives it."""
