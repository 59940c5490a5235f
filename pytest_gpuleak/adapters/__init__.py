"""What is foreign: array frameworks, counters of the host and the driver, other processes.

It may import `heap` and `model`.
A new framework or probe is a folder or a file here, and a row in `registry`.
"""
