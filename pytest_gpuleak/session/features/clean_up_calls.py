"""Measure what the suite's own clean-up costs: `gc.collect()` and `empty_cache()`, by the fixture or function that calls.

Calls of the plugin's own are not counted, nor what a suspect's re-run calls: either has
frames of this package on its stack.
"""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import suppress
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuleak.heap.frames import COMPREHENSIONS, belongs_to_plugin
from pytest_gpuleak.model.source_files import is_user_file, shorten
from pytest_gpuleak.model.summary import CleanUp
from pytest_gpuleak.session.pytest_internals import fixtures_of_items

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Literal, TypeVar

    import pytest

    _Answer = TypeVar("_Answer")

_FRAMES_ABOVE: Final = 5
"""Frames between `CleanUpCalls._find_caller` and the caller of `gc.collect` or `empty_cache`: `_note`,
`__call__`, a function of `RunTracker.pass_clean_up`, and what stands for the user's function."""

_OF_PYTEST: Final = f"{os.sep}_pytest{os.sep}"


class _Caller(NamedTuple):
    by: str
    file: str
    line: int


class CleanUpCalls:
    """The clean-up calls of one process. Keeps text and numbers alone: no frame, no code, no argument."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._root = str(config.rootpath)
        self._began: float | None = None
        self._sums: dict[tuple[Literal["gc.collect", "empty_cache"], _Caller], tuple[int, float]] = {}

    def begin(self) -> None:
        """Begin to measure the run, of which the calls are a part."""
        self._began = perf_counter()

    def __call__(self, what: Literal["gc.collect", "empty_cache"], call: Callable[[], _Answer]) -> _Answer:
        """Return what a user's call returns, and count its seconds for its caller. Its errors pass."""
        __tracebackhide__ = True  # a failure's text shows only the user's frames, as without the plugin
        began = perf_counter()
        try:
            return call()
        finally:
            spent_s = perf_counter() - began
            with suppress(Exception):  # a figure for a reader: the user's call has done what it is for
                self._note(what, spent_s)

    def sums(self) -> tuple[float, list[CleanUp]]:
        """Return the seconds of the run so far, and the calls in it. A process that runs no test has neither."""
        run_s = 0.0 if self._began is None else perf_counter() - self._began
        return run_s, [
            CleanUp(what, *caller, count, seconds) for (what, caller), (count, seconds) in self._sums.items()
        ]

    def _note(self, what: Literal["gc.collect", "empty_cache"], spent_s: float) -> None:
        caller = self._find_caller()
        if caller is not None:
            count, seconds = self._sums.get((what, caller), (0, 0.0))
            self._sums[what, caller] = (count + 1, seconds + spent_s)

    def _find_caller(self) -> _Caller | None:
        """Return the fixture on the stack, else the user's function that is nearest to the call; None: not the suite's.

        A helper that a fixture calls is the fixture's. One that tests call stands for itself: there it is edited.
        """
        frame: FrameType | None = sys._getframe(_FRAMES_ABOVE)
        fixture = function = None
        while frame is not None:
            if belongs_to_plugin(frame.f_globals):
                return None
            code = frame.f_code
            if fixture is None:
                name = self._named_fixtures.get(_key_of(code))
                fixture = None if name is None else self._caller(f"fixture '{name}'", code)
            # A comprehension has a frame before 3.12 (PEP 709), above that of the function which it is a part of.
            if function is None and code.co_name not in COMPREHENSIONS and is_user_file(code.co_filename, self._root):
                name = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has the plain one
                function = self._caller(f"{name}()", code)
            frame = frame.f_back
        return fixture or function

    def _caller(self, by: str, code: CodeType) -> _Caller:
        return _Caller(by, shorten(code.co_filename, self._root), code.co_firstlineno)

    @cached_property
    def _named_fixtures(self) -> dict[tuple[str, int, str], str]:
        """Return the names of the tests' fixtures but pytest's own, by their functions' code."""
        found: dict[tuple[str, int, str], str] = {}
        for fixture in fixtures_of_items(self._config):
            with suppress(Exception):  # a callable object, or a ring of wrappers
                code = inspect.unwrap(fixture.func).__code__
                if _OF_PYTEST not in code.co_filename:
                    found[_key_of(code)] = str(fixture.argname)
        return found


def _key_of(code: CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_name
