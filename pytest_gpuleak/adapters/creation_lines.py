"""Find the user's line that created a storage."""

from __future__ import annotations

import functools
import linecache
import sys
from collections.abc import Callable, Collection, Iterator, Mapping

from pytest_gpuleak.model.source_files import Origin

MAX_CODE_LENGTH = 200
"""Characters of a source line that are kept."""


class OriginTable(Mapping[int, Origin]):
    """The creating line by storage key. Keeps file names and line numbers, no frames."""

    def __init__(self, is_user_file: Callable[[str], bool]) -> None:
        self._is_user_file = functools.cache(is_user_file)
        self._places: dict[int, tuple[str, int, str]] = {}
        self.keyed: Collection[int] = self._places
        """The storages that have a line."""
        self._origin_at = functools.cache(origin_at)
        self._noted: dict[int, int] = {}
        self._notes = 0

    def note(self, key: int) -> None:
        """Note the current line for a storage. A later storage at the same address replaces an earlier."""
        self._put(key, self._place())

    def note_if_unknown(self, key: int) -> None:
        """Note the current line unless the storage has a line: it was created now or earlier."""
        if key not in self._places:
            self.note(key)

    def note_as(self, key: int, other: int) -> None:
        """Give the storage the line last noted for `other`, unless the storage was noted since."""
        if self._noted.get(key, 0) < self._noted.get(other, 0):
            self._put(key, self._places.get(other))

    def forget(self, key: int) -> None:
        """Forget a storage that is gone."""
        self._places.pop(key, None)
        self._noted.pop(key, None)

    def _put(self, key: int, place: tuple[str, int, str] | None) -> None:
        self._notes += 1
        self._noted[key] = self._notes
        if place is None:
            self._places.pop(key, None)
        else:
            self._places[key] = place

    def _place(self) -> tuple[str, int, str] | None:
        frame = sys._getframe(2)
        try:
            while frame is not None:
                code = frame.f_code
                if self._is_user_file(code.co_filename):
                    return code.co_filename, frame.f_lineno, code.co_name
                frame = frame.f_back  # type: ignore[assignment]
            return None
        finally:
            del frame  # a frame in a local of its own callee is a cycle

    def __getitem__(self, key: int) -> Origin:
        return self._origin_at(*self._places[key])

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def origin_at(file: str, line: int, function: str) -> Origin:
    """Return a line with its code."""
    return Origin(file, line, printable(function), code_at(file, line))


def code_at(file: str, line: int) -> str:
    """Return a line (from 1) of a source file: stripped, printable and cut; empty where it cannot be read."""
    return printable(linecache.getline(file, line).strip())[:MAX_CODE_LENGTH]


def printable(text: str) -> str:
    """Replace control and other unprintable characters by ``?``, so that the text cannot drive a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)
