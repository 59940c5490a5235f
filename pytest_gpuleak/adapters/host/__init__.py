"""Probes of the host's memory, a module for each way to count it."""
