"""What filled the memory at its peak, as plain data: rows that add up. Pure: blocks in, rows and a line of arithmetic out."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pytest_gpuleak.model.source_files import shorten
from pytest_gpuleak.model.text import count_of, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuleak.model.source_files import Origin

PeakCategory = Literal[
    "parameter",
    "buffer",
    "gradient",
    "optimizer state",
    "activation",
    "temporary",
    "input",
    "held",
    "inside",
    "smaller",
]
"""What memory is used for. An activation is saved by an autograd graph for its backward pass; a temporary is released by
the statement that made it; an input was handed to a model; a variable or a container keeps what is held; what
an operator takes beside its results is inside it. The rows too small for a place of their own are the part `smaller`."""

PeakPhase = Literal["setup", "call", "teardown", "forward", "backward", "optimizer"]

MAX_ROWS: Final = 10
"""Most parts of a peak; the last of so many is `smaller`."""

MAX_STEPS: Final = 60
"""Most steps that are told of a run, each the highest of those around it: a curve shows no more points apart."""

_SMALL: Final = 50
"""PeakPart of the peak (1/50) below which two rows and more are joined to one."""

_PLURALS: Final = {
    "optimizer state": "optimizer state", "held": "held", "temporary": "temporaries", "inside": "inside operators"
}  # fmt: skip
_SLIGHT: Final = 100
"""Part of a device's peak (1/100) that may be unexplained before the moment of its tensors' peak is in doubt."""

OTHER_MOMENT: Final = "the moment and the parts are of the tensors' peak, which the device's may not coincide with"

_UNUSED: Final = "no backward pass used them (torch.no_grad keeps none)"
_TOGETHER: Final = {
    "activation": "the activations",
    "gradient": "the gradients",
    "optimizer state": "the optimizer state",
}
"""What the line of arithmetic leaves out as a whole; of other uses it leaves out one row. A model's parameters stay."""

_ALONE: Final = ("held", "input", "temporary")

_NUMBERS: Final = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclasses.dataclass(frozen=True)
class PeakMoment:
    """When the peak was reached: the user's line that ran, the module that was called, and the operator.

    Attributes:
        forward: in a backward pass, the line of the forward pass that it was at (``model.py:14``); else empty.
    """

    file: str | None
    line: int | None
    module: str
    phase: PeakPhase
    function: str = ""
    operator: str = ""
    forward: str = ""


@dataclasses.dataclass(frozen=True)
class PeakPart:
    """Storages of one form and purpose that one line has made; `bytes` is the sum of all `count`.

    Attributes:
        module: path of the module that was called, or that owns the parameters (``Net.body.*`` for several).
        note: the line of the forward pass whose backward pass made it, with the operator; the categories of `smaller`.
    """

    category: PeakCategory
    module: str
    bytes: int
    count: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    created: Origin | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class PeakStep:
    """Memory after a storage was made, the one with the number `at`, by a line in a phase: bytes `alive` by their use."""

    at: int
    phase: PeakPhase
    file: str | None
    line: int | None
    alive: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Peak:
    """The most memory, in bytes over what was there before, that a run has had on a device, and what it consisted of.

    Attributes:
        bytes: the sum of the parts, of `unsplit_bytes` and of `unexplained_bytes`.
        estimated: whether it was computed for another device than it was measured on.
        parts: at most `MAX_ROWS`, largest first, `smaller` last.
        unexplained_bytes: what no part has: memory inside operators, of libraries, and lost to rounding.
        backward: whether a backward pass has run.
        lacks: what the parts do not tell, in words, each a clause.
        steps: the tensors over the run, by the storages made, of each stretch the highest; empty where none was recorded.
        unsplit_bytes: what blocks have beyond what was asked for, by the allocator's history.
        workspaces_bytes: what libraries kept on the device for later calls, which is not in `bytes`; None: not told apart.
    """

    device: str
    bytes: int
    moment: PeakMoment | None = None
    parts: tuple[PeakPart, ...] = ()
    unexplained_bytes: int = 0
    estimated: bool = False
    backward: bool = False
    lacks: tuple[str, ...] = ()
    steps: tuple[PeakStep, ...] = ()
    unsplit_bytes: int = 0
    workspaces_bytes: int | None = None


class Block(NamedTuple):
    """One storage alive at the peak, of `bytes`; `forward` is the line whose backward pass made it, by `operator`.

    A block `inside` an operator is no storage.
    """

    category: PeakCategory
    bytes: int
    dtype: str
    shape: tuple[int, ...]
    module: str = ""
    created: Origin | None = None
    forward: str = ""
    operator: str = ""


def group_blocks(blocks: Iterable[Block]) -> tuple[PeakPart, ...]:
    """Group the blocks of a peak by purpose, form and line: at most `MAX_ROWS` parts, which add up to their bytes."""
    groups: dict[tuple[object, ...], list[Block]] = defaultdict(list)
    for block in blocks:
        if block.bytes > 0:
            inside = block.operator if block.category == "inside" else ""
            groups[block.category, block.created, block.shape, block.dtype, block.forward, inside].append(block)
    rows = sorted(map(_part_of, groups.values()), key=lambda row: -row.bytes)  # of equal ones the oldest first
    total = sum(row.bytes for row in rows)
    shown = [row for row in rows[: MAX_ROWS - 1] if row.bytes * _SMALL >= total]
    rest = rows[len(shown) :]
    if len(rest) < 2:
        return tuple(rows)
    return (*shown, _joined(rest))


def _part_of(blocks: Sequence[Block]) -> PeakPart:
    first = blocks[0]
    backward = f"backward of {first.forward}" if first.forward else ""
    operators = {block.operator for block in blocks}
    if first.category == "inside":
        note = ", ".join(filter(None, (first.operator or "no operator", backward)))
    else:
        note = f"{backward} ({first.operator})" if backward and first.operator and len(operators) == 1 else backward
    return PeakPart(
        category=first.category,
        module=common_module([block.module for block in blocks]),
        bytes=sum(block.bytes for block in blocks),
        count=len(blocks),
        dtype=first.dtype,
        shape=first.shape,
        created=first.created,
        note=note,
    )


def _joined(rows: Sequence[PeakPart]) -> PeakPart:
    by_category: dict[PeakCategory, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        by_category[row.category][0] += row.bytes
        by_category[row.category][1] += row.count
    ranked = sorted(by_category.items(), key=lambda entry: -entry[1][0])
    note = ", ".join(f"{_named(category, count)} {format_bytes(size)}" for category, (size, count) in ranked)
    return PeakPart("smaller", "", sum(row.bytes for row in rows), sum(row.count for row in rows), note=note)


def _named(category: str, count: int) -> str:
    return category if count == 1 else _PLURALS.get(category, f"{category}s")


def located(peak: Peak, root: str) -> Peak:
    """Return a peak whose files below the folder `root` are relative to it."""

    def below(place: Any) -> Any:
        if place is None or place.file is None:
            return place
        return dataclasses.replace(place, file=shorten(place.file, root))

    parts = tuple(dataclasses.replace(part, created=below(part.created)) for part in peak.parts)
    return dataclasses.replace(peak, moment=below(peak.moment), parts=parts, steps=tuple(map(below, peak.steps)))


def common_module(paths: Iterable[str]) -> str:
    """Return the path of one module, or what several have in common (``Net.body.*``); empty if some have none."""
    different = sorted(set(paths))
    if len(different) == 1:
        return different[0]
    levels = zip(*(path.split(".") for path in different), strict=False)
    shared = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)]
    return ".".join([*shared, "*"]) if shared else ""


def with_total(peak: Peak, counted: int) -> Peak:
    """Return a peak whose bytes are those that a device has `counted`; what no part has of them is unexplained.

    A counter below the parts is no measure of them: the parts stand, and the peak says what it lacks.
    """
    explained = sum(part.bytes for part in peak.parts) + peak.unsplit_bytes
    if counted < explained:
        lack = f"the device counted {format_bytes(counted)}, less than the tensors have"
        return dataclasses.replace(peak, lacks=(*peak.lacks, lack))
    unexplained = counted - explained
    lacks = peak.lacks if unexplained * _SLIGHT <= counted else (*peak.lacks, OTHER_MOMENT)
    return dataclasses.replace(peak, bytes=counted, unexplained_bytes=unexplained, lacks=lacks)


def sum_of(peak: Peak, budget: int | None) -> str:
    """Return the line of arithmetic on what would bring a peak under a budget in bytes; empty if nothing is told.

    Only what was measured is said: the sum without a part, and that no backward pass has used what a graph saved.
    """
    categories: dict[str, int] = defaultdict(int)
    for part in peak.parts:
        categories[part.category] += part.bytes
    activations = categories.get("activation", 0)
    if budget is None:
        return f"activations: {_UNUSED}" if activations * 2 > peak.bytes and not peak.backward else ""
    first = peak.parts[0] if peak.parts else None
    equal = [part for part in peak.parts if first and (part.bytes, part.shape) == (first.bytes, first.shape)]
    if len(equal) > 1 and equal[0].category != "smaller":
        number = _NUMBERS[len(equal)]
        return f"without any one of the {number}: {_against(peak.bytes - equal[0].bytes, budget)}; the {number} are one shape"
    without = {_TOGETHER[name]: size for name, size in categories.items() if name in _TOGETHER}
    without.update((f"the {_form(row)}", row.bytes) for row in peak.parts if row.category in _ALONE)
    what = max(without, key=without.__getitem__, default="")
    if not what or without[what] == peak.bytes:
        return ""
    line = f"without {what}: {_against(peak.bytes - without[what], budget)}"
    return f"{line}; {_UNUSED}" if what == _TOGETHER["activation"] and not peak.backward else line


def _form(row: PeakPart) -> str:
    if not row.dtype:
        return count_of(row.count, "block") + ("" if row.created is None else f" of line {row.created.line}")
    return f"{row.count} x {row.dtype} [{', '.join(map(str, row.shape))}]"


def _against(rest: int, budget: int) -> str:
    over = rest - budget
    return f"{format_bytes(rest)}, " + ("within the budget" if over <= 0 else f"still {format_bytes(over)} over")
