"""What a run notes of its tests, in this process and for xdist's controller."""
