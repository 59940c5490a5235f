"""Register JAX with the plugin. Members import longer code on the first call: most runs have no JAX."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.jax.lookup import ARRAYS, TRACERS, loaded_backends
from pytest_gpuleak.adapters.late import ArrayHandle, LateArrays, LateDevices
from pytest_gpuleak.adapters.protocol import Framework
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.collector_rules import RELAXERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from pytest_gpuleak.adapters.probe_protocol import DeviceProbe
    from pytest_gpuleak.adapters.protocol import Restore, SettleStep, StorageHandle
    from pytest_gpuleak.model.readings import ArrayReading, DeviceSpace, MemoryRange
    from pytest_gpuleak.model.source_files import Origin


class JaxArrays(LateArrays):
    """Reads arrays of a JAX that the tests have imported."""

    name = "jax"
    needs = "jax._src.array"

    def array_type(self) -> type | None:
        """Return ``jaxlib._jax.ArrayImpl``; None until JAX is imported. PRNG keys consist of such arrays."""
        return ARRAYS.get()

    def storage(self, array: object) -> int:
        """Return the array's id."""
        return id(array)

    def storage_users(self, array: object) -> int | None:
        """Return 1: each array has a key of its own."""
        return 1

    def creation_lines(self, arrays: Sequence[object], is_user_file: Callable[[str], bool]) -> Mapping[int, Origin]:
        """Return the user's line that made each array, by id."""
        lines: Mapping[int, Origin] = self.reading.lines_of_arrays(arrays, is_user_file)
        return lines

    def parts(self, arrays: Sequence[object]) -> set[int]:
        """Return the ids of the arrays that are parts of other arrays."""
        from pytest_gpuleak.adapters.jax.parts import find_parts

        return find_parts(arrays)

    @cached_property
    def reading(self) -> ModuleType:
        """Return the module that reads the arrays."""
        from pytest_gpuleak.adapters.jax import reading

        return reading


class JaxTracers(JaxArrays):
    """Reads tracers, which stand for arrays while JAX traces a function, and mean nothing once it has returned."""

    name = "jax tracers"

    def array_type(self) -> type | None:
        """Return ``jax._src.core.Tracer``; None until JAX is imported."""
        return TRACERS.get() if ARRAYS.get() is not None else None

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """Return the tracers' metadata: on no device, without memory."""
        return list(map(self.reading.read_tracer, arrays))

    def hold(self, array: object) -> StorageHandle:
        """Return a weak hold on the tracer."""
        return ArrayHandle(id(array), array)

    def creation_lines(self, arrays: Sequence[object], is_user_file: Callable[[str], bool]) -> Mapping[int, Origin]:
        """Return the user's line that made each tracer, with the function that was traced, by id."""
        lines: Mapping[int, Origin] = self.reading.lines_of_tracers(arrays, is_user_file)
        return lines

    def parts(self, arrays: Sequence[object]) -> set[int]:
        """Return none: a tracer makes no tracers of itself."""
        return set()

    def memory(self, array: object) -> MemoryRange | None:
        """Return None: a tracer has no memory."""
        return None


_SETTING = "garbage_collect_array"

_CONFIG = "jax._src.config"
_known: list[object] = [None, None]
"""The module of JAX's settings that was seen last, and its `guard_lib`."""


def _make_devices() -> DeviceProbe:
    from pytest_gpuleak.adapters.jax.devices import JaxDevices

    return JaxDevices()


def relax_garbage_guard() -> Callable[[], object] | None:
    """Let the plugin's collections log what JAX's fatal guard would end the process for; return how to undo that."""
    config = sys.modules.get(_CONFIG)
    if config is not _known[0]:
        _known[:] = config, safe_access.loaded(_CONFIG, "guard_lib")
    guards: Any = _known[1]  # asked at each collection
    if guards is None:
        return None
    try:
        own, levels = guards.thread_local_state(), guards.GarbageCollectionGuardLevel
        before = getattr(own, _SETTING)
        level = getattr(guards.global_state(), _SETTING) if before is None else before
        if level is None or level != levels.FATAL:
            return None
        setattr(own, _SETTING, levels.LOG)
    except Exception:  # noqa: BLE001 - another version's guard: the collection runs as the user has asked
        return None
    return lambda: setattr(own, _SETTING, before)


class JaxFramework(Framework):
    """The JAX that the tests have imported."""

    name = package = "jax"
    cache_packages = ("jax", "jaxlib")

    def __init__(self) -> None:
        self.arrays = JaxArrays()
        self.devices: LateDevices = LateDevices("jax", "jax._src.xla_bridge", _make_devices)
        self.tracers = JaxTracers()
        RELAXERS[_CONFIG] = relax_garbage_guard

    def version(self) -> str | None:
        """Return JAX's version; None until it is imported."""
        return None if ARRAYS.get() is None else str(safe_access.loaded("jax", "__version__") or "") or None

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
        """Return the names of the compiled programs that are alive: ``jit_step``."""
        return _Names(_programs())

    def program_instructions(self, newest: Mapping[str, int]) -> int:
        """Return how many instructions so many of the newest programs of each name have: 10 us and more for each."""
        left, count = Counter(newest), 0
        for program in _programs():
            name = _program_name(program)
            if left[name] > 0:
                left[name] -= 1
                with suppress(Exception):  # a program loaded from a file may have no module
                    parts = [part for module in program.hlo_modules() for part in module.computations()]
                    count += sum(len(part.instructions()) for part in parts)
        return count

    def counts_programs(self) -> bool:
        """Return whether there can be none: to list those of a backend takes as long as to read the heap."""
        return not loaded_backends()

    def keep_states(self) -> Sequence[Restore]:
        """Note the values of ``jax.config``; return a function that restores those that have changed.

        Random keys are values: there is no generator to put back.
        """
        config: Any = safe_access.loaded("jax", "config") if ARRAYS.get() is not None else None
        values = getattr(config, "values", None)
        if type(values) is not dict:
            return []
        saved = dict(values)

        def restore() -> None:
            current = config.values
            for name, value in saved.items():
                if current.get(name) is not value and current.get(name) != value:
                    with suppress(Exception):  # a setting that cannot change after the first use of a backend
                        config.update(name, value)

        return [restore]

    def is_distributed(self) -> bool:
        """Return whether ``jax.distributed`` is initialised for several processes."""
        processes = getattr(safe_access.loaded("jax._src.distributed", "global_state"), "num_processes", None)
        return type(processes) is int and processes > 1


def _programs() -> list[Any]:
    """Return the compiled programs that are alive: of each backend the newest first."""
    programs: list[Any] = []
    for client in loaded_backends():
        with suppress(Exception):  # a plugin that does not list its programs
            programs.extend(client.live_executables())
    return programs


class _Names(Sequence[str]):
    """The names of programs, each read once it is asked for: 2 us each, of thousands that are often only counted."""

    def __init__(self, programs: list[object]) -> None:
        self._programs = programs

    def __len__(self) -> int:
        return len(self._programs)

    def __getitem__(self, place: Any) -> Any:
        return _program_name(self._programs[place])


def _program_name(program: object) -> str:
    try:
        return str(program.hlo_modules()[0].name)  # type: ignore[attr-defined] # a LoadedExecutable of jaxlib
    except Exception:  # noqa: BLE001 - a program loaded from a file may have no module
        return "a program without a name"
