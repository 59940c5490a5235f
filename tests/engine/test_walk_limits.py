"""When the heap is walked over for arrays, by what such walks have taken so far."""

from __future__ import annotations

import types
from typing import Any

import pytest

from pytest_gpuleak.engine.confirm import walk_limits
from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
from pytest_gpuleak.engine.stages import Unguarded
from pytest_gpuleak.engine.suspicion import is_worth_a_check
from pytest_gpuleak.model.policy import Policy
from pytest_gpuleak.model.readings import HOST, Growth


def session(monkeypatch: pytest.MonkeyPatch, cpu_s: float) -> SessionKnowledge:
    monkeypatch.setattr(SessionKnowledge, "cpu_s", cpu_s)
    return SessionKnowledge("/project", Unguarded())


@pytest.mark.parametrize(
    ("expected_s", "adds_arrays", "runs"), [(0.01, True, 2), (0.01, False, 3), (0.5, False, 2), (None, False, 2)]
)
def test_a_quick_test_that_adds_no_array_runs_once_more_before_a_record(
    expected_s: float | None, runs: int, *, adds_arrays: bool
) -> None:
    assert walk_limits.runs_before_record(expected_s, adds_arrays=adds_arrays) == runs


@pytest.mark.parametrize(
    ("cpu_s", "vain_s", "beside_arrays", "adds_arrays", "recorded"),
    [
        (10.0, 9.0, False, True, True),
        (10.0, 0.6, True, True, True),
        (10.0, 0.8, True, True, False),
        (10.0, 0.0, False, False, True),
        (10.0, 0.3, False, False, False),
        (100.0, 0.3, False, False, True),
    ],
)
def test_a_run_is_recorded_by_how_likely_arrays_are(
    monkeypatch: pytest.MonkeyPatch,
    cpu_s: float,
    vain_s: float,
    *,
    beside_arrays: bool,
    adds_arrays: bool,
    recorded: bool,
) -> None:
    knowledge = session(monkeypatch, cpu_s)
    knowledge.vain_records_s = vain_s
    assert walk_limits.may_record(knowledge, beside_arrays=beside_arrays, adds_arrays=adds_arrays) is recorded


@pytest.mark.parametrize(
    ("cpu_s", "grown", "sure", "adds_arrays", "searched"),
    [
        (10.0, 2**20, False, True, True),
        (10.0, 2**20, False, False, False),
        (10.0, 2**20, True, False, True),
        (10.0, walk_limits.SWAPPED_BYTES, False, False, True),
        (50.0, 2**20, False, False, True),
    ],
)
def test_what_one_run_added_is_searched_for_by_how_likely_arrays_are(
    monkeypatch: pytest.MonkeyPatch, cpu_s: float, grown: int, *, sure: bool, adds_arrays: bool, searched: bool
) -> None:
    knowledge = session(monkeypatch, cpu_s)
    assert walk_limits.may_search_once(knowledge, grown, sure=sure, adds_arrays=adds_arrays) is searched


@pytest.mark.parametrize(
    ("grown", "adds_arrays", "vain_s", "checked"),
    [
        (2**17, True, 0.0, False),  # below what an array is looked for
        (2**19, True, 9.0, True),
        (2**19, False, 0.0, True),
        (2**19, False, 9.0, False),
        (2**20, False, 9.0, False),
        (2**21, False, 9.0, True),  # stands out
        (10 * 2**20, False, 9.0, True),  # fails, whatever it is
    ],
)
def test_a_little_growth_is_checked_by_how_likely_arrays_are(
    monkeypatch: pytest.MonkeyPatch, grown: int, vain_s: float, *, adds_arrays: bool, checked: bool
) -> None:
    pytest.importorskip("numpy")  # without it no array is looked for
    knowledge = session(monkeypatch, 10.0)
    knowledge.host_reruns.note_vain(vain_s, 2**20 - 1 if vain_s else 0)
    tracker: Any = types.SimpleNamespace(may_have_added_arrays=adds_arrays)
    growth = Growth({(HOST, "heap"): grown})
    assert is_worth_a_check(growth, Policy(), tracker, knowledge) is checked


@pytest.mark.parametrize(
    ("cpu_s", "spent_s", "expected_s", "recorded"),
    [
        (10.0, 0.0, 0.1, True),
        (10.0, 0.0, 4.0, False),
        (10.0, 2.3, 0.1, False),
        (100.0, 2.3, 0.1, True),
        (10.0, 0.0, None, True),
    ],
)
def test_few_seconds_go_on_the_hosts_memory_of_tests_that_fail_already(
    monkeypatch: pytest.MonkeyPatch, cpu_s: float, spent_s: float, expected_s: float | None, *, recorded: bool
) -> None:
    knowledge = session(monkeypatch, cpu_s)
    knowledge.leak_records_s = spent_s
    assert walk_limits.may_record_beside_leak(knowledge, expected_s) is recorded
