"""Who keeps an object alive: the shortest path to it from a root that a person can edit.

`search.explain` walks the references backwards from the leaked objects; `roots` says where a walk may end; `edges`
and `paths` write what it found as Python text; `native` is the seam for what the collector cannot see.
"""
