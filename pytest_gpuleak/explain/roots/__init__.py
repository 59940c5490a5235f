"""Where a path may end: the places that a person can act on."""
