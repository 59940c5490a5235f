"""Implement the features of a run that are switched on: a file each, or a folder."""
