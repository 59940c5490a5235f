"""Explain the peaks of the heaviest tests, and hold peaks to a file: `--gpu-leak-peaks`, `--gpu-leak-peaks-baseline`."""
