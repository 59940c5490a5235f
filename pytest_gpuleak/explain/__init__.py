"""Who keeps an object alive: the shortest path to it from a root that a person can edit.

It may import `adapters`, `heap` and `model`. A new name of a reference goes to `edges`, a new end of a path to `roots`.
"""
