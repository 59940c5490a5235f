"""The table of codes: kinds of findings, and patterns that a hint recognises. A topic is a file; `table` joins them."""
