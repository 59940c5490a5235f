"""The NVIDIA driver: what processes hold on its devices."""
