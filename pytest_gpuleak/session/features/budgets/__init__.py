"""Limit the peak GPU memory that a test may add: `max_gpu_mb`."""
