"""Known leaks: the file that lists them, what it matches (rules: `matching`), and its update.

It may import `model` alone.
"""
