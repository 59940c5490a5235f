"""Adapter to MLX: its arrays, evaluated or not, and the counters of its allocator."""
