"""Encode records and what they consist of as JSON-ready data, and decode them."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Final

from pytest_gpuleak.model.devices import DeviceWait, Occupied
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
    PathStep,
)
from pytest_gpuleak.model.helpers import HelperGrowth, HelperReading
from pytest_gpuleak.model.peak_parts import Peak, PeakMoment, PeakPart, PeakStep
from pytest_gpuleak.model.source_files import Origin

_STATUS_LINE = re.compile(r"(known|grown|new) \(baseline\): (.*)", re.DOTALL)

_PARTS: Final[dict[str, type[Any]]] = {
    "findings": Finding,
    "helpers": HelperReading,
    "growth": HelperGrowth,
    "occupied": Occupied,
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
    "device_wait": DeviceWait,
    "process": HelperProcess,
    "steps": PeakStep,
}
"""Classes of the fields that hold one or several."""


def encode_finding(finding: Finding) -> dict[str, Any]:
    """Encode a finding as JSON-ready dicts, lists and scalars."""
    fields = {**vars(finding), "evidence": finding.evidence_lines, "edit": finding.edit}
    del fields["baseline"]
    return {name: encode(value) for name, value in fields.items()}


def encode(value: object) -> Any:
    """Encode dataclasses and named tuples, one in another, as JSON-ready dicts, lists and scalars."""
    if value is None or isinstance(value, (str, int)):  # nearly all values; what follows is slow
        return value
    if isinstance(value, Finding):
        return encode_finding(value)
    named = getattr(value, "_asdict", None)
    if named is None and isinstance(value, tuple):
        return [encode(item) for item in value]
    fields = named() if named is not None else vars(value) if dataclasses.is_dataclass(value) else None
    return value if fields is None else {name: encode(item) for name, item in fields.items()}


def decode_finding(data: dict[str, Any]) -> Finding:
    """Decode what `encode_finding` returned. Raises TypeError for anything else."""
    finding: Finding = decode(Finding, data)
    return finding


def decode(kind: type[Any], data: dict[str, Any]) -> Any:
    """Decode what `encode` returned for an object of this class. Raises TypeError for anything else."""
    fields = {**data}
    if kind is Finding:
        fields.pop("edit", None)  # the holders have the line to edit
    for name, value in data.items():
        part = _PARTS.get(name)
        if isinstance(value, (list, tuple)):
            fields[name] = tuple(value if part is None else [decode(part, item) for item in value])
        elif part is not None and value is not None:
            fields[name] = decode(part, value)
    return with_baseline_status(kind(**fields)) if kind is Finding else kind(**fields)


def with_baseline_status(finding: Finding) -> Finding:
    """Return a finding that was read from JSON, with the baseline's line of its evidence as a field."""
    found = next(filter(None, map(_STATUS_LINE.fullmatch, finding.evidence)), None)
    if found is None:
        return finding
    state: BaselineState = "known" if found[1] == "known" else "grown" if found[1] == "grown" else "new"
    others = tuple(line for line in finding.evidence if _STATUS_LINE.fullmatch(line) is None)
    return dataclasses.replace(finding, baseline=BaselineStatus(state, found[2]), evidence=others)
