"""``python -m pytest_gpuleak``: the command `gpuleak`, where its script is not on the path."""

from __future__ import annotations

from pytest_gpuleak.cli import main

if __name__ == "__main__":
    main(prog_name="gpuleak")
