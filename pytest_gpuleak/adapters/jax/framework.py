"""Register JAX with the plugin. Each member imports its code on the first call: most runs have no JAX."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.jax.arrays import JaxArrays, JaxTracers
from pytest_gpuleak.adapters.jax.lookup import loaded_arrays, member
from pytest_gpuleak.adapters.late_devices import LateDevices
from pytest_gpuleak.adapters.protocol import Framework
from pytest_gpuleak.heap.own_collections import RELAXERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuleak.adapters.probe_protocol import DeviceProbe
    from pytest_gpuleak.adapters.protocol import Restore, SettleStep
    from pytest_gpuleak.model.readings import DeviceSpace


def _make_devices() -> DeviceProbe:
    from pytest_gpuleak.adapters.jax.devices import JaxDevices

    return JaxDevices()


def _relax_garbage_guard() -> Callable[[], object] | None:
    from pytest_gpuleak.adapters.jax.garbage_guard import relax_garbage_guard

    return relax_garbage_guard()


class JaxFramework(Framework):
    """The JAX that the tests have imported."""

    name = package = "jax"
    cache_packages = ("jax", "jaxlib")

    def __init__(self) -> None:
        self.arrays = JaxArrays()
        self.tracers = JaxTracers()
        RELAXERS["jax._src.config"] = _relax_garbage_guard

    @cached_property
    def devices(self) -> LateDevices:
        """Return the probe of JAX's devices."""
        return LateDevices("jax", "jax._src.xla_bridge", _make_devices)

    def version(self) -> str | None:
        """Return JAX's version; None until it is imported."""
        return None if loaded_arrays() is None else str(member("jax", "__version__") or "") or None

    def device_names(self) -> list[str]:
        """Return the devices of initialised backends, apart from the CPU, with their models."""
        from pytest_gpuleak.adapters.jax.devices import device_names

        return device_names()

    def device_space(self, device: str) -> DeviceSpace | None:
        """Return the free memory of a device in use; None if unknown."""
        from pytest_gpuleak.adapters.jax.devices import device_space

        return device_space(device)

    def settle_steps(self) -> Sequence[SettleStep]:
        """Return a step that waits for the devices; none where the CPU is all that is in use."""
        from pytest_gpuleak.adapters.jax.devices import device_steps

        return device_steps()

    def program_names(self) -> Sequence[str]:
        """Return the names of the compiled programs that are alive."""
        from pytest_gpuleak.adapters.jax.programs import program_names

        return program_names()

    def keep_states(self) -> Sequence[Restore]:
        """Note the values of ``jax.config``; return a function that restores those that have changed."""
        from pytest_gpuleak.adapters.jax.states import keep_states

        return keep_states()

    def is_distributed(self) -> bool:
        """Return whether ``jax.distributed`` is initialised for several processes."""
        processes = member("jax._src.distributed", "global_state", "num_processes")
        return type(processes) is int and processes > 1
