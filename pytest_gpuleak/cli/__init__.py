"""The command `gpuleak`: reports shown, compared, merged, converted, and judged for CI.

It may import `baseline`, `reports` and `model`: it reads files and runs no test.
A new subcommand is a function in `commands`, with a file of its own where it is more than a few lines.
"""

from pytest_gpuleak.cli.commands import main

__all__ = ["main"]
