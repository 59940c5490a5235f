"""The replay of an allocator's history, against an allocator of the same rules that counts as it goes."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.adapters.torch.allocator_history import WORKSPACES
from pytest_gpuleak.adapters.torch.peak_replay import PAUSED, Replayed, replay

MIB: Final = 1 << 20


class Allocator:
    """CUDA's caching allocator on numbers: first fit, and a history of what it has done."""

    def __init__(self) -> None:
        self.segments: list[dict[str, Any]] = []
        self.trace: list[dict[str, Any]] = []
        self.mark = ""
        self.apart = self.own = self.peak = self.allocated = self.requested = 0
        self._next = 1 << 30
        self._marks: dict[int, str] = {}

    def _note(self, action: str, address: int, size: int) -> None:
        self.trace.append({"action": action, "addr": address, "size": size, "user_metadata": self.mark})

    def take(self, requested: int) -> int:
        size = max(512, -(-requested // 512) * 512)
        small = size <= MIB
        fits = [
            (segment, index)
            for segment in self.segments
            for index, block in enumerate(segment["blocks"])
            if segment["small"] is small and block["state"] == "inactive" and block["size"] >= size
        ]
        if not fits:
            total = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            blocks = [{"address": self._next, "size": total, "state": "inactive"}]
            self.segments.append({"device": 0, "address": self._next, "small": small, "blocks": blocks})
            self._note("segment_alloc", self._next, total)
            self._next += total  # the next segment touches this one, and is never joined with it
            fits = [(self.segments[-1], 0)]
        segment, index = fits[0]
        block = segment["blocks"][index]
        rest = block["size"] - size
        if rest >= 512 if small else rest > MIB:
            block["size"] = size
            left = {"address": block["address"] + size, "size": rest, "state": "inactive"}
            segment["blocks"].insert(index + 1, left)
        block.update(state="active_allocated", requested_size=requested)
        self._note("alloc", block["address"], requested)
        self._count(block, 1)
        return int(block["address"])

    def _count(self, block: dict[str, Any], sign: int) -> None:
        self.allocated += sign * block["size"]
        if sign > 0:
            self._marks[block["address"]] = self.mark
        if self._marks.get(block["address"], "") not in (WORKSPACES, PAUSED):
            self.own += sign * block["size"]
            self.peak = max(self.peak, self.own)

    def free(self, address: int) -> None:
        segment, index = next(
            (segment, index)
            for segment in self.segments
            for index, block in enumerate(segment["blocks"])
            if block["address"] == address
        )
        blocks = segment["blocks"]
        block = blocks[index]
        self._note("free_requested", address, block["requested_size"])
        self._count(block, -1)
        self._note("free_completed", address, block["requested_size"])
        block["state"] = "inactive"
        for at in (index, index - 1):
            if 0 <= at < len(blocks) - 1 and {blocks[at]["state"], blocks[at + 1]["state"]} == {"inactive"}:
                blocks[at]["size"] += blocks.pop(at + 1)["size"]

    def copied(self) -> list[dict[str, Any]]:
        return [{**segment, "blocks": [dict(block) for block in segment["blocks"]]} for segment in self.segments]


def run(steps: list[tuple[int, int]], begin: int) -> tuple[Allocator, Replayed]:
    """Take so many bytes, or free one of what is there, and record from a step on."""
    allocator, held, before = Allocator(), list[int](), list[dict[str, Any]]()
    for number, (size, which) in enumerate([*steps, (0, 0)]):
        if number == min(begin, len(steps)):
            before = allocator.copied()
            allocator.trace.clear()
            allocator.own = allocator.peak = 0
        if number == len(steps):
            break
        if size:
            held.append(allocator.take(size))
        elif held:
            allocator.free(held.pop(which % len(held)))
    snapshot = {"device_traces": [allocator.trace], "segments": allocator.copied()}
    return allocator, replay(before, snapshot, 0)


sizes = st.one_of(
    st.just(0), st.integers(1, 4 * MIB), st.sampled_from([512, 513, MIB, MIB + 1, 9 * MIB, 10 * MIB, 30 * MIB])
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(st.tuples(sizes, st.integers(0, 50)), max_size=60), st.integers(0, 30))
def test_the_peak_is_the_allocator_s_to_the_byte(steps: list[tuple[int, int]], begin: int) -> None:
    allocator, found = run(steps, begin)
    assert found.exact
    assert found.bytes == allocator.peak
    assert sum(block.bytes for block in found.held) - found.gone == found.bytes or found.entry == -1
    assert all(block.bytes >= block.requested for block in found.held)


def test_workspaces_and_what_others_make_are_left_out() -> None:
    allocator = Allocator()
    before = allocator.copied()
    own = allocator.take(3 * MIB)
    workspace = allocator.take(8 * MIB)
    allocator.mark = PAUSED
    allocator.take(5 * MIB)
    allocator.mark = "7"
    last = allocator.take(MIB)
    allocator.free(own)
    allocator.mark = WORKSPACES
    allocator.free(workspace)
    found = replay(before, {"device_traces": [allocator.trace], "segments": allocator.copied()}, 0)
    assert (found.bytes, found.workspaces, found.exact) == (4 * MIB, 8 * MIB, True)
    assert [block.address for block in found.held] == [own, last]


@pytest.mark.parametrize(
    "settings_of", [{"roundup_power2_divisions": {"1": 4}}, {"max_split_size": 2 * MIB}], ids=["rounded", "not split"]
)
def test_an_allocator_of_other_rules_is_not_exact(settings_of: dict[str, Any]) -> None:
    allocator = Allocator()
    allocator.take(3 * MIB)
    snapshot = {
        "device_traces": [allocator.trace],
        "segments": allocator.copied(),
        "allocator_settings": settings_of,
    }
    found = replay([], snapshot, 0)
    assert (found.exact, found.bytes) == (False, 3 * MIB)


def test_pages_of_an_expandable_segment_are_joined() -> None:
    def entry(action: str, address: int, size: int) -> dict[str, Any]:
        return {"action": action, "addr": address, "size": size}

    trace = [
        entry("segment_map", 0x1000000, 20 * MIB),
        entry("alloc", 0x1000000, 19 * MIB),
        entry("free_requested", 0x1000000, 19 * MIB),
        entry("free_completed", 0x1000000, 19 * MIB),
        entry("segment_map", 0x1000000 + 20 * MIB, 20 * MIB),
        entry("alloc", 0x1000000, 30 * MIB),
        entry("segment_unmap", 0x1000000 + 32 * MIB, 8 * MIB),
    ]
    blocks = [
        {"address": 0x1000000, "size": 30 * MIB, "state": "active_allocated"},
        {"address": 0x1000000 + 30 * MIB, "size": 2 * MIB, "state": "inactive"},
    ]
    snapshot = {
        "device_traces": [trace],
        "segments": [{"device": 0, "address": 0x1000000, "blocks": blocks, "is_expandable": True}],
        "allocator_settings": {"expandable_segments": True},
    }
    found = replay([], snapshot, 0)
    assert (found.exact, found.bytes, found.gone) == (True, 30 * MIB, 0)
