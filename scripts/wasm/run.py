"""Run pytest inside the interpreter that `start.mjs` has started, and return its exit status."""

from __future__ import annotations

import os
import sys


def main(arguments: list[str]) -> int:
    """Run the tests of the repository that is mounted, with the packages of the mounted site."""
    sys.pycache_prefix = "/cache"
    sys.path[:0] = ["/repository", "/repository/scripts/wasm/packages", "/lib/site-packages"]
    os.chdir("/repository")
    os.environ["PYTHONPATH"] = "/repository"

    import pytest

    return int(pytest.main(arguments))
