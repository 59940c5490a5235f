"""Cost as a number of calls, which is the same on each machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Calls:
    """Count how many functions, of Python and of C, are called within a `with` block: `count`."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Calls:  # noqa: PYI034 - `Self` comes with Python 3.11
        sys.setprofile(self._add)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _add(self, _frame: Any, event: str, _argument: Any) -> None:
        self.count += event in ("call", "c_call")


def count_calls(function: Callable[[], object]) -> int:
    """Return how many functions, of Python and of C, a call of `function` calls."""
    with Calls() as calls:
        function()
    return calls.count
