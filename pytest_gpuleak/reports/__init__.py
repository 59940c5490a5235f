"""Reports: each renders a `model.records.RunReport`.

It may import `model` alone, and a format no other format's files. A new format is a file here and a row in `formats`.
"""
