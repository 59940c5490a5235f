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

from pytest_gpuleak.session.rerun.unseen.restoring import Restore, keep_each, nothing

COUNTERS: Final = (
    ("threading", None, "_counter"),
    ("multiprocessing.process", None, "_process_counter"),
    ("concurrent.futures.thread", "ThreadPoolExecutor", "_counter"),
)
"""Module, class if any, and name of an `itertools.count` or its ``__next__``."""

_PLAIN: Final = re.compile(r"count\((\d+)\)")


def keep_name_counters() -> Restore:
    """Note the next number of each counter that is loaded."""
    return keep_each(partial(_keep, *row) for row in COUNTERS)


def _keep(module: str, class_name: str | None, name: str) -> Restore:
    owner: Any = sys.modules.get(module)
    if owner is not None and class_name is not None:
        owner = vars(owner).get(class_name)
    found = None if owner is None else vars(owner).get(name)
    noted = _next_number(found)
    if noted is None:
        return nothing

    def restore() -> None:
        if vars(owner).get(name) is found and _next_number(found) != noted:
            counter = count(noted)
            setattr(owner, name, counter if type(found) is count else counter.__next__)

    return restore


def _next_number(counter: Any) -> int | None:
    """Read a counter without counting; None where it is none, or one that tests have replaced."""
    if type(counter) is MethodWrapperType and counter.__name__ == "__next__":
        counter = counter.__self__
    # Its `repr` alone tells: it can no longer be copied from Python 3.14 on.
    plain = _PLAIN.fullmatch(repr(counter)) if type(counter) is count else None
    return None if plain is None else int(plain.group(1))
