"""Reach a framework once the tests have imported it: its class, its devices and its arrays. Most suites have one framework."""

from __future__ import annotations

import sys
import weakref
from contextlib import nullcontext
from types import NoneType
from typing import TYPE_CHECKING, Protocol

from pytest_gpuleak.adapters.arrays import ALWAYS
from pytest_gpuleak.adapters.probe_protocol import DeviceProbe
from pytest_gpuleak.adapters.protocol import ArrayFramework
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.probe_protocol import DeviceReading
    from pytest_gpuleak.adapters.protocol import OriginLog, StorageHandle
    from pytest_gpuleak.model.readings import ArrayReading, MemoryRange


class LateClass:
    """The first of `names` that is a class in an extension `module`, and that `accepts` takes for the framework's own.

    It stays known when a test removes the module.
    """

    def __init__(self, module: str, *names: str, accepts: Callable[[type], bool] | None = None) -> None:
        self._name = module
        self._names = names
        self._accepts = accepts
        self._module: Callable[[], object] = lambda: None
        self._found: type | None = None

    def get(self) -> type | None:
        """Return the class; None until its module is imported."""
        module = sys.modules.get(self._name)
        if module is not self._module():
            self._look_up(module)
        return self._found

    def _look_up(self, module: object) -> None:
        namespace = safe_access.module_dict(module) or {}
        for name in self._names:
            found = namespace.get(name)
            if safe_access.is_a(found, type) and (self._accepts is None or self._accepts(found)):  # type: ignore[arg-type]
                self._found, self._module = found, weakref.ref(module)
                return


class LateDevices(DeviceProbe):
    """A device probe that `make` creates with the first reading after `module` is in `sys.modules`."""

    own_allocator = True
    tells_use = False

    def __init__(self, name: str, module: str, make: Callable[[], DeviceProbe]) -> None:
        self.name = name
        self.needs = module
        self._make = make
        self._probe: DeviceProbe | None = None
        self._met = False

    def read(self) -> dict[str, DeviceReading]:
        """Return the readings of the devices in use; none before the framework is imported."""
        if self._probe is None:
            if self.needs not in sys.modules:
                return {}
            self._probe = self._make()
            self.needs = ALWAYS
        readings = self._probe.read()
        if readings and not self._met:
            self._met, self.in_heap = True, self._probe.in_heap
        self.idle, self.absent = self._probe.idle, self._probe.absent
        return readings

    def begin_peaks(self) -> None:
        """Restart the peaks."""
        if self._probe is not None:
            self._probe.begin_peaks()

    def stop(self) -> None:
        """Stop the probe."""
        if self._probe is not None:
            self._probe.stop()


class _Reading(Protocol):
    def storage(self, array: object, /) -> int: ...
    def read_many(self, arrays: Sequence[object], /) -> list[ArrayReading | None]: ...
    def hold(self, array: object, /) -> StorageHandle: ...
    def memory(self, array: object, /) -> MemoryRange | None: ...
    def storage_users(self, array: object, /) -> int | None: ...


class LateArrays(ArrayFramework):
    """Arrays read by the functions of `reading`, a module or an object, which a subclass imports."""

    @property
    def reading(self) -> _Reading:
        """Return what reads the arrays."""
        raise NotImplementedError

    def storage(self, array: object) -> int:
        """Return the key of the memory behind the array."""
        return self.reading.storage(array)

    def read(self, array: object) -> ArrayReading | None:
        """Return the metadata; None if the array owns no memory."""
        return self.read_many((array,))[0]

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """Return the metadata of each array."""
        return self.reading.read_many(arrays)

    def hold(self, array: object) -> StorageHandle:
        """Return a weak handle on the memory behind the array."""
        return self.reading.hold(array)

    def memory(self, array: object) -> MemoryRange | None:
        """Return where the memory behind the array is; None if it cannot be told without side effects."""
        return self.reading.memory(array)

    def storage_users(self, array: object) -> int | None:
        """Return how many share the memory behind the array; None if unknown."""
        return self.reading.storage_users(array)

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """Note nothing: the framework tells nobody when it makes an array, or the array knows its line."""
        return nullcontext({})


class ArrayHandle:
    """A weak hold on an array instead of its memory, which has no object that allows weak references."""

    __slots__ = ("array", "storage")

    def __init__(self, storage: int, array: object) -> None:
        self.storage = storage
        self.array: Callable[[], object | None]
        try:
            self.array = weakref.ref(array)
        except TypeError:  # of a class without weak references nothing is known
            self.array = NoneType

    def alive(self) -> bool:
        """Return whether the array still exists."""
        return self.array() is not None
