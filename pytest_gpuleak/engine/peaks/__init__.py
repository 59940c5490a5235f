"""Compute what blocks of memory would take on a device that is not there."""
