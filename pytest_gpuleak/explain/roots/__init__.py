"""The places where a path may end, on which a person can act."""
