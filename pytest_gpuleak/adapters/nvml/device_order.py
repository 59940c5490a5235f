"""Predict CUDA's numbering of the devices before CUDA has started. Pure: takes UUIDs and settings, returns UUIDs.

Follows torch (torch/cuda/__init__.py, ``_parse_visible_devices`` and ``_transform_uuid_to_ordinals``), and for MIG
NVIDIA's Multi-Instance GPU User Guide, "CUDA Device Enumeration".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class PhysicalDevice(NamedTuple):
    """A device: `bus` sorts like CUDA's ``PCI_BUS_ID``; `partitions` are UUIDs of MIG devices, None if MIG is off."""

    uuid: str
    model: str
    bus: str
    partitions: tuple[str, ...] | None = None


def match_devices(devices: Sequence[PhysicalDevice], visible: str | None, order: str | None) -> list[str] | None:
    """Return the UUIDs of the devices that CUDA shows, in its order; None if the order is unknown.

    The order is unknown for devices of several kinds, which CUDA sorts by speed unless told otherwise. `visible` and
    `order` are ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER``.
    """
    ordered = sorted(devices, key=lambda device: device.bus)
    if visible is not None and visible.startswith("MIG-"):
        return _abbreviated(visible, "MIG-", [part for device in ordered for part in device.partitions or ()])[:1]
    if visible is not None and visible.startswith("GPU-"):
        names = _abbreviated(visible, "GPU-", [device.uuid for device in ordered])
        return _enumerated([device for name in names for device in ordered if device.uuid == name])
    numbers = _numbers(visible, len(ordered))
    if not numbers:
        return []
    if len({device.model for device in ordered}) > 1 and (order or "").strip() != "PCI_BUS_ID":
        return None
    return _enumerated([ordered[number] for number in numbers])


def _enumerated(devices: Sequence[PhysicalDevice]) -> list[str]:
    """Return the UUIDs that CUDA shows: if any device is partitioned, only its first part and no whole device."""
    for device in devices:
        if device.partitions:
            return [device.partitions[0]]
    return [device.uuid for device in devices if device.partitions is None]


def _numbers(visible: str | None, count: int) -> list[int]:
    """Return the indices of a list such as ``1,0``: an unknown index ends the list, a repeated index empties it."""
    if visible is None:
        return list(range(count))
    numbers: list[int] = []
    for element in visible.split(","):
        match = re.match(r"\+?(\d+)", element.strip())
        if match is None:
            break
        number = int(match[1])
        if number in numbers:
            return []
        if number >= count:
            break
        numbers.append(number)
    return numbers


def _abbreviated(visible: str, prefix: str, uuids: Sequence[str]) -> list[str]:
    """Return the UUIDs with these prefixes: an unknown or ambiguous prefix ends it, a repeated UUID empties it."""
    chosen: list[str] = []
    for element in visible.split(","):
        fits = [uuid for uuid in uuids if uuid.startswith(element)]
        if not element.startswith(prefix) or len(fits) != 1:
            break
        if fits[0] in chosen:
            return []
        chosen += fits
    return chosen
