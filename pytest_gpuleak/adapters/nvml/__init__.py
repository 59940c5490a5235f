"""Read from the NVIDIA driver how much device memory each process holds."""
