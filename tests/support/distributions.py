"""What is installed, read once: a run of pytest reads all of it, for its plugins and for the assertions that it rewrites."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_distributions = importlib.metadata.distributions
_known: dict[str, list[importlib.metadata.Distribution]] = {}


class Remembered(importlib.metadata.Distribution):
    """A distribution that is read the first time that it is asked."""

    def __init__(self, found: importlib.metadata.Distribution) -> None:
        self.read_text = functools.cache(found.read_text)
        self.locate_file = found.locate_file

    read_text: Any = None
    locate_file: Any = None
    """Set for each: both are abstract."""

    metadata: Any = functools.cached_property(lambda self: super().metadata)
    entry_points: Any = functools.cached_property(lambda self: super().entry_points)
    files: Any = functools.cached_property(lambda self: super().files)


def remember() -> None:
    """Read what lies in the folders of `sys.path` once in this process; what lies in a test's own is read each time."""
    for folder in filter(None, sys.path):
        _known.setdefault(folder, [Remembered(found) for found in _distributions(path=[folder])])
    importlib.metadata.distributions = distributions


def distributions(**context: Any) -> Iterable[importlib.metadata.Distribution]:
    """Stand for `importlib.metadata.distributions`."""
    if context:
        return _distributions(**context)
    return [
        found
        for folder in sys.path
        for found in (_known[folder] if folder in _known else _distributions(path=[folder]))
    ]
