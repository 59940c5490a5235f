"""Reports of a `model.records.RunReport`: a new format is a file here and a row in `formats`.

They import `model` alone, and a format no other format's files.
"""
