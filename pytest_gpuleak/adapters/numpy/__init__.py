"""NumPy: arrays on the heap, mapped files, and views of other frameworks' memory."""
