"""Adapters to foreign code: array frameworks, counters, processes. A new one is a file here and a row in `registry`."""
