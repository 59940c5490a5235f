"""The interpreter's heap, read without running user code.

It may import the standard library alone. What reads objects of any type goes here; what knows a library's types goes to
`adapters`.
"""
