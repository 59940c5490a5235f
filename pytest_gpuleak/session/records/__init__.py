"""Records of a run's tests, in this process and for xdist's controller."""
