"""The settle step of a framework's devices: one call that waits for them, or frees what a library keeps on them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclasses.dataclass(frozen=True)
class DeviceStep:
    """A `SettleStep` that calls `act`, which raises where it may not act now; `what` says in words what it waits for."""

    act: Callable[[], object]
    what: str = "waiting for the device"
    collects: bool = False

    def steps(self) -> Iterator[None]:
        """Act once."""
        try:
            self.act()
        except Exception:  # noqa: BLE001 - the next reading reports a failed device
            return
        yield
