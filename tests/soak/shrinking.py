"""Makes a suite that shows a difference smaller: pieces and options are left out while it still shows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tests.soak.suites import JSON_REPORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.soak.suites import Suite


def shrink(suite: Suite, shows: Callable[[Suite], bool], tries: int = 40) -> Suite:
    """Return a suite that shows the difference too, and from which nothing more could be left out in so many tries.

    Args:
        suite: shows it.
        shows: runs a suite and tells whether it does.
        tries: the most suites that are run.
    """
    smaller: Suite | None = suite
    while smaller is not None:
        suite, smaller = smaller, None
        for candidate in _candidates(suite):
            if tries <= 0:
                return suite
            tries -= 1
            if shows(candidate):
                smaller = candidate
                break
    return suite


def _candidates(suite: Suite) -> Iterator[Suite]:
    """Suites with something less, the smallest first."""
    pieces = suite.pieces
    for size in (len(pieces) // 2, len(pieces) // 4, 1):
        if size > 0:
            for start in range(0, len(pieces), size):
                gone = pieces[start : start + size]
                if len(gone) < len(pieces):
                    yield suite.without(gone)
        if size == 1:
            break
    for name in ("options", "plugin_options", "ini"):
        given: tuple[str, ...] = getattr(suite, name)
        for index, option in enumerate(given):
            # The report and the folder for `tmp_path` are what is compared.
            if option.startswith((JSON_REPORT, "--basetemp", "markers")):
                continue
            paired = option in ("-p", "-W") and index + 1 < len(given)
            if index and given[index - 1] in ("-p", "-W"):
                continue
            rest = given[:index] + given[index + 1 + paired :]
            yield dataclasses.replace(suite, **{name: rest})  # type: ignore[arg-type]
