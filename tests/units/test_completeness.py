"""Which tests are missing, and which have brought no record, from the hooks' calls alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuleak.completeness import DESELECTED_KEY, Completeness

SESSION: Any = SimpleNamespace(shouldfail=False, shouldstop=False)
IDS = ["t.py::test_one", "t.py::test_two"]


def distributed(mode: str) -> Completeness:
    found = Completeness()
    config: Any = SimpleNamespace(getoption=lambda name, default: mode)
    found.pytest_xdist_setupnodes(config, [object(), object()])
    for _ in range(2):
        found.pytest_xdist_node_collection_finished(IDS)
    return found


def run(found: Completeness, worker: str, *nodeids: str) -> None:
    for nodeid in nodeids:
        found.note_started(nodeid)
        found.note_ended(nodeid, worker)
        assert found.note_finished(nodeid)


@pytest.mark.parametrize("mode", ["load", "loadscope", "loadfile", "loadgroup", "worksteal"])
def test_one_worker_is_enough_for_a_test(mode: str) -> None:
    found = distributed(mode)
    run(found, "gw0", IDS[0])
    assert found.why_incomplete(SESSION) == "1 of 2 tests did not run to the end"
    run(found, "gw1", IDS[1])
    assert found.why_incomplete(SESSION) is None


def test_with_each_it_takes_all_workers() -> None:
    found = distributed("each")
    run(found, "gw0", *IDS, IDS[0])  # one of them run twice
    assert found.why_incomplete(SESSION) == "2 of 4 tests did not run to the end"
    run(found, "gw2", *IDS)  # it took the place of one that died
    assert found.why_incomplete(SESSION) is None


def test_a_test_that_another_worker_runs_still_has_brought_its_record() -> None:
    found = distributed("each")
    found.note_started(IDS[0])
    found.note_ended(IDS[0], "gw0")
    found.note_started(IDS[0])
    assert found.note_finished(IDS[0])
    assert found.running == (IDS[0],)
    found.note_ended(IDS[0], "gw1")
    assert found.note_finished(IDS[0])
    assert not found.running


def test_a_test_that_brings_no_record_is_found_out_after_one_that_ran_twice() -> None:
    found = Completeness()
    found.note_started(IDS[0])
    found.note_ended(IDS[0], "main")
    found.note_ended(IDS[0], "main")
    assert found.note_finished(IDS[0])
    found.note_started(IDS[0])
    assert not found.note_finished(IDS[0])


def test_deselected_in_workers_is_counted_once() -> None:
    found = distributed("load")
    for count in (3, 3):
        node = SimpleNamespace(workeroutput={DESELECTED_KEY: count}, gateway=SimpleNamespace(id="gw0"))
        found.pytest_testnodedown(node, None)
    assert found.deselected == 3
