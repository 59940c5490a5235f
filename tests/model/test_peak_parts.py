"""Rows of a peak: they add up, whatever is alive, and a line of arithmetic says what would bring it under a budget."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.model.peak_parts import (
    MAX_ROWS,
    Block,
    Peak,
    PeakMoment,
    PeakPart,
    common_module,
    group_blocks,
    located,
    sum_of,
    with_total,
)
from pytest_gpuleak.model.source_files import Origin
from pytest_gpuleak.reports.terminal.peak import render_peak

MIB = 2**20
LINE = Origin("/home/me/project/model.py", 14, "forward", "x = tanh(x)")

blocks = st.builds(
    Block,
    category=st.sampled_from(["parameter", "gradient", "activation", "temporary", "held", "optimizer state"]),
    bytes=st.integers(0, 2**40),
    dtype=st.sampled_from(["float32", "int64"]),
    shape=st.sampled_from([(), (2, 3), (8,)]),
    module=st.sampled_from(["", "Net", "Net.a", "Net.b.c"]),
    created=st.sampled_from([None, LINE, dataclasses.replace(LINE, line=20)]),
    forward=st.sampled_from(["", "model.py:14"]),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(blocks, max_size=60))
def test_the_rows_add_up(alive: list[Block]) -> None:
    parts = group_blocks(alive)
    assert sum(part.bytes for part in parts) == sum(block.bytes for block in alive)
    assert sum(part.count for part in parts) == sum(block.bytes > 0 for block in alive)
    assert len(parts) <= MAX_ROWS
    shown = [part.bytes for part in parts if part.category != "smaller"]
    assert shown == sorted(shown, reverse=True)
    assert [part.category for part in parts].count("smaller") <= 1
    assert all(part.category != "smaller" for part in parts[:-1])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(blocks, max_size=60), st.integers(0, 2**50))
def test_what_the_device_counted_adds_up_too(alive: list[Block], counted: int) -> None:
    parts = group_blocks(alive)
    explained = sum(part.bytes for part in parts)
    found = with_total(Peak("cuda:0", explained, parts=parts), counted)
    assert found.bytes == explained + found.unexplained_bytes == max(counted, explained)
    assert bool(found.lacks) is (counted < explained or found.unexplained_bytes * 100 > counted)


@given(st.permutations([Block("held", size, "float32", (size,), created=LINE) for size in (8, 8, 16, 900)]))
def test_the_order_of_equal_blocks_alone_tells(alive: list[Block]) -> None:
    assert [part.bytes for part in group_blocks(alive)] == [900, 32]


def test_small_rows_are_joined_by_category() -> None:
    alive = [
        Block("activation", 40 * MIB, "float32", (10,), "Net.body.0", LINE),
        Block("activation", 40 * MIB, "float32", (10,), "Net.body.1", LINE),
        Block("parameter", MIB, "float32", (3,)),
        Block("parameter", MIB // 2, "float32", (4,)),
        Block("temporary", 3, "float32", (5,)),
        Block("temporary", 4, "float32", (6,)),
    ]
    first, rest = group_blocks(alive)
    assert first == PeakPart("activation", "Net.body.*", 80 * MIB, 2, "float32", (10,), LINE)
    assert rest.note == "parameters 1.5 MiB, temporaries 7 bytes"
    assert (rest.category, rest.bytes, rest.count) == ("smaller", MIB + MIB // 2 + 7, 4)


def test_one_small_row_keeps_its_place() -> None:
    alive = [Block("held", 1000, "int8", (1000,)), Block("held", 1, "int8", (1,))]
    assert [part.category for part in group_blocks(alive)] == ["held", "held"]


def test_backward_passes_name_the_forward_line() -> None:
    block = Block("temporary", 1, "float32", (), "", LINE, "model.py:14", "log_softmax")
    (row,) = group_blocks([block, block])
    assert row.note == "backward of model.py:14 (log_softmax)"
    (row,) = group_blocks([block, block._replace(operator="mean")])
    assert row.note == "backward of model.py:14"


def test_memory_inside_operators_is_told_by_operator() -> None:
    block = Block("inside", 8, "bytes", (8,), "Net", LINE, "model.py:14", "log_softmax")
    rows = group_blocks(
        [block, block, block._replace(operator="sum.default", forward=""), block._replace(operator="", forward="")]
    )
    assert [(row.count, row.note) for row in rows] == [
        (2, "log_softmax, backward of model.py:14"),
        (1, "sum.default"),
        (1, "no operator"),
    ]
    peak = Peak("cuda:0", 40, parts=rows, unsplit_bytes=8, workspaces_bytes=64)
    assert [" ".join(line.split()) for line in render_peak(peak)] == [
        "16 bytes 2 x bytes [8] inside log_softmax backward of model.py:14 Net",
        "8 bytes 1 x bytes [8] inside sum.default /home/me/project/model.py:14 Net",
        "8 bytes 1 x bytes [8] inside no operator /home/me/project/model.py:14 Net",
        "8 bytes rounding and unsplit blocks",
        "not in the peak: 64 bytes of workspaces, which libraries keep for later calls",
    ]
    assert with_total(peak, 41).unexplained_bytes == 1


@pytest.mark.parametrize(
    ("paths", "common"),
    [
        (["Net.a"], "Net.a"),
        (["Net.a", "Net.a"], "Net.a"),
        (["Net.body.0", "Net.body.10"], "Net.body.*"),
        (["Net", "Net.body"], "Net.*"),
        (["Net.a", "Other.a"], ""),
        (["Net.a", ""], ""),
        ([""], ""),
    ],
)
def test_modules_in_common(paths: list[str], common: str) -> None:
    assert common_module(paths) == common


def part(category: str, size: int, shape: tuple[int, ...] = (1,)) -> PeakPart:
    return PeakPart(category, "", size * MIB, 1, "float32", shape)  # type: ignore[arg-type]


UNUSED = "no backward pass used them (torch.no_grad keeps none)"


@pytest.mark.parametrize(
    ("parts", "backward", "line"),
    [
        (
            [("activation", 40), ("parameter", 5)],
            False,
            f"without the activations: 5.0 MiB, within the budget; {UNUSED}",
        ),
        ([("activation", 40), ("parameter", 5)], True, "without the activations: 5.0 MiB, within the budget"),
        ([("held", 40), ("parameter", 15)], True, "without the 1 x float32 [1]: 15.0 MiB, still 3.0 MiB over"),
        (
            [("activation", 64), ("temporary", 64), ("temporary", 64), ("parameter", 2)],
            True,
            "without any one of the three: 130.0 MiB, still 118.0 MiB over; the three are one shape",
        ),
        (
            [("parameter", 40), ("optimizer state", 80)],
            True,
            "without the optimizer state: 40.0 MiB, still 28.0 MiB over",
        ),
        ([("parameter", 40)], True, ""),
        ([("held", 40)], True, ""),
        ([], True, ""),
    ],
)
def test_arithmetic_on_a_budget(parts: list[tuple[str, int]], backward: bool, line: str) -> None:
    rows = tuple(part(category, size) for category, size in parts)
    peak = Peak("cuda:0", sum(row.bytes for row in rows), parts=rows, backward=backward)
    assert sum_of(peak, 12 * MIB) == line


def test_without_a_budget_only_what_no_backward_pass_used_is_told() -> None:
    peak = Peak("cpu", 45 * MIB, parts=(part("activation", 40), part("parameter", 5)))
    assert sum_of(peak, None) == f"activations: {UNUSED}"
    assert sum_of(dataclasses.replace(peak, backward=True), None) == ""


def test_files_are_relative_to_the_root() -> None:
    other = dataclasses.replace(LINE, file="/elsewhere/x.py")
    rows = (
        PeakPart("held", "", 1, 1, created=LINE),
        PeakPart("held", "", 1, 1, created=other),
        PeakPart("smaller", "", 1, 1),
    )
    found = located(Peak("cpu", 3, PeakMoment(LINE.file, 14, "", "call"), rows), "/home/me/project")
    assert found.moment is not None
    assert found.moment.file == "model.py"
    assert [row.created and row.created.file for row in found.parts] == ["model.py", "/elsewhere/x.py", None]
    assert located(Peak("cpu", 0), "/home") == Peak("cpu", 0)
