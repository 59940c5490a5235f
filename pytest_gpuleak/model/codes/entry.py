"""One row of the table of codes."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Sighting:
    """A public library that shipped a release with the pattern.

    Attributes:
        release: name and version, as the package index has them.
        url: the upstream issue or pull request.
        text: what leaked there, as one sentence.
    """

    release: str
    url: str
    text: str


@dataclasses.dataclass(frozen=True)
class Code:
    """A code and its page. Texts may be indented and broken anywhere: `page` dedents code and wraps prose.

    Attributes:
        id: ``GL`` and three digits, the first of which is the topic. Never given to another pattern.
        title: the pattern in a few words.
        pattern: how it looks in code, as a sentence.
        leaks: a test file that leaks by it.
        why: why that keeps memory.
        fix: the edit that frees it.
        fixed: the same test file after the edit.
        seen: releases of public libraries that had it.
    """

    id: str
    title: str
    pattern: str
    leaks: str
    why: str
    fix: str
    fixed: str
    seen: tuple[Sighting, ...] = ()
