"""The re-run decides on growth of the host before anything walks the heap, and garbage distorts no verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("sys.platform != 'linux'", reason="reads malloc's heap"),
    pytest.mark.usefixtures("cold"),
]

BRIEF = """
    import ctypes
    import gc

    MIB = 2**20
    USED = set()
    RUNS, SLOT = [], {}

    def note_collection(phase, info):
        if phase == "start" and info["generation"] == 2:
            RUNS.append("collected")

    OLD = []
    for _ in range(20):
        ring = []
        ring.append(ring)
        OLD.append(ring)
    del ring

    def old_garbage(size):
        OLD.pop().append(bytearray(size))  # a ring from before the test: no collection of what is young frees it

    def allocate(size):
        malloc = ctypes.CDLL(None).malloc
        malloc.restype = ctypes.c_void_p
        assert malloc(ctypes.c_size_t(size))
"""


def test_a_first_use_is_told_by_the_re_run_alone(run: Runner) -> None:
    found = run(
        BRIEF
        + """
    def test_first_use():
        RUNS.append("run")
        if note_collection not in gc.callbacks:
            gc.callbacks.append(note_collection)
        if "module" not in USED:
            USED.add("module")
            allocate(30 * MIB)

    def test_what_it_cost():
        gc.callbacks.remove(note_collection)
        # One collection, of the young alone: older objects are frozen then.
        assert RUNS == ["run", "collected", "run"]
        """,
        apart=True,
    )
    assert found.verdicts == {"test_first_use": "clean", "test_what_it_cost": "clean"}


def test_growth_and_garbage_are_told_apart_all_the_same(run: Runner) -> None:
    found = run(
        BRIEF
        + """
    def test_grows():
        allocate(20 * MIB)

    def test_garbage():
        old_garbage(20 * MIB)

    def test_grows_beside_more_garbage():
        allocate(12 * MIB)
        old_garbage(40 * MIB)

    def test_grows_while_the_garbage_of_the_run_before_goes():
        gc.collect()
        allocate(12 * MIB)
        old_garbage(40 * MIB)

    def test_replaces_through_a_cycle():
        ring = [bytearray(30 * MIB)]
        ring.append(ring)
        SLOT["ring"] = ring

    def test_first_use_in_a_test_that_collects():
        gc.collect()
        SLOT.setdefault("once", bytearray(30 * MIB))
        """,
        apart=True,
    )
    assert found.verdicts == {
        "test_grows": "leaked",
        "test_garbage": "clean",
        "test_grows_beside_more_garbage": "leaked",
        "test_grows_while_the_garbage_of_the_run_before_goes": "leaked",
        "test_replaces_through_a_cycle": "clean",
        "test_first_use_in_a_test_that_collects": "clean",
    }
    assert found.finding("test_grows")["kind"] == "host"


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_an_older_array_that_the_test_frees_hides_nothing(run: Runner) -> None:
    found = run(
        BRIEF
        + """
    import torch

    SLOTS = {"old": torch.ones(5 * MIB), "older": torch.ones(5 * MIB)}
    LAYER = torch.ones(MIB // 2, requires_grad=True)

    def test_grows():
        SLOTS.pop("old", None)
        allocate(20 * MIB)
        SLOTS["new"] = torch.ones(10)

    def test_gradient():
        SLOTS.pop("older", None)
        (LAYER * 2).sum().backward()
        SLOTS["newer"] = torch.ones(5 * MIB)

    def test_replaces():
        SLOTS["newer"] = torch.ones(5 * MIB)
        """,
        apart=True,
    )
    assert found.verdicts == {"test_grows": "leaked", "test_gradient": "leaked", "test_replaces": "noted"}
    assert [one["kind"] for one in found.tests["test_grows"]["findings"] if one["failed"]] == ["host"]
    retained = {one["holder"]["root"]: one["bytes"] for one in found.tests["test_gradient"]["findings"]}
    assert retained == {"test_it.SLOTS": 20 * 2**20, "test_it.LAYER": 2 * 2**20}


def test_without_a_re_run_the_only_run_is_settled(run: Runner) -> None:
    found = run(
        BRIEF
        + """
    def test_garbage():
        old_garbage(20 * MIB)
        """,
        "--gpu-leak-confirm=0",
        apart=True,
    )
    assert found.verdicts == {"test_garbage": "clean"}


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_gradients_that_no_code_has_read_are_found(run: Runner) -> None:
    found = run(
        BRIEF
        + """
    import torch

    LAYERS = [torch.ones(4 * MIB, requires_grad=True) for _ in range(8)]
    NEXT = iter(LAYERS)

    def test_warm():
        torch.ones(3, requires_grad=True).sum().backward()

    def test_unread_gradients():
        (next(NEXT) * 2).sum().backward()

    def test_of_one_layer():
        (LAYERS[-1] * 2).sum().backward()
        """,
        apart=True,
    )
    assert found.verdicts == {"test_warm": "clean", "test_unread_gradients": "leaked", "test_of_one_layer": "leaked"}
    assert found.finding("test_unread_gradients")["kind"] == "growing"
    assert found.finding("test_of_one_layer")["kind"] == "retained"
