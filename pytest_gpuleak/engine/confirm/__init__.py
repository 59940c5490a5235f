"""Collect the evidence on one suspect: what each of its runs has left."""
