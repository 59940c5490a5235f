"""Read the interpreter's heap without running user code, with the standard library alone.

What reads objects of any type goes here; what knows a library's types goes to `adapters`.
"""
