"""One row of the table of codes."""

from __future__ import annotations

import dataclasses
import textwrap


@dataclasses.dataclass(frozen=True)
class Sighting:
    """A public library that shipped a release (name and version on the index) with the pattern, and its upstream issue."""

    release: str
    url: str
    text: str


@dataclasses.dataclass(frozen=True)
class Code:
    """A code and its page. Prose may be broken anywhere: `page` wraps it.

    Attributes:
        id: ``GL`` and three digits, the first of which is the topic. Never given to another pattern.
        example: a test file that leaks, and the edit (`fix`) that mends it. The edit takes out lines that begin with
            ``-`` and adds those that begin with ``+``; other lines begin with two spaces.
    """

    id: str
    title: str
    pattern: str
    example: str
    why: str
    fix: str
    seen: tuple[Sighting, ...] = ()

    @property
    def leaks(self) -> str:
        """Return the test file that leaks."""
        return self._without("+")

    @property
    def fixed(self) -> str:
        """Return the test file after the edit."""
        return self._without("-")

    def _without(self, mark: str) -> str:
        lines = textwrap.dedent(self.example).strip("\n").splitlines()
        return "".join(f"{line[2:]}\n" for line in lines if not line.startswith(mark))
