"""Register TensorFlow with the plugin. Each member imports its code on the first call."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.late import LateArrays, LateDevices
from pytest_gpuleak.adapters.protocol import Framework
from pytest_gpuleak.adapters.tensorflow.lookup import (
    CONTEXT,
    OPS,
    TENSORS,
    count_traces,
    eager_context,
    loaded_names,
    traced_functions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    from pytest_gpuleak.adapters.probe_protocol import DeviceProbe
    from pytest_gpuleak.adapters.protocol import OriginLog, Restore, SettleStep
    from pytest_gpuleak.adapters.tensorflow.devices import CpuPool


class TensorFlowArrays(LateArrays):
    """Reads eager tensors. A variable is read through its handle, an eager tensor of the dtype `resource`."""

    name = "tensorflow"
    needs = OPS

    def array_type(self) -> type | None:
        """Return the class of eager tensors; None until TensorFlow is imported."""
        return TENSORS.get()

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """Note creating lines by a callback of each eager operation."""
        from pytest_gpuleak.adapters.tensorflow.operations import trace_origins

        return trace_origins(is_user_file)

    @cached_property
    def reading(self) -> ModuleType:
        """Return the module that reads the tensors."""
        from pytest_gpuleak.adapters.tensorflow import reading

        return reading


def _make_devices() -> DeviceProbe:
    from pytest_gpuleak.adapters.tensorflow.devices import TensorFlowDevices

    return TensorFlowDevices()


class TensorFlowFramework(Framework):
    """The TensorFlow that the tests have imported, and Keras over it."""

    name = package = "tensorflow"
    companions = ("keras", "tf_keras")
    cache_packages = ("tensorflow", "keras")

    def __init__(self) -> None:
        self.arrays = TensorFlowArrays()
        self.devices: LateDevices = LateDevices("tensorflow", CONTEXT, _make_devices)

    def version(self) -> str | None:
        """Return TensorFlow's version; None until it is imported."""
        return str(loaded_names("tensorflow").get("__version__", "")) or None

    def settle_steps(self) -> Sequence[SettleStep]:
        """Return the step that waits for operations that run in the background; none before a device is used."""
        if eager_context() is None:
            return ()
        from pytest_gpuleak.adapters.tensorflow.devices import background_steps

        return background_steps()

    def program_names(self) -> Sequence[str]:
        """Return the names of the functions whose traces are alive, once for each trace."""
        return traced_functions() if CONTEXT in sys.modules else ()

    def program_count(self) -> int:
        """Return the number of traces that are alive."""
        return count_traces() if CONTEXT in sys.modules else 0

    def pool_growth(self, grown: int) -> int:
        """Return how many of `grown` bytes of the heap TensorFlow's pool for the CPU may have taken."""
        context = eager_context()
        return 0 if context is None else self._cpu_pool.growth(grown, context)

    @cached_property
    def _cpu_pool(self) -> CpuPool:
        from pytest_gpuleak.adapters.tensorflow.devices import CpuPool

        return CpuPool()

    def keep_states(self) -> Sequence[Restore]:
        """Note the seeds, the global generator and Keras's counters of names; return functions that restore them."""
        if TENSORS.get() is None:
            return ()
        from pytest_gpuleak.adapters.tensorflow.states import keep_states

        return keep_states()

    def is_distributed(self) -> bool:
        """Return whether the context's cluster has several tasks, which wait for each other."""
        context: Any = eager_context()
        state = {} if context is None else vars(context)
        for name in ("_server_def", "_collective_ops_server_def"):
            server = state.get(name)
            if server is not None and sum(len(job.tasks) for job in server.cluster.job) > 1:
                return True
        return False
