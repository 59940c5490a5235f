"""Adapters to foreign code: array frameworks, counters of the host and the driver, other processes.

They may import `heap` and `model`. Add a framework or probe as a folder or file here, and a row in `registry`.
"""
