"""The table of codes: each kind of finding, and each pattern that a hint recognises, with its page.

A topic is a file; `table` joins them. `gpuleak explain CODE` prints a page, `scripts/write_reference.py` writes them to
`docs/findings`.
"""
