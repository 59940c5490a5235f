"""Find, in the source alone, the line that registers a function or adds to a container; of several lines none."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.definitions import SETTING, read_source
from pytest_gpuleak.heap.safe_access import MAX_NAME

if TYPE_CHECKING:
    from collections.abc import Container

_MOST_LINES: Final = 50
"""Lines that are told apart. A source with more of them is not one that a line can be told of."""

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

_HOOKS: Final = r"register\w*hook\w*"

_ADDING: Final = (
    r"\s*(?:\.\s*(?:append|appendleft|add|insert|extend|extendleft|update|setdefault|put|put_nowait|push)\s*\("
    r"|\[[^\]\n]{0,200}\]\s*[-+*/|&]?=(?!=)|\+=)"
)

_GIVING: Final = r"\s*\.\s*(?:add|append|callback|enter|extend|insert|put|push|register|send|set|submit|update)\w*\s*\("
"""A call by which a library's object is given something to keep: ``queue.put(``, ``stack.enter_context(``."""

_BY_KEY: Final = r"(?:\[\s*['\"]{name}['\"]\s*\]|\.\s*setdefault\(\s*['\"]{name}['\"][^)\n]{{0,200}}\)?\s*\))"

_ITEM: Final = (
    r"\s{0,200}(?:\[[^\]\n]{0,200}\]"
    r"|\.\s*(?:setdefault|get)\s*\([^()\n]{0,200}(?:\([^()\n]{0,200}\)[^()\n]{0,200}){0,4}\))"
)
"""An item of a container, by whatever key. What may be of any length is bounded: a file may be one long line."""

_ALIAS: Final = r"^(?P<indent>[ \t]*)(?P<alias>(?:self\.)?[^\W\d]\w*)(?:[ \t]*:[^=\n]{{1,200}})?[ \t]*=[ \t]*{container}{part}[ \t]*(?:#.*)?$"


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


def line_of_adding(file: str, container: str, ran: Container[int] = ()) -> int | None:
    """Return the only line, or the only one that `ran`, that adds to ``HISTORY``, ``.history`` or ``['history']``."""
    name = container.strip(".[]'")
    if not _is_name(name):
        return None
    ways = [rf"(?<!\w)heappush\(\s*(?:\w+\.)*{name}(?!\w)"]
    if container[0] != "[":
        ways.append(_written(container) + _ADDING)
    if container[0] in ".[":
        ways.append(_BY_KEY.format(name=name) + _ADDING)
    return _only_line(file, "|".join(ways), ran)


def line_of_giving(file: str, owner: str, ran: Container[int] = ()) -> int | None:
    """Return the only line, or the only one that `ran`, that gives a library's object something to keep."""
    written = _written(owner)
    return _only_line(file, written + _GIVING, ran) if written else None


def line_of_setting(file: str, attribute: str) -> int | None:
    """Return the only line that sets an attribute of any object to a value other than None."""
    return _only_line(file, f"(?m){SETTING.format(name=attribute)}") if _is_name(attribute) else None


def _written(container: str) -> str:
    """Return a regular expression for an attribute or variable; empty for a key and for what is no name."""
    name = container.strip(".[]'")
    if not _is_name(name) or container[0] == "[":
        return ""
    return rf"(?<=\.){name}" if container[0] == "." else rf"(?<!\w){name}"


def line_of_adding_to_item(file: str, container: str) -> int | None:
    """Return the only line that adds to an item of a container: ``HISTORY[run].append(step)``, or by another name."""
    written = _written(container)
    direct = _only_line(file, written + _ITEM + _ADDING) if written else None
    return direct or line_of_adding_by_alias(file, container, _ITEM)


def line_of_adding_by_alias(file: str, container: str, part: str = "") -> int | None:
    """Return the only line that adds to a container, or to a `part` of it, by a variable or ``self.name``."""
    if not _written(container):
        return None
    name = container.strip(".[]'")
    written = rf"(?:\w+\.){'+' if container[0] == '.' else '*'}{name}"
    lines: set[int] = set()
    source = read_source(file).split("\n")
    giving = re.compile(_ALIAS.format(container=written, part=part))
    for start, text in enumerate(source):
        # Searched for in the whole text, it takes 8 ms a container: each line is tried at each of its blanks.
        found = giving.match(text) if name in text else None
        if found is None:
            continue
        of_self, _, alias = found["alias"].rpartition(".")
        adding = re.compile((rf"(?<=\.){alias}" if of_self else rf"(?<![\w.]){alias}") + _ADDING)
        first = 0 if of_self else start + 1
        for number, line in enumerate(source[first:], first + 1):
            if line.strip() and not of_self and not line.startswith(found["indent"]):
                break
            if adding.search(line.partition("#")[0]):
                lines.add(number)
        if len(lines) > 1:
            return None
    return lines.pop() if lines else None


def _line_of_call(file: str, call: str, name: str) -> int | None:
    if not _is_name(name):
        return None
    return _only_line(file, rf"(?<!\w)(?<!def )(?:{call})\s*\((?=[^)]{{0,200}}(?<!\w){re.escape(name)}(?!\w))")


def _is_name(name: str) -> bool:
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def _only_line(file: str, pattern: str, ran: Container[int] = ()) -> int | None:
    try:
        status = Path(file).stat()
    except (OSError, ValueError):
        return None
    lines = _lines_of(file, (status.st_mtime_ns, status.st_size), pattern)
    if len(lines) > 1:
        lines = tuple(line for line in lines if line in ran)
    return lines[0] if len(lines) == 1 else None


@functools.lru_cache(maxsize=512)
def _lines_of(file: str, _: tuple[int, int], pattern: str) -> tuple[int, ...]:
    """Return the lines of the matches outside comments; the second argument tells versions of the file apart."""
    source = read_source(file)
    lines: dict[int, None] = {}
    for found in re.finditer(pattern, source):
        begin = source.rfind("\n", 0, found.start()) + 1
        if "#" not in source[begin : found.start()]:
            lines[source.count("\n", 0, found.start()) + 1] = None
        if len(lines) >= _MOST_LINES:
            break
    return tuple(lines)
