"""Who holds the memory when it has run out."""
