"""The stages of the check that may fail, each with what its failure means. See `session.faults`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from types import TracebackType


class Stage(NamedTuple):
    """One step of the check that may fail.

    Attributes:
        name: the step, as a subject: ``the search for holders``.
        then: what a failure means for the verdicts.
        blinds: whether what a test left may be missed: a test without findings is then unchecked, not clean.
        of_session: whether a failure is the session's and no test's.
    """

    name: str
    then: str
    blinds: bool = False
    of_session: bool = False


class Guard(Protocol):
    """The context in which a stage runs: an error ends the stage, is noted and goes no further.

    Attributes:
        fault: what went wrong, as text; empty: nothing.
    """

    fault: str

    def __enter__(self) -> Guard: ...  # noqa: PYI034 - `Self` comes with Python 3.11

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool: ...


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
GRAPHS = Stage("the walk over autograd graphs", "findings do not say what graphs retain")
VERDICT = Stage("the comparison of the runs", "what was left is judged unconfirmed, by its size")
DESCRIBE = Stage("the description of a finding", "the finding is reported without places and hint")
ACCOUNT = Stage("the account of what was left", "an out-of-memory report may not name all")
BASELINE = Stage("the comparison with the baseline", "findings count as new")
FIXTURES = Stage("the check of a fixture", "what the fixture left is not judged", of_session=True)
PROCESSES = Stage("the check of child processes", "processes that were left running are not judged", blinds=True)
