"""Run pytest inside the interpreter that `start.mjs` has started, and return its exit status."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path


def unpack_library() -> None:
    """Put the standard library where it is on other systems: from its archive, each import compiles it again."""
    folder = Path(sys.prefix, "lib", "python{}.{}".format(*sys.version_info))
    (place,) = [index for index, path in enumerate(sys.path) if path.endswith(".zip")]
    with zipfile.ZipFile(sys.path[place]) as archive:
        archive.extractall(folder)
        for name in archive.namelist():
            os.utime(folder / name, (0, 0))  # the same each time: bytecode is kept for a file by its time
    sys.path[place] = str(folder)


def keep_bytecode() -> None:
    """Keep compiled files in the mounted cache: the runs inside the tests import the package hundreds of times."""
    sys.dont_write_bytecode = False
    sys.pycache_prefix = "/cache"
    Path("/cache/tmp").touch()  # no folder, so none for what tests write below /tmp: that changes within a second


def main(arguments: list[str]) -> int:
    """Run the tests of the repository that is mounted, with the packages of the mounted site."""
    keep_bytecode()
    unpack_library()
    sys.path[:0] = ["/repository", "/repository/scripts/wasm/packages", "/lib/site-packages"]
    os.chdir("/repository")
    os.environ["PYTHONPATH"] = "/repository"
    if Path("/corpus").is_dir():
        os.environ["GPULEAK_CORPUS"] = "/corpus"

    import pytest

    return int(pytest.main(arguments))
