"""Register CuPy with the plugin. Each member imports its code on the first call: most suites do not use CuPy."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.late import LateArrays, LateClass, LateDevices
from pytest_gpuleak.adapters.protocol import Framework
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.cupy.reading import CupyReading
    from pytest_gpuleak.adapters.probe_protocol import DeviceProbe
    from pytest_gpuleak.adapters.protocol import OriginLog, Restore, SettleStep

_RANDOM: Final = ("cupy.random._generator", "_random_states")
"""The module and the name of CuPy's default generators, by device."""


def _make_devices() -> DeviceProbe:
    from pytest_gpuleak.adapters.cupy.pools import CupyDevices

    return CupyDevices()


class CupyArrays(LateArrays):
    """Reads arrays of a CuPy that the tests have imported."""

    name = "cupy"
    needs = "cupy._core.core"

    def __init__(self) -> None:
        self._class = LateClass(self.needs, "_ndarray_base", "ndarray")

    def array_type(self) -> type | None:
        """Return the C class below ``cupy.ndarray``; None until CuPy is imported."""
        return self._class.get()

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """Note creating lines by a hook of the memory pools."""
        from pytest_gpuleak.adapters.cupy.reading import trace_origins

        return trace_origins(is_user_file)

    @cached_property
    def reading(self) -> CupyReading:
        """Return what reads the arrays."""
        from pytest_gpuleak.adapters.cupy.reading import CupyReading

        return CupyReading(self._class)


class CupyFramework(Framework):
    """The CuPy that the tests have imported."""

    name = package = "cupy"

    def __init__(self) -> None:
        self.arrays = CupyArrays()
        self.devices: LateDevices = LateDevices("cupy", "cupy", _make_devices)

    def version(self) -> str | None:
        """Return CuPy's version; None until it is imported."""
        return safe_access.plain_text(safe_access.loaded("cupy", "__version__"))

    def release_cache(self, kinds: Collection[str]) -> list[str]:
        """Free the blocks that the memory pools of used devices keep."""
        if "cuda" not in kinds or safe_access.loaded("cupy", "cuda") is None:
            return []
        from pytest_gpuleak.adapters.cupy.pools import free_blocks

        return ["cuda"] if free_blocks() else []

    def settle_steps(self) -> Sequence[SettleStep]:
        """Return the steps for the devices that CuPy has used; none before."""
        if safe_access.loaded("cupy", "cuda") is None:
            return ()
        from pytest_gpuleak.adapters.cupy.pools import device_steps

        return device_steps()

    def keep_states(self) -> Sequence[Restore]:
        """Put the default random generators aside, since cuRAND tells no state: the re-run draws from new ones."""
        states = safe_access.loaded(*_RANDOM)
        if type(states) is not dict or not states:
            return ()
        kept = dict(states)
        states.clear()

        def restore() -> None:
            now = safe_access.loaded(*_RANDOM)
            if type(now) is dict:  # `reset_states()` makes a new one
                now.clear()
                now.update(kept)

        return (restore,)
