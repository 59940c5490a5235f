"""Detect what a run has left behind: arrays, growth of counters, processes."""
