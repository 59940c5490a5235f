"""Lines of source files, and which files are the user's own and which are installed."""

from __future__ import annotations

import dataclasses
import functools
import os

PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120 - paths are compared as text, a thousand times a re-run

_PACKAGE_FOLDERS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@dataclasses.dataclass(frozen=True)
class Origin:
    """The user's line that created an array's storage; `file` is relative to the rootdir where it lies below it.

    `code` is the line, stripped, cut and free of control characters; empty where it cannot be read.
    """

    file: str
    line: int
    function: str
    code: str


@dataclasses.dataclass(frozen=True)
class Edit:
    """The line to cut: it sets, adds or registers the reference that keeps the memory. `code` is as an origin's."""

    file: str
    line: int | None
    code: str


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    import sysconfig

    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib") if name in paths}
    return tuple(os.path.join(folder, "") for folder in folders)  # noqa: PTH118


def is_user_file(path: str, root: str) -> bool:
    """Tell whether a file is the user's: below the rootdir and in no package folder, or nowhere that is installed."""
    if path.startswith(("<", PACKAGE)):
        return path.startswith(("<ipython-input", "<stdin>"))
    folder = os.path.join(root, "")  # noqa: PTH118
    if path.startswith(folder):
        return not _is_in_packages(os.sep + path.removeprefix(folder))
    return not is_installed(path)


def is_installed(path: str) -> bool:
    """Tell whether a source file lies in an installed package or in Python's own library."""
    return _is_in_packages(path) or path.startswith(_installed_folders())


def _is_in_packages(path: str) -> bool:
    return any(folder in path for folder in _PACKAGE_FOLDERS)


def below_packages(path: str) -> str:
    """Return an installed package's file as a path that begins with the package; any other path as it is."""
    return next((path.rpartition(folder)[2] for folder in _PACKAGE_FOLDERS if folder in path), path)


def shorten(path: str, root: str) -> str:
    """Make a path relative to a folder where it lies below it."""
    return path.removeprefix(root + os.sep)
