"""Register MLX with the plugin. Each member imports its code on the first call: most suites do not use MLX."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.late import LateArrays, LateClass, LateDevices
from pytest_gpuleak.adapters.protocol import Framework
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytest_gpuleak.adapters.mlx.reading import MlxReading
    from pytest_gpuleak.adapters.probe_protocol import DeviceProbe
    from pytest_gpuleak.adapters.protocol import Restore, SettleStep


class MlxArrays(LateArrays):
    """Reads arrays of an MLX that the tests have imported. Never evaluates an array."""

    name = "mlx"
    needs = "mlx.core"

    def __init__(self) -> None:
        self._class = LateClass(self.needs, "array")

    def array_type(self) -> type | None:
        """Return ``mlx.core.array``; None until MLX is imported."""
        return self._class.get()

    def storage_many(self, arrays: Sequence[object]) -> list[int]:
        """Return the key of the buffer behind each array."""
        return self.reading.storage_many(arrays)

    @cached_property
    def reading(self) -> MlxReading:
        """Return what reads the arrays."""
        from pytest_gpuleak.adapters.mlx.reading import MlxReading

        return MlxReading(self._class)


def _make_devices() -> DeviceProbe:
    from pytest_gpuleak.adapters.mlx.devices import MlxDevices

    return MlxDevices()


class MlxFramework(Framework):
    """The MLX that the tests have imported."""

    name = package = "mlx"

    def __init__(self) -> None:
        self.arrays = MlxArrays()
        self.devices: LateDevices = LateDevices("mlx", "mlx.core", _make_devices)

    def version(self) -> str | None:
        """Return MLX's version; None until it is imported."""
        return safe_access.plain_text(safe_access.loaded("mlx.core", "__version__"))

    def release_cache(self, kinds: Collection[str]) -> list[str]:
        """Free the buffers that the allocator keeps."""
        if "mlx" not in kinds:
            return []
        from pytest_gpuleak.adapters.mlx.devices import clear_cache

        return ["mlx"] if clear_cache() else []

    def settle_steps(self) -> Sequence[SettleStep]:
        """Return the step that waits for what was dispatched; none before MLX has handed out memory."""
        if safe_access.loaded("mlx.core", "array") is None:
            return ()
        from pytest_gpuleak.adapters.mlx.devices import device_steps

        return device_steps()

    def keep_states(self) -> Sequence[Restore]:
        """Note the random generator's state; return the function that restores it."""
        if safe_access.loaded("mlx.core", "array") is None:
            return ()
        from pytest_gpuleak.adapters.mlx.reading import keep_random_state

        return keep_random_state()
