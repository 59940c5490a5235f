"""The host's memory: a probe for each way to count it."""
