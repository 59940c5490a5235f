"""Adapter to CuPy: its arrays, its memory pools, and what it keeps on the devices between calls."""
