"""Restore the counters behind names such as ``Thread-4`` and ``Process-1``, which later tests print and compare.

The counter of ``Task-1`` is not among them: it is a variable of CPython's ``_asyncio`` that no function sets.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from itertools import count
from types import MethodWrapperType
from typing import Any, Final

from pytest_gpuleak.session.rerun.unseen.restoring import Restore, keep_each, nothing, replace

COUNTERS: Final = (
    ("threading", None, "_counter"),
    ("multiprocessing.process", None, "_process_counter"),
    ("concurrent.futures.thread", "ThreadPoolExecutor", "_counter"),
)
"""Module, class if any, and name of an `itertools.count` or its ``__next__``."""

_PLAIN: Final = re.compile(r"count\((\d+)\)")


def keep_name_counters() -> Restore:
    """Have a re-run count by copies of the counters that are loaded."""
    return keep_each(partial(_copy, *row) for row in COUNTERS)


def _copy(module: str, class_name: str | None, name: str) -> Restore:
    loaded: Any = sys.modules.get(module)
    owner = loaded if class_name is None else getattr(loaded, class_name)
    found: Any = getattr(owner, name)
    counter = found.__self__ if type(found) is MethodWrapperType else found
    # Its `repr` alone tells the next number: it can no longer be copied from Python 3.14 on.
    plain = _PLAIN.fullmatch(repr(counter)) if type(counter) is count else None
    if plain is None:
        return nothing  # a test has replaced it
    copied = count(int(plain.group(1)))
    return replace(owner, name, copied if found is counter else copied.__next__)
