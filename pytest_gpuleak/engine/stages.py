"""Define the stages of the check that may fail, what each failure means, and how it is contained: a framework's, by guards."""

from __future__ import annotations

import inspect
import types
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar

from pytest_gpuleak.adapters.guarded import METHODS, GuardedArrays
from pytest_gpuleak.adapters.protocol import StoppedError
from pytest_gpuleak.engine import limits
from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import CodeType, TracebackType

    from pytest_gpuleak.adapters.protocol import ArrayFramework, Framework


_Answer = TypeVar("_Answer")


class Stage(NamedTuple):
    """One step of the check that may fail: its name as a subject, and `then`, what that means for the verdicts.

    `blinds`: what a test left may be missed, so that a test without findings is unchecked, not clean. `of_session`: a
    failure is the session's and no test's.
    """

    name: str
    then: str
    blinds: bool = False
    of_session: bool = False


class Guard(Protocol):
    """The context in which a stage runs: an error ends the stage, is noted in `fault` and goes no further."""

    fault: str

    def __enter__(self) -> Guard: ...  # noqa: PYI034 - `Self` comes with Python 3.11

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool: ...


class CheckTimeoutError(StoppedError):
    """Raised in a part of the check that takes longer than `limits.CHECK_LIMIT_S`."""

    def __init__(self) -> None:
        self.limit_s = limits.CHECK_LIMIT_S
        super().__init__(f"it took longer than {self.limit_s:g} s and was stopped")


class Safeguards(Protocol):
    """Keep the check from harming the run: note the error of a stage, and bound each wait."""

    def guard(self, stage: Stage, nodeid: str | None = None, code: CodeType | None = None) -> Guard:
        """Return the context that a stage runs in, for a test or fixture (``baseid::name``); None: the checked test.

        `code` is the user code that is called, for an error without a frame of it (a wrong signature).
        """

    def bounded(self, call: Callable[[], _Answer], what: str, advice: str) -> _Answer:
        """Return the result of a call that may wait, as `what`; `advice` is for a hang. Raises CheckTimeoutError."""

    def searching(self, nodeid: str) -> AbstractContextManager[object]:
        """Return the context of a search for holders, which is told to the user if it takes long."""

    def tell(self, line: str) -> None:
        """Add a line on what could not be done to the end of the run, once."""


class _Passing:
    fault = ""

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_error: object) -> Literal[False]:
        return False


class Unguarded:
    """Change nothing outside of a test run: errors reach the caller, and nothing is bounded."""

    def guard(self, stage: Stage, nodeid: str | None = None, code: CodeType | None = None) -> Guard:  # noqa: ARG002
        """Return a context that changes nothing."""
        return _Passing()

    def bounded(self, call: Callable[[], _Answer], what: str, advice: str) -> _Answer:  # noqa: ARG002
        """Call it."""
        return call()

    def searching(self, nodeid: str) -> AbstractContextManager[object]:  # noqa: ARG002
        """Return a context that tells nothing."""
        return nullcontext()

    def tell(self, line: str) -> None:
        """Drop the line."""


SETTLE_HOOK = Stage("the hook pytest_gpuleak_settle", "tests are judged without it")
ARRAYS_HOOK = Stage("the hook pytest_gpuleak_arrays", "what it returns is not watched", of_session=True)
BEGIN = Stage("the check of a test's start", "the test is not checked", blinds=True)
BORDER = Stage("the check of a fixture's setup or teardown", "the test is not checked", blinds=True)
JUDGE = Stage("the check", "the test is not checked", blinds=True)
READ = Stage("the reading of what was left", "the test is not checked", blinds=True)
FIGURES = Stage("the reading of the test's figures", "the report does not have them")
COUNTERS = Stage("the reading of the counters", "memory that is no tensor's is not judged", blinds=True)
CONFIRM = Stage("the re-run", "what was left is judged unconfirmed, by its size")
RECOGNISE = Stage("the look at known culprits", "the heap is searched instead")
EXPLAIN = Stage("the search for holders", "what was left is judged without a holder")
EXPLAIN_LATE = Stage(
    "the search for the holders of findings that waited", "they are reported without a holder", of_session=True
)
CYCLES = Stage("the look at reference cycles", "notes of cycles do not say what they consist of")
GRAPHS = Stage("the walk over autograd graphs", "findings do not say what graphs retain")
VERDICT = Stage("the comparison of the runs", "what was left is judged unconfirmed, by its size")
DESCRIBE = Stage("the description of a finding", "the finding is reported without places and hint")
ACCOUNT = Stage("the account of what was left", "an out-of-memory report may not name all")
BASELINE = Stage("the comparison with the baseline", "findings count as new")
FIXTURES = Stage("the check of a fixture", "what the fixture left is not judged", of_session=True)
PROCESSES = Stage("the check of child processes", "processes that were left running are not judged", blinds=True)
DEVICES = Stage("the wait for devices", "what stays on them is not told", of_session=True)


_MAX_NAME = 60
_OPTIONAL = ("creation_lines", "parts")
_HARMLESS = ("storage", "storage_users", "trace_origins", *_OPTIONAL)
"""Methods that nothing is missed without: the array then counts as its storage's only user, or has no line."""


def guard_framework(framework: Framework, safeguards: Safeguards) -> Framework:
    """Return a framework of a conftest.py behind guards. Raises TypeError if its arrays lack a method."""
    from pytest_gpuleak.adapters.guarded_framework import GuardedFramework  # most runs have none

    name = _name_of(framework)

    def guard(member: str) -> Guard:
        stage = Stage(f"{member}() of the framework {name!r}", "tests are judged without it")
        return safeguards.guard(stage, code=code_of(inspect.getattr_static(framework, member, None)))

    return GuardedFramework(framework, name, guard, lambda arrays: guard_arrays(arrays, safeguards))


def guard_arrays(framework: ArrayFramework, safeguards: Safeguards) -> ArrayFramework:
    """Return a reader of a framework's arrays behind guards; unchanged if it has guards already."""
    if type(framework) is GuardedArrays:
        return framework
    name = _name_of(framework)
    stages = {
        method: Stage(
            f"{method}() of the arrays {name!r}",
            "arrays that it cannot tell of are not judged",
            method not in _HARMLESS,
        )
        for method in (*METHODS, *_OPTIONAL, "hold(...).alive")
    }
    codes = {method: code_of(getattr(framework, method, None)) for method in METHODS}
    return GuardedArrays(framework, name, lambda method: safeguards.guard(stages[method], code=codes.get(method)))


def _name_of(framework: object) -> str:
    given = getattr(framework, "name", None)
    return clean_text(given if type(given) is str else type(framework).__name__, _MAX_NAME)


def code_of(function: object) -> types.CodeType | None:
    """Return the code of a plain function or method, decorated or not; None for any other callable."""
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    return code if type(code) is types.CodeType else None
