"""All codes, read from the topics' files beside this one, and each code's page as Markdown."""

from __future__ import annotations

import dataclasses
import textwrap
from importlib import resources
from typing import Final

from pytest_gpuleak.model.text import parse_toml


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
        known_problems: when the code is wrong, or says too little.
    """

    id: str
    title: str
    pattern: str
    example: str
    why: str
    fix: str
    known_problems: str
    seen: tuple[Sighting, ...]

    @property
    def leaks(self) -> str:
        """Return the test file that leaks."""
        return self._without("+")

    @property
    def fixed(self) -> str:
        """Return the test file after the edit."""
        return self._without("-")

    def _without(self, mark: str) -> str:
        return "".join(f"{line[2:]}\n" for line in self.example.splitlines() if not line.startswith(mark))


def _read(topic: str) -> tuple[Code, ...]:
    file = resources.files("pytest_gpuleak.model.codes") / f"{topic}.toml"
    rows = parse_toml(file.read_text(encoding="utf-8"))
    return tuple(
        Code(id=code, **{**row, "seen": tuple(Sighting(**one) for one in row.get("seen", ()))})
        for code, row in rows.items()
    )


TOPICS: Final = {
    "Kinds of findings": _read("kinds"),
    "Caches": _read("caches"),
    "What torch keeps": _read("tensors"),
    "Stored functions": _read("callables"),
    "What still runs or waits": _read("running"),
    "What the standard library keeps": _read("recorders"),
    "What pytest keeps": _read("pytest_objects"),
    "Places that outlive a test": _read("places"),
    "What other frameworks keep": _read("frameworks"),
}
CODES: Final = {code.id: code for topic in TOPICS.values() for code in topic}

_WIDTH = 80


def title_of(code: str) -> str:
    """Return a code with its title; the code alone where it is one of a later release."""
    return f"{code} {CODES[code].title}" if code in CODES else code


def page(code: Code) -> str:
    """Write the page of a code."""
    parts = [
        f"# {code.id} {code.title}",
        _prose(code.pattern),
        "## What leaks",
        f"```python\n{code.leaks}```",
        "## Why",
        _prose(code.why),
        "## The fix",
        _prose(code.fix),
        f"```python\n{code.fixed}```",
        "## Known problems",
        _prose(code.known_problems),
    ]
    if code.seen:
        sightings = [f"- {_prose(f'{one.release}: {one.text}', indent='  ')}\n  <{one.url}>" for one in code.seen]
        parts += ["## Where it was found", "\n".join(sightings)]
    return "\n\n".join(parts) + "\n"


def _prose(text: str, indent: str = "") -> str:
    return textwrap.fill(
        " ".join(text.split()), _WIDTH - len(indent), break_on_hyphens=False, break_long_words=False
    ).replace("\n", "\n" + indent)
