"""Turn evidence into findings. Pure."""
