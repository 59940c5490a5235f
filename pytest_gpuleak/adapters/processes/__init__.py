"""The processes of the operating system that descend from this one."""
