"""Judge budgets: the peak GPU memory that a test may add. Pure: markers and readings in, verdict and text out."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pytest_gpuleak.model.findings import Finding
from pytest_gpuleak.model.fingerprint import fingerprint
from pytest_gpuleak.model.text import count_of, format_bytes
from pytest_gpuleak.session.config import values
from pytest_gpuleak.session.config.values import SIZE, Kind, choice, show
from pytest_gpuleak.session.options import BUDGET_MARKER, HOST_BUDGET_MARKER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pytest

    from pytest_gpuleak.model.findings import Contribution
    from pytest_gpuleak.model.peaks import DevicePeak

BUDGET_OPTION = "--gpu-leak-max-mb"

NO_DEVICE = "no device was used"
"""Reason why a budget is not checked where the test process has initialised no device."""

MOST_FIXTURES = 5
"""Fixtures that are named which had memory before a test."""

UNDECIDED = "whether its peak came before a library's workspaces, which hold no budget, is not known"
"""Reason why a budget is not checked where the verdict hangs on that, and no history of the allocator tells."""

_DEVICE = re.compile(r"[a-z][a-z0-9_]*(:\d{1,4})?", re.ASCII)


class Budget(NamedTuple):
    """How many bytes of GPU memory a test may add at its peak, or have in all (`total`); `source` names the budget.

    It counts on `device` (``cuda:1``, a kind ``cuda``, or None: each), as blocks handed out or taken from the driver.
    """

    bytes: int
    total: bool = False
    device: str | None = None
    metric: Literal["allocated", "reserved"] = "allocated"
    source: str = BUDGET_MARKER


class Excess(NamedTuple):
    """A budget exceeded on `device`, in bytes: `peak` counted against it, `before` was in use before the test.

    `workspaces` of libraries were left out. An excess that is not `certain` is one only if they came after the peak.
    An estimate, which may be wrong by `percent`, if that is not 0: it was made on `device` for one that is not there.
    """

    budget: Budget
    device: str
    peak: int
    before: int
    workspaces: int = 0
    percent: int = 0

    @property
    def over(self) -> int:
        """Bytes beyond the budget."""
        return self.peak - self.budget.bytes

    @property
    def certain(self) -> bool:
        """Whether the budget was exceeded whenever the workspaces came."""
        return self.over > 0


def _parse_flag(value: object) -> bool:
    if value is True or value is False:
        return value
    raise ValueError("not a flag")


def _parse_device(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and _DEVICE.fullmatch(value):
        kind, _, index = value.partition(":")
        return f"{kind}:{int(index)}" if index else kind
    raise ValueError("not a device")


_ARGUMENTS: dict[str, dict[str, Kind]] = {
    BUDGET_MARKER: {
        "mb": SIZE,
        "total": Kind("True or False", _parse_flag),
        "device": Kind("a device such as 'cuda:1', or a kind such as 'cuda'", _parse_device),
        "metric": choice("allocated", "reserved"),
    },
    HOST_BUDGET_MARKER: {"mb": SIZE},
}


def why_not_accepted(mark: pytest.Mark) -> str | None:
    """Tell why a marker `max_gpu_mb` or `max_host_mb` is not accepted; None where it is."""
    known = _ARGUMENTS[mark.name]
    if len(mark.args) > 1:
        rest = f", then keyword arguments: {', '.join(list(known)[1:])}" if len(known) > 1 else ""
        return f"positional argument {show(mark.args[1])} is not accepted, only the size{rest}"
    if mark.args and "mb" in mark.kwargs:
        return f"the size is given twice: {show(mark.args[0])} and mb={show(mark.kwargs['mb'])}"
    if not (mark.args or "mb" in mark.kwargs):
        unknown = values.why_not_accepted(mark.kwargs, known)
        return unknown or f"the size is missing, accepted is {SIZE.accepts}"
    return values.why_not_accepted(_arguments(mark), known)


def parse_budget(mark: pytest.Mark) -> Budget:
    """Read a marker `max_gpu_mb` or `max_host_mb`. Raises ValueError, with the reason, if it is not accepted."""
    why = why_not_accepted(mark)
    if why is not None:
        raise ValueError(f"pytest.mark.{mark.name}: {why}")
    read = {name: _ARGUMENTS[mark.name][name].parse(given) for name, given in _arguments(mark).items()}
    return Budget(read.pop("mb"), **read, source=mark.name)


def _arguments(mark: pytest.Mark) -> dict[str, Any]:
    return {"mb": mark.args[0], **mark.kwargs} if mark.args else dict(mark.kwargs)


def judge_budget(budget: Budget, peaks: Mapping[str, DevicePeak]) -> Excess | str | None:
    """Return how a test exceeded its budget on the worst device, why that could not be checked, or None.

    Where no device shows a certain excess, one that hangs on when workspaces were allocated is returned.
    Where a framework counts no peaks, readings may show that the budget was exceeded, but not that it was held.
    """
    if not peaks:
        return NO_DEVICE
    chosen = {
        device: peak
        for device, peak in peaks.items()
        if budget.device is None or budget.device in (device, device.partition(":")[0])
    }
    if not chosen:
        return f"{budget.device} was not used"
    reason: str | None = None
    worst: Excess | None = None
    for device in sorted(chosen):
        peak = chosen[device].allocated if budget.metric == "allocated" else chosen[device].reserved
        if peak is None:
            reason = f"reserved memory is not counted on {device}"
            continue
        excess = Excess(budget, device, peak.total if budget.total else peak.own, peak.before, peak.workspaces)
        if excess.over + excess.workspaces > 0 and (worst is None or excess.over > worst.over):
            worst = excess
        if not peak.exact:
            reason = f"peaks are not counted on {device}"
    return worst if worst is not None else reason


def describe_excess(excess: Excess, alive: Sequence[Contribution] = (), there: Sequence[Contribution] = ()) -> str:
    """Write the failed test's text; `alive` are the largest arrays at the end of the call, not at the peak.

    `there` tells which fixtures have what was there before the test.
    """
    budget = excess.budget
    if excess.percent:
        return f"{budget.source}: {describe_estimate(excess)}"
    what = ("total " if budget.total else "") + ("reserved " if budget.metric == "reserved" else "")
    peak, over, before = map(format_bytes, (excess.peak, excess.over, excess.before))
    lines = [
        (
            f"{budget.source}: {what}peak of {peak} on {excess.device} is {over} over the budget of "
            f"{_round(budget.bytes)} (before the test: {before} {budget.metric}{_apart(excess)})"
        )
    ]
    if there:
        lines.append(f"there before the test: {_held(there)}")
    if alive:
        lines.append(f"alive at the end of the call on {excess.device}, largest first:")
        lines += [f"  {format_bytes(part.bytes)}: {part.text}, {part.count} x" for part in alive]
    else:
        lines.append(f"no array was alive on {excess.device} at the end of the call")
    return "\n".join(lines)


def describe_estimate(excess: Excess) -> str:
    """Write by how much an estimate is over a budget."""
    about, over, limit = format_bytes(excess.peak), format_bytes(excess.over), _round(excess.budget.bytes)
    return f"estimated on the CPU: about {about} (+-{excess.percent} %), {over} over the budget of {limit}"


def finding_of(excess: Excess, alive: Sequence[Contribution] = (), there: Sequence[Contribution] = ()) -> Finding:
    """Make the report's finding of an exceeded budget. Its `bytes` are what counted against the budget."""
    budget = excess.budget
    name = f"budget {budget.metric} {excess.device.partition(':')[0]}"
    return peak_finding(
        name,
        excess.device,
        excess.peak,
        count=sum(part.count for part in alive),
        metric=budget.metric,
        contributions=tuple(alive),
        evidence=(f"{describe_estimate(excess)}, by {budget.source}",)
        if excess.percent
        else (
            f"peak: {format_bytes(excess.peak)}"
            + (", everything counted" if budget.total else " over what was before"),
            f"budget: {_round(budget.bytes)}, by {budget.source}",
            f"excess: {format_bytes(excess.over)}",
            f"before the test: {format_bytes(excess.before)} {budget.metric}",
            *([f"there before the test: {_held(there)}"] if there else []),
            *([f"not counted: {format_bytes(excess.workspaces)} of workspaces"] if excess.workspaces else []),
        ),
    )


def peak_finding(name: str, device: str, size: int, *, failed: bool = True, count: int = 0, **more: Any) -> Finding:
    """Make the finding of a peak that is too large; `name` tells what for."""
    return Finding("budget", failed, device, count, size, 0, fingerprint(name, None), **more)


def _held(there: Sequence[Contribution]) -> str:
    shown = [f"{part.text} {format_bytes(part.bytes)}" for part in there[:MOST_FIXTURES]]
    rest = there[MOST_FIXTURES:]
    more = [f"{len(rest)} more {format_bytes(sum(part.bytes for part in rest))}"] if rest else []
    return ", ".join([*shown, *more])


def _apart(excess: Excess) -> str:
    return f"; not counted: {format_bytes(excess.workspaces)} of workspaces" if excess.workspaces else ""


def describe_unchecked(reasons: Iterable[str]) -> str:
    """Write the summary's line from the reason for each unchecked budget."""
    counted = Counter(reasons)
    number = counted.total()
    was = "was" if number == 1 else "were"
    if len(counted) == 1:
        (why,) = counted
    else:
        # Frequent reasons first; a failing device may give any text.
        ranked = sorted(counted.items(), key=lambda row: (-row[1], row))
        why = ", ".join(f"{reason} ({times})" for reason, times in ranked)
    return f"gpu-leak: {count_of(number, 'budget')} {was} not checked: {why}"


def _round(size: int) -> str:
    return format_bytes(size).replace(".0 ", " ")
