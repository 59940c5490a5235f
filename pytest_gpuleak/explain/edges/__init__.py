"""How one writes, in Python, the way from an object to one that it refers to."""
