"""Adapter to the operating system's processes that descend from this one."""
