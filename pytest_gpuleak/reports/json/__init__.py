"""The JSON report: written whole, written while the run goes on, and read back."""
