"""Plain lines of text: the end of a run, and the failing test's own report."""
