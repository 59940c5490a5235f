"""Who keeps an object alive: the shortest path to it from a root to edit. `edges` names references, `roots` ends."""
