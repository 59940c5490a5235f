"""The command `gpuleak`, which reads files and runs no test. A new subcommand is a function in `commands`.

It may import `baseline`, `reports` and `model`.
"""

from pytest_gpuleak.cli.commands import main

__all__ = ["main"]
