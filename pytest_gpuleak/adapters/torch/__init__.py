"""Adapter to torch: its tensors, devices, allocators, and the references of its C++ objects."""
