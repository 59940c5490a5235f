"""Where a root is defined: file and line, found without importing or running anything."""

from __future__ import annotations

import functools
import re
import tokenize
import types
from typing import Any, Final

from pytest_gpuleak.holders import raw

MAX_SOURCE: Final = 4 << 20
"""Characters of a source file that are searched for a definition."""


class Places:
    """Looks definitions up; reads each source file once. Keep it no longer than one search."""

    def __init__(self) -> None:
        self._sources: dict[str, str] = {}
        self._lines: dict[tuple[str, str], int | None] = {}

    def of_name(self, module: str | None, name: str | None) -> tuple[str | None, int | None]:
        """File of a module, and the line on which the dotted `name` is first assigned or defined in it, from 1."""
        namespace = None if module is None else raw.module_dict(raw.loaded_module(module))
        file = None if namespace is None else raw.plain_text(namespace.get("__file__"))
        if file is None or name is None or not file.endswith(".py"):
            return file, None
        if (file, name) not in self._lines:
            self._lines[file, name] = self._line(file, name.split("."))
        return file, self._lines[file, name]

    def of_function(self, function: object) -> tuple[str | None, int | None]:
        """File and line of a function's code, of a method's, of what a partial or an `lru_cache` wraps; else two Nones."""
        while type(function) is types.MethodType or type(function) is functools.partial:
            function = function.__func__ if type(function) is types.MethodType else function.func
        if type(function) is raw.LRU_WRAPPER:
            namespace = raw.instance_dict(function)
            function = None if namespace is None else namespace.get("__wrapped__")
        code: Any = function.__code__ if type(function) is types.FunctionType else function
        if type(code) is not types.CodeType:
            return None, None
        return str(code.co_filename), int(code.co_firstlineno)

    def _line(self, file: str, names: list[str]) -> int | None:
        """The line of the last of `names`, each looked for after the class before it."""
        source = self._source(file)
        position = 0
        line: int | None = None
        for depth, name in enumerate(names):
            indent = r"[ \t]+" if depth else ""
            word = re.escape(name)
            assigned = rf"^{indent}{word}[ \t]*(?::[^=\n]+)?=(?!=)"
            defined = rf"^{indent}(?:class|def|async[ \t]+def)[ \t]+{word}\b"
            found = re.compile(f"(?:{assigned})|(?:{defined})", re.MULTILINE).search(source, position)
            if found is None:
                return line
            position = found.start()
            line = source.count("\n", 0, position) + 1
            position = found.end()
        return line

    def _source(self, file: str) -> str:
        """The text of a file, empty where it cannot be read."""
        if file not in self._sources:
            try:
                with tokenize.open(file) as stream:
                    self._sources[file] = stream.read(MAX_SOURCE)
            except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
                self._sources[file] = ""
        return self._sources[file]
