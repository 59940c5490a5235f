"""Encode findings as JSON-ready data, and decode them."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Final

from pytest_gpuleak.model.findings import (
    ArrayInfo,
    Autograd,
    BaselineState,
    BaselineStatus,
    Contribution,
    Finding,
    HelperProcess,
    Holder,
    Judged,
    Origin,
    PathStep,
    Peak,
    PeakMoment,
    PeakPart,
    PeakStep,
)

_STATUS_LINE = re.compile(r"(known|grown|new) \(baseline\): (.*)", re.DOTALL)

_PARTS: Final[dict[str, type[Any]]] = {
    "tensors": ArrayInfo,
    "created": Origin,
    "holder": Holder,
    "other_holders": Holder,
    "path": PathStep,
    "autograd": Autograd,
    "contributions": Contribution,
    "judged": Judged,
    "peak": Peak,
    "moment": PeakMoment,
    "parts": PeakPart,
    "process": HelperProcess,
    "steps": PeakStep,
}
"""Dataclasses of the fields that hold one or several."""


def encode_finding(finding: Finding) -> dict[str, Any]:
    """Encode a finding as JSON-ready dicts, lists and scalars."""
    fields = {**vars(finding), "evidence": finding.evidence_lines, "edit": finding.edit}
    del fields["baseline"]
    return {name: _encode(value) for name, value in fields.items()}


def _encode(value: object) -> object:
    if value is None or isinstance(value, (str, int)):  # nearly all values; what follows is slow
        return value
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return {name: _encode(item) for name, item in vars(value).items()} if dataclasses.is_dataclass(value) else value


def decode_finding(data: dict[str, Any]) -> Finding:
    """Decode what `encode_finding` returned. Raises TypeError for anything else."""
    # The holders have the line to edit.
    finding: Finding = _decode(Finding, {name: value for name, value in data.items() if name != "edit"})
    return with_baseline_status(finding)


def encode_peak(peak: Peak) -> dict[str, Any]:
    """Encode a peak as JSON-ready dicts, lists and scalars."""
    return {name: _encode(value) for name, value in vars(peak).items()}


def decode_peak(data: dict[str, Any]) -> Peak:
    """Decode what `encode_peak` returned. Raises TypeError for anything else."""
    peak: Peak = _decode(Peak, data)
    return peak


def _decode(kind: type[Any], data: dict[str, Any]) -> Any:
    fields = {**data}
    for name, value in data.items():
        part = _PARTS.get(name)
        if isinstance(value, (list, tuple)):
            fields[name] = tuple(value if part is None else [_decode(part, item) for item in value])
        elif part is not None and value is not None:
            fields[name] = _decode(part, value)
    return kind(**fields)


def with_baseline_status(finding: Finding) -> Finding:
    """Return a finding that was read from JSON, with the baseline's line of its evidence as a field."""
    found = next(filter(None, map(_STATUS_LINE.fullmatch, finding.evidence)), None)
    if found is None:
        return finding
    state: BaselineState = "known" if found[1] == "known" else "grown" if found[1] == "grown" else "new"
    others = tuple(line for line in finding.evidence if _STATUS_LINE.fullmatch(line) is None)
    return dataclasses.replace(finding, baseline=BaselineStatus(state, found[2]), evidence=others)
