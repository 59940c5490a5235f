"""Tell who holds the memory when it has run out."""
