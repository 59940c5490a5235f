"""Counters: what the allocators, the driver and the operating system say is in use."""
