"""Tell the user's own source files from installed ones."""

from __future__ import annotations

import functools
import os

PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120 - paths are compared as text, a thousand times a re-run


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    import sysconfig

    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib") if name in paths}
    return tuple(os.path.join(folder, "") for folder in folders)  # noqa: PTH118


def is_user_file(path: str, root: str) -> bool:
    """Tell whether a source file is the user's own: neither installed, nor Python's, nor the plugin's.

    A package under test below the rootdir is the user's, even where the rootdir itself lies below an installed folder.
    """
    if path.startswith(("<", PACKAGE)):
        return path.startswith(("<ipython-input", "<stdin>"))
    below = path.removeprefix(os.path.join(root, "")) if path.startswith(os.path.join(root, "")) else None  # noqa: PTH118
    searched = path if below is None else os.sep + below
    if f"{os.sep}site-packages{os.sep}" in searched or f"{os.sep}dist-packages{os.sep}" in searched:
        return False
    return below is not None or not path.startswith(_installed_folders())


def shorten(path: str, root: str) -> str:
    """Make a path relative to a folder where it lies below it."""
    return path.removeprefix(root + os.sep)
