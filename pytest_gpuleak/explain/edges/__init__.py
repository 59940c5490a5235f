"""How Python writes the reference from one object to another."""
