"""Reports of a `model.records.RunReport`, made of `model` alone: a new format is a file here and a row in `formats`."""
