"""Known leaks: the file that lists them, what it matches, and its update.

It may import `model` alone. A new rule by which an entry lists a finding goes to `matching`.
"""
