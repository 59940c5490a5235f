"""The lines of a fixture's arrays are noted in its setup alone, and told where it leaves what it has made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.registry import own_frameworks
from pytest_gpuleak.engine.fixture_check import FixtureCheck
from pytest_gpuleak.engine.run_tracker import RunTracker
from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
from pytest_gpuleak.engine.stages import Unguarded
from pytest_gpuleak.model.outcomes import FixturePlace
from pytest_gpuleak.model.policy import Policy
from pytest_gpuleak.model.source_files import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LINE = Origin("conftest.py", 7, "index", "return Index()")


class Lines:
    """Knows one line for every array. `told` is what it was told to do, `fails` whether it raises then."""

    def __init__(self, *, fails: bool = False) -> None:
        self.told: list[str] = []
        self._fails = fails

    def begin(self) -> None:
        self.told.append("begin")
        if self._fails:
            raise RuntimeError

    def end(self) -> None:
        self.told.append("end")

    def lines(self, arrays: Sequence[object], is_user_file: Callable[[str], bool]) -> dict[int, Origin]:
        del is_user_file
        return dict.fromkeys(map(id, arrays), LINE)


def place(name: str) -> FixturePlace:
    return FixturePlace(name, "module", "test_it.py", None, None)


@pytest.fixture
def tracker() -> Iterator[RunTracker]:
    tracker = RunTracker(own_frameworks(), Unguarded())
    tracker.start(Policy())
    tracker.begin_run()
    yield tracker
    tracker.stop()


def test_the_outermost_setup_is_noted(tracker: RunTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()
    monkeypatch.setattr(tracker.frameworks, "setup_lines", lambda: [lines])
    outer: Any = 1
    inner: Any = 2
    tracker.setup_begins(outer, place("outer"), Policy())
    tracker.setup_begins(inner, place("inner"), Policy())
    tracker.setup_ends(inner, 0.1, failed=True)
    assert lines.told == ["begin"]
    tracker.setup_ends(outer, 0.1, failed=False)
    assert lines.told == ["begin", "end"]


@pytest.mark.torch
def test_what_a_fixture_leaves_has_the_line_of_its_setup(tracker: RunTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    noting = [Lines(), Lines(fails=True)]
    monkeypatch.setattr(tracker.frameworks, "setup_lines", lambda: noting)
    key: Any = 1
    tracker.setup_begins(key, place("index"), Policy())
    kept = [torch.ones(1 << 19)]
    tracker.setup_ends(key, 0.1, failed=False)
    tracker.teardown_begins(key)
    tracker.teardown_ends(key)
    knowledge = SessionKnowledge("/project", Unguarded())
    check = FixtureCheck(tracker, knowledge, lambda _: ())
    check.check(tracker.take_released())
    (record,) = check.records
    assert [array.created for array in record.findings[0].tensors] == [LINE]
    assert kept


def test_frameworks_without_it_are_left_out() -> None:
    assert own_frameworks().setup_lines() == []  # torch's for the CPU cannot
