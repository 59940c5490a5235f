"""Ways to leak that are told from the texts of a path alone: a pattern for the root, or for one reference."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.hints.trail import NAMED, cut

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pytest_gpuleak.explain.hints.trail import Trail

GLOBAL: Final = ("module", "class", "cache")
"""Kinds of roots that a program has, beside pytest's."""

_ANY: Final = r"(?s:.*)"


@dataclass(frozen=True, eq=False)
class Pattern:
    """An inspector for the first reference that fits, or for the root alone where no reference is described.

    `hint` is the text, with the patterns' groups, and `owner` and `container` of the reference (see `Trail`). `root` is
    a regular expression for the root's text, as the next three are for texts at the reference: `after` is the type that
    the next reference leads from. `kinds` of roots count (empty: all), if `holds` is true of path and position.
    """

    hint: str
    root: str = _ANY
    edge: str = _ANY
    type: str = _ANY
    after: str = _ANY
    kinds: Collection[str] = NAMED
    holds: Callable[[Trail, int], bool] = lambda *_: True

    def __call__(self, trail: Trail) -> str | None:
        """Return the hint, or None for any other finding."""
        root = re.fullmatch(self.root, trail.root)
        if root is None or (self.kinds and trail.kind not in self.kinds):
            return None
        patterns = self.edge, self.type, self.after
        for index in range(1 if patterns == (_ANY,) * 3 else len(trail.steps)):
            texts = trail.edge(index), trail.type(index), trail.type(index + 1)
            found = [root, *map(re.fullmatch, patterns, texts)]
            if None not in found:
                if not self.holds(trail, index):
                    return None
                groups = {name: cut(text) for match in found if match for name, text in match.groupdict().items()}
                return self.hint.format(owner=trail.owner(index), container=trail.container_of(index), **groups)
        return None
