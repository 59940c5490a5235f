"""`--gpu-leak-wait`: after a test, wait for the memory of this run's processes that is leaving a device, and tell what stays."""
