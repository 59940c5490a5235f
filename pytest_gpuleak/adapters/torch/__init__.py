"""torch: its tensors, devices, allocators, and what its C++ objects refer to."""
