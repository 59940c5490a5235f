"""When a parametrized test need not be run again."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

import pytest

from pytest_gpuleak.engine.parameter_history import ALIKE, ParameterHistory

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.protocol import StorageHandle
    from pytest_gpuleak.model.findings import Finding


@dataclasses.dataclass
class Told:
    """What the history reads of a finding."""

    kind: str = "retained"
    failed: bool = False
    why_unconfirmed: str | None = None


@dataclasses.dataclass
class Handle:
    """A hold on memory that is alive, or not."""

    living: bool
    storage: int = 1

    def alive(self) -> bool:
        return self.living


def told(*findings: Told) -> list[Finding]:
    return cast("list[Finding]", list(findings))


def learn(history: ParameterHistory, count: int, *findings: Told, function: str = "test_a.py::test_it") -> None:
    for index in range(count):
        nodeid = f"{function}[{index}]"
        history.is_constant(nodeid, [object()])
        history.learn(nodeid, told(*findings))


@pytest.mark.parametrize(("count", "constant"), [(0, False), (ALIKE - 1, False), (ALIKE, True)])
def test_after_enough_tests_that_did_not_grow(count: int, constant: bool) -> None:
    history = ParameterHistory()
    learn(history, count, Told())
    assert history.is_constant("test_a.py::test_it[x]", [object()]) is constant
    assert not history.is_constant("test_a.py::test_other[x]", [object()])


@pytest.mark.parametrize("grown", [Told("growing"), Told("retained", failed=True)])
def test_never_after_one_that_has_grown(grown: Told) -> None:
    history = ParameterHistory()
    learn(history, 1, grown)
    learn(history, ALIKE, Told())
    assert not history.is_constant("test_a.py::test_it[x]", [object()])


@pytest.mark.parametrize("findings", [[], [Told(why_unconfirmed="it failed")], [Told(), Told("cycle")]])
def test_what_confirms_nothing_does_not_count(findings: list[Told]) -> None:
    history = ParameterHistory()
    learn(history, ALIKE, *findings)
    assert not history.is_constant("test_a.py::test_it[x]", [object()])


def test_verdicts_on_other_tests_do_not_count() -> None:
    history = ParameterHistory()
    for _ in range(ALIKE):
        history.learn("test_a.py::test_it[0]", told(Told()))
    assert not history.is_constant("test_a.py::test_it[x]", [object()])


@pytest.mark.parametrize("living", [True, False])
def test_a_parameter_that_keeps_what_an_earlier_test_left(living: bool) -> None:
    history, parameter = ParameterHistory(), object()
    learn(history, ALIKE, Told())
    assert history.is_constant("test_a.py::test_it[x]", [parameter])
    history.note([parameter], cast("list[StorageHandle]", [Handle(living)]))
    assert history.is_constant("test_a.py::test_it[y]", [parameter]) is not living
    assert history.is_constant("test_a.py::test_it[z]", [object()])
    if living:  # a re-run that did not grow settles it
        history.is_constant("test_a.py::test_it[y]", [parameter])
        history.learn("test_a.py::test_it[y]", told(Told()))
        assert history.is_constant("test_a.py::test_it[x]", [parameter])
