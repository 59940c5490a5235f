"""Which of the machine's devices CUDA numbers how, before CUDA itself has started. Pure: UUIDs and settings in, UUIDs out.

As torch does it (torch/cuda/__init__.py, ``_parse_visible_devices`` and ``_transform_uuid_to_ordinals``), with MIG as in
NVIDIA's Multi-Instance GPU User Guide, "CUDA Device Enumeration".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class PhysicalDevice(NamedTuple):
    """One of the machine's devices.

    Attributes:
        uuid: ``GPU-...``.
        model: the device's name.
        bus: its PCI address, which sorts as CUDA sorts by ``PCI_BUS_ID``.
        partitions: UUIDs of its MIG devices; None where MIG is off.
    """

    uuid: str
    model: str
    bus: str
    partitions: tuple[str, ...] | None = None


def match_devices(devices: Sequence[PhysicalDevice], visible: str | None, order: str | None) -> list[str] | None:
    """The UUIDs of the devices that CUDA shows, in its order.

    None where it cannot be told: CUDA sorts by speed unless it is told otherwise, and the devices are of several kinds.
    Of devices of one kind it keeps the order of the bus.

    Args:
        devices: the machine's.
        visible: the value of ``CUDA_VISIBLE_DEVICES``; None where it is not set.
        order: the value of ``CUDA_DEVICE_ORDER``; None where it is not set.
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
    """What CUDA shows of these devices: where any is partitioned, one part alone, and no whole device beside it."""
    for device in devices:
        if device.partitions:
            return [device.partitions[0]]
    return [device.uuid for device in devices if device.partitions is None]


def _numbers(visible: str | None, count: int) -> list[int]:
    """The indices of a list such as ``1,0``: a number that is no device's ends it, one given twice empties it."""
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
    """The UUIDs that begin as the elements do: one that is unknown or fits several ends the list, a repeated one empties it."""
    chosen: list[str] = []
    for element in visible.split(","):
        fits = [uuid for uuid in uuids if uuid.startswith(element)]
        if not element.startswith(prefix) or len(fits) != 1:
            break
        if fits[0] in chosen:
            return []
        chosen += fits
    return chosen
