"""The file and line that define a root, found without importing or running anything."""

from __future__ import annotations

import functools
import re
import tokenize
import types
from bisect import bisect_left, bisect_right
from typing import Any, Final

from pytest_gpuleak.heap import safe_access

MAX_SOURCE: Final = 4 << 20
"""Largest source file that is searched, in characters."""


MAX_WRAPPED: Final = 8
"""Methods and partials around a function that are unwrapped. Limited, since a partial may wrap itself."""

_DEFINITION: Final = re.compile(
    r"^(?P<indent>[ \t]*)(?:(?:class|def|async[ \t]+def)[ \t]+(?P<defined>\w+)"
    r"|(?P<assigned>\w+(?:[ \t]*,[ \t]*\w+)*)[ \t]*(?::[^=\n]+)?=(?!=))",
    re.MULTILINE,
)


SETTING: Final = r"\.{name}[ \t]*(?::[^=\n]+)?[-+*/|&]?=(?!=)(?![ \t]*None[ \t]*(?:#.*)?$)"
"""What sets an attribute to a value other than None, as a regular expression with a place for the `name`."""


class Places:
    """Look up definitions, reading each source file once. Keep it no longer than one search."""

    def __init__(self) -> None:
        self._files: dict[str, _Definitions] = {}

    def of_name(self, module: str | None, name: str | None) -> tuple[str | None, int | None]:
        """Return a module's file, and the line (from 1) that first assigns or defines the dotted `name` in it."""
        file = None if module is None else safe_access.plain_text(safe_access.loaded(module, "__file__"))
        if file is None or name is None or not file.endswith(".py"):
            return file, None
        if file not in self._files:
            self._files[file] = _Definitions(read_source(file))
        return file, self._files[file].line_of(name) if len(name) <= safe_access.MAX_NAME else None

    def of_attribute(self, module: str, class_name: str, attribute: str) -> tuple[str | None, int | None]:
        """Return a class's file, and the first line in the class that sets an attribute to a value other than None."""
        file, line = self.of_name(module, class_name)
        if file is None or line is None:
            return None, None
        setting = re.compile(SETTING.format(name=re.escape(attribute)))
        for number, text in enumerate(read_source(file).split("\n")[line - 1 :], line):
            if number > line and text and not (text[0].isspace() or text[0] in "#)]}"):
                break  # the class ends
            if setting.search(text):
                return file, number
        return None, None

    def of_function(self, function: object) -> tuple[str | None, int | None]:
        """Return file and line of the code of a function, or of what a method, partial or `lru_cache` wraps."""
        function, _ = unwrapped(function)
        if type(function) is safe_access.LRU_WRAPPER:
            namespace = safe_access.instance_dict(function)
            function = None if namespace is None else namespace.get("__wrapped__")
        code: Any = function.__code__ if type(function) is types.FunctionType else function
        if type(code) is not types.CodeType:
            return None, None
        return str(code.co_filename), int(code.co_firstlineno)


class _Definitions:
    def __init__(self, source: str) -> None:
        self._places: dict[tuple[bool, str], list[int]] = {}
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", source))]
        for match in _DEFINITION.finditer(source):
            for name in (match["defined"] or match["assigned"]).split(","):
                self._places.setdefault((bool(match["indent"]), name.strip()), []).append(match.start())

    def line_of(self, name: str) -> int | None:
        line: int | None = None
        position = 0
        for depth, part in enumerate(name.split(".")):
            places = self._places.get((depth > 0, part), [])
            index = bisect_left(places, position)
            if index == len(places):
                return line
            line = bisect_right(self._line_starts, places[index])
            position = places[index] + 1
        return line


def unwrapped(function: Any) -> tuple[Any, int]:
    """Return what methods and partials wrap, at most `MAX_WRAPPED` times, and the number of partials."""
    partials = 0
    for _ in range(MAX_WRAPPED):
        if type(function) is types.MethodType:
            function = function.__func__
        elif type(function) is functools.partial:
            function, partials = function.func, partials + 1
        else:
            break
    return function, partials


def read_source(file: str) -> str:
    """Return a source file's text; empty where it cannot be read."""
    try:
        with tokenize.open(file) as stream:
            return stream.read(MAX_SOURCE)
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return ""
