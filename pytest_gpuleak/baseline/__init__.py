"""Known leaks: the file that lists them, what it matches (rules: `matching`), and its update."""
