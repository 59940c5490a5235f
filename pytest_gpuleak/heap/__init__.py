"""Read the interpreter's heap without running user code. What knows a library's types goes to `adapters`."""
