"""How long known culprits are looked for before the whole heap is searched."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuleak.explain import known_culprits
from pytest_gpuleak.explain.known_culprits import BUDGET_S, Culprits

pytestmark = pytest.mark.interpreter

SEARCH_S = 16.0
VAIN, FOUND, REACHED = "in vain", "found", "reached"


class Watched(Culprits):
    """Culprits whose recognitions come out as told, and take as long as they may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(lambda _: True)
        self.budgets: list[float] = []
        self.outcome = VAIN
        monkeypatch.setattr(known_culprits, "cpu_time", lambda: sum(self.budgets))

    def _recognise(self, targets: list[object], ignore: Any, frameworks: Any, older: Any, reached: Any) -> Any:
        del ignore, frameworks, older
        self.budgets.append(self._budget_s() + 0.01)
        if self.outcome == REACHED:
            reached.update(map(id, targets))
        return [] if self.outcome == FOUND else None


def budgets(monkeypatch: pytest.MonkeyPatch, *outcomes: str) -> list[float]:
    culprits = Watched(monkeypatch)
    culprits.note_search(SEARCH_S)
    for culprits.outcome in outcomes:
        culprits.recognise([object()], (), reached=set())
        culprits.note_search(SEARCH_S)
    return [round(spent - 0.01, 3) for spent in culprits.budgets]


def test_the_time_shrinks_while_it_is_spent_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    assert budgets(monkeypatch, *[VAIN] * 4) == [8, 2, 0.5, BUDGET_S]


@pytest.mark.parametrize("useful", [FOUND, REACHED])
def test_it_is_as_before_once_it_was_of_use(useful: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert budgets(monkeypatch, VAIN, useful, VAIN) == [8, 2, 8]


def test_what_is_quick_costs_nothing_that_is_worth_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    culprits = Watched(monkeypatch)
    monkeypatch.setattr(known_culprits, "cpu_time", float)
    for _ in range(3):
        culprits.note_search(SEARCH_S)
        culprits.recognise([object()], ())
    assert [round(spent - 0.01) for spent in culprits.budgets] == [8, 8, 8]
