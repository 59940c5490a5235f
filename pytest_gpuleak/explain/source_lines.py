"""Find, in the source alone, the line that registers a function or that puts something into a container.

No reference leads back to such a line, but it is what a reader edits. A line is told only where the source has one such
line: of several it is not known which.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Final

from pytest_gpuleak.explain.definitions import read_source
from pytest_gpuleak.heap.safe_access import MAX_NAME

_NAME: Final = re.compile(r"[^\W\d]\w*")

_CALLBACK: Final = r"(?:functools\.partial of )*(?P<name>[\w.<>]+)(?: of .*)?"
_REGISTERED: Final = (
    (re.compile(f"atexit callback {_CALLBACK}"), r"register"),
    (re.compile(f"weakref\\.finalize callback {_CALLBACK}", re.DOTALL), r"finalize"),
    (re.compile(r"signal\.getsignal\(signal\.(?P<name>SIG\w+)\)"), r"signal"),
    (re.compile(r"thread .+ in (?P<name>[\w.<>]+)(?:: local .*)?", re.DOTALL), r"Thread|Timer|start_new_thread"),
)
"""Roots that a call makes, with the name among its arguments, and the names of such calls."""

_VARIABLE: Final = re.compile(r"(?:.*\.)?(?P<name>\w+)\.get\(\)", re.DOTALL)
"""Root of a context variable's value."""

_HOOKS: Final = r"register\w*hook\w*"
"""Calls that register hooks, in torch's names."""

_ADDING: Final = (
    r"\s*(?:\.\s*(?:append|appendleft|add|insert|extend|extendleft|update|setdefault|put|put_nowait|push)\s*\("
    r"|\[[^\]\n]*\]\s*=(?!=)|\+=)"
)
"""What follows a container to which something is added."""

_BY_KEY: Final = r"(?:\[\s*['\"]{name}['\"]\s*\]|\.\s*setdefault\(\s*['\"]{name}['\"][^)\n]*\)?\s*\))"
"""A container under a key."""


def line_of_registration(file: str, root: str) -> int | None:
    """Return the line (from 1) of the only call in `file` that makes `root` keep what it keeps."""
    variable = _VARIABLE.fullmatch(root)
    if variable is not None:
        return _only_line(file, rf"(?<!\w){variable['name']}\s*\.\s*set\s*\(")
    for text, call in _REGISTERED:
        found = text.fullmatch(root)
        if found is not None:
            return _line_of_call(file, call, found["name"].rpartition(".")[2])
    return None


def line_of_hook(file: str, name: str) -> int | None:
    """Return the line of the only call that registers the function `name` as a hook."""
    return _line_of_call(file, _HOOKS, name)


def line_of_adding(file: str, container: str) -> int | None:
    """Return the only line that adds something to a container, written as ``HISTORY``, ``.history`` or ``['history']``."""
    name = container.strip(".[]'")
    if not _is_name(name):
        return None
    begin = {".": rf"(?<=\.){name}", "[": ""}.get(container[0], rf"(?<!\w){name}")
    ways = [begin + _ADDING] if begin else []
    if container[0] in ".[":
        ways.append(_BY_KEY.format(name=name) + _ADDING)
    ways.append(rf"(?<!\w)heappush\(\s*(?:\w+\.)*{name}(?!\w)")
    return _only_line(file, "|".join(ways))


def _line_of_call(file: str, call: str, name: str) -> int | None:
    if not _is_name(name):
        return None
    return _only_line(file, rf"(?<!\w)(?<!def )(?:{call})\s*\((?=[^)]{{0,200}}(?<!\w){re.escape(name)}(?!\w))")


def _is_name(name: str) -> bool:
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def _only_line(file: str, pattern: str) -> int | None:
    try:
        status = Path(file).stat()
    except (OSError, ValueError):
        return None
    return _only_line_of(file, (status.st_mtime_ns, status.st_size), pattern)


@functools.lru_cache(maxsize=512)
def _only_line_of(file: str, _: tuple[int, int], pattern: str) -> int | None:
    """Return the line of the only match outside comments; the second argument tells versions of the file apart."""
    source = read_source(file)
    lines: set[int] = set()
    for found in re.finditer(pattern, source):
        begin = source.rfind("\n", 0, found.start()) + 1
        if "#" not in source[begin : found.start()]:
            lines.add(source.count("\n", 0, found.start()) + 1)
        if len(lines) > 1:
            return None
    return lines.pop() if lines else None
