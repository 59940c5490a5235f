"""Findings that wait for one search of many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuleak.engine.stages import Unguarded
from pytest_gpuleak.engine.waiting import Judged, WaitingFinding, WaitingFindings
from pytest_gpuleak.model.evidence import Evidence
from pytest_gpuleak.model.policy import Policy

pytestmark = pytest.mark.interpreter


class Arrays:
    """What a test left, whose search has found nothing."""

    waits = True
    given_up = ""

    @property
    def looks(self) -> Arrays:
        return self

    def give_up(self, why: str) -> None:
        self.waits, self.given_up = False, why

    def evidence(self) -> Evidence:
        return Evidence((), (frozenset(),))


def waiting_for(*arrays: Arrays) -> WaitingFindings:
    waiting: Any = WaitingFindings(Any, SimpleNamespace(safeguards=Unguarded()))  # type: ignore[arg-type]
    supplement: Any = SimpleNamespace(added_to=lambda evidence: evidence)
    for number, one in enumerate(arrays):
        judged = Judged(f"test_{number}", Policy(), "", (), (), ())
        fake: Any = one
        waiting._waiting.append(WaitingFinding(judged, fake, supplement))
    found: WaitingFindings = waiting
    return found


def test_nothing_waits() -> None:
    assert waiting_for().explain() == []


def test_what_ctrl_c_interrupts_still_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = waiting_for(Arrays(), Arrays())

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(waiting, "_search", interrupt)
    with pytest.raises(KeyboardInterrupt):
        waiting.explain()
    assert not waiting.is_empty
    monkeypatch.setattr(waiting, "_search", lambda _: None)
    assert [one.nodeid for one in waiting.explain()] == ["test_0", "test_1"]
    assert waiting.is_empty


def test_what_a_search_leaves_open_is_given_up() -> None:
    arrays = Arrays()
    waiting: Any = waiting_for(arrays)
    waiting._search = lambda _: None
    (explained,) = waiting.explain()
    assert arrays.given_up.startswith("the search failed")
    assert (explained.verdict, explained.findings) == ("clean", ())


def test_what_teaches_is_limited_by_its_seconds() -> None:
    waiting: Any = waiting_for()
    waiting._knowledge.elapsed_s = 10.0
    assert [waiting.teaches_next() for _ in range(12)] == [n in (3, 11) for n in range(12)]
    waiting.searched_s = 1.6
    assert not any(waiting.teaches_next() for _ in range(64))
    waiting._knowledge.elapsed_s = 20.0
    assert any(waiting.teaches_next() for _ in range(16))
