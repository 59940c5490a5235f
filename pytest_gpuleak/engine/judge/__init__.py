"""From evidence to findings. Pure."""
