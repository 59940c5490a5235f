"""Guard the members of a conftest.py's framework, and check and copy their values (its arrays: `adapters.guarded`)."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pytest_gpuleak.adapters.guarded import (
    WrongAnswer,
    complete,
    entered,
    of_class,
    of_type,
    shown,
    size_of,
    size_or_none,
    text_of,
    whole,
)
from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading
from pytest_gpuleak.adapters.protocol import Framework, StoppedError
from pytest_gpuleak.heap.classes import is_kind_of
from pytest_gpuleak.heap.hidden_references import Link
from pytest_gpuleak.model.findings import Autograd, Contribution, Origin
from pytest_gpuleak.model.readings import HOST, DeviceSpace
from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpuleak.adapters.guarded import GuardMaker
    from pytest_gpuleak.adapters.protocol import (
        AllocationHistory,
        ArrayFramework,
        NativeObjects,
        ReferenceFinder,
        Restore,
        SettleStep,
    )
    from pytest_gpuleak.heap.budget import Budget


_OWN: Final = ("free_workspaces", "pool_growth", "node_count", "counts_programs", "library_states")
MEMBERS: Final = tuple(name for name in vars(Framework) if not (name.startswith("_") or name in _OWN))
DEVICE_MEMBERS: Final = ("read", "used", "begin_peaks", "stop")

TEXT_LIMIT: Final = 200
"""Characters of a framework's text that are kept."""

_FINDER_MEMBERS: Final = ("owner_counter", "take_census", "held_alone", "may_close_rings", "root_of")

MAX_STEPS: Final = 100
"""Yields of one settle step that are followed: a generator may never end."""

_END: Any = object()
_T = TypeVar("_T")


def is_whole(answer: object) -> bool:
    """Return whether an object is meant as a `Framework` rather than as arrays alone. Runs none of its code."""
    kind = inspect.getattr_static(answer, "arrays", None)
    return kind is not None and inspect.getattr_static(answer, "array_type", None) is None


def missing_members(framework: object) -> list[str]:
    """Return the members of `Framework` that an object lacks. Runs none of its code."""
    return [name for name in MEMBERS if inspect.getattr_static(framework, name, _END) is _END]


class _Guarded:
    """An object whose members are asked behind guards, which `guard` returns by a member's name."""

    def __init__(self, asked: Any, guard: GuardMaker) -> None:
        self._asked = asked
        self._guard = guard

    def _ask(self, member: str, check: Callable[[Any], _T], otherwise: _T, *arguments: object) -> _T:
        with self._guard(member):
            return check(getattr(self._asked, member)(*arguments))
        return otherwise


class GuardedFramework(_Guarded, Framework):
    """A framework behind guards. Raises TypeError if arrays lack a method."""

    def __init__(
        self,
        framework: Framework,
        name: str,
        guard: GuardMaker,
        guard_arrays: Callable[[ArrayFramework], ArrayFramework],
    ) -> None:
        super().__init__(framework, guard)
        self.name = name
        self.arrays = guard_arrays(complete(framework.arrays))
        storages = framework.storages
        self.storages = None if storages is None else guard_arrays(complete(storages))
        tracers = framework.tracers
        self.tracers = None if tracers is None else guard_arrays(complete(tracers))
        self._devices: DeviceProbe | None = None
        with guard("devices"):
            devices = framework.devices
            if devices is not None:
                self._devices = _GuardedDevices(complete(devices, DEVICE_MEMBERS, WrongAnswer), name)

    @property
    def devices(self) -> DeviceProbe | None:
        """Return the device probe that the framework had when it was added."""
        return self._devices

    @property
    def broken(self) -> str:
        """Return why nothing can be checked, with the framework's name; empty where the framework fails."""
        with self._guard("broken"):
            why = _clean(self._asked.broken)
            return f"{self.name}: {why}" if why else ""
        return ""

    def device_space(self, device: str) -> DeviceSpace | None:
        """Return the space on a device; None where the framework fails."""
        return self._ask("device_space", _checked_space, None, device)

    def release_cache(self, kinds: Collection[str]) -> list[str]:
        """Release cached memory; return the kinds released, none where the framework fails."""
        return self._ask("release_cache", lambda released: list(map(text_of, released)), [], kinds)

    def settle_steps(self) -> list[SettleStep]:
        """Return the guarded settle steps; none where the framework fails."""
        return self._ask("settle_steps", lambda steps: [_GuardedStep(one, self.name, self._guard) for one in steps], [])

    def program_names(self) -> list[str]:
        """Return the names of its compiled programs; none where the framework fails."""
        return self._ask("program_names", lambda names: [_clean(name) for name in names], [])

    def program_count(self) -> int:
        """Return the number of its compiled programs; 0 where the framework fails."""
        return self._ask("program_count", size_of, 0)

    def counts_programs(self) -> bool:
        """Return whether the framework's class counts its programs. Runs none of its code."""
        return Framework.counts_programs(self._asked)

    def reference_finders(self) -> list[ReferenceFinder]:
        """Return the guarded reference finders; none where the framework fails."""
        return self._ask("reference_finders", lambda found: [_GuardedFinder(one, self._guard) for one in found], [])

    def unread_arrays(self, devices: set[str]) -> Mapping[str, list[object] | None]:
        """Return its arrays on these devices that only native code knew; none where the framework fails."""
        with self._guard("unread_arrays"):
            kind = self.arrays.array_type()
            found = of_type(self._asked.unread_arrays(set(devices)), dict)
            if kind is None or not devices.issuperset(found):
                raise WrongAnswer("returned arrays of devices that it was not asked for")
            for array in [one for arrays in found.values() if arrays is not None for one in of_type(arrays, list)]:
                if not is_kind_of(type(array), kind):
                    raise WrongAnswer(f"returned {shown(array)}, accepted are its arrays")
            return {device: None if arrays is None else list(arrays) for device, arrays in found.items()}
        return {}

    def graph_size(self, arrays: Sequence[object], budget: Budget) -> Autograd | None:
        """Return the graph size as plain numbers; None where the framework fails."""
        return self._ask("graph_size", _checked_graph, None, arrays, budget)

    def allocation_history(self) -> AllocationHistory | None:
        """Return the guarded recorder; None where the framework fails."""
        found = self._ask("allocation_history", lambda history: history, None)
        return None if found is None else _GuardedHistory(found, self._guard)

    def keep_states(self) -> list[Restore]:
        """Note the framework's states; return the guarded functions that restore them."""
        return self._ask("keep_states", self._guarded_restores("keep_states"), [])

    def keep_values(self, roots: Callable[[], Mapping[str, object]]) -> list[Restore]:
        """Note the content of models that tests share; return the guarded functions that restore it."""
        return self._ask("keep_values", self._guarded_restores("keep_values"), [], roots)

    def _guarded_restores(self, member: str) -> Callable[[Sequence[Restore]], list[Restore]]:
        def guarded(restore: Restore) -> Restore:
            def put_back() -> None:
                with self._guard(member):
                    restore()

            return put_back

        return lambda restores: list(map(guarded, restores))

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Enter the framework's context. Errors of the body pass."""
        with entered(self._asked.in_place, self._guard, "in_place"):
            yield

    def is_distributed(self) -> bool:
        """Return whether this process is one rank of several; False where the framework fails."""
        return self._ask("is_distributed", lambda answer: of_type(answer, bool), False)


class ArraysAlone(Framework):
    """A framework for a conftest.py that provides arrays alone."""

    def __init__(self, arrays: ArrayFramework) -> None:
        self.name = arrays.name
        self.arrays = arrays


class _GuardedDevices(DeviceProbe):
    """A device probe whose values are checked and whose errors are ordinary: the engine drops a probe that raises."""

    def __init__(self, devices: DeviceProbe, name: str) -> None:
        self.name = f"the devices of the framework {name!r}"
        self.idle = False
        self.absent: dict[str, str] = {}
        self._devices = devices

    def read(self) -> dict[str, DeviceReading]:
        with _ordinary_errors():
            readings = of_type(self._devices.read(), dict)
            found = {_device(device): _checked_reading(reading) for device, reading in readings.items()}
            self.idle = getattr(self._devices, "idle", False) is True
            absent: Mapping[object, object] = getattr(self._devices, "absent", {})
            self.absent = {_device(device): _clean(why) for device, why in absent.items()}
        return found

    def used(self, device: str) -> int | None:
        with _ordinary_errors():
            return size_or_none(self._devices.used(device))

    def begin_peaks(self) -> None:
        with _ordinary_errors():
            self._devices.begin_peaks()

    def stop(self) -> None:
        with _ordinary_errors():
            self._devices.stop()


class _GuardedStep:
    def __init__(self, step: SettleStep, name: str, guard: GuardMaker) -> None:
        self.collects = bool(step.collects)
        self.what = f"a settle step of the framework {name!r}"
        self._step = step
        self._guard = guard

    def steps(self) -> Iterator[None]:
        """Run the step, `MAX_STEPS` yields at most. Raises StoppedError where the caller's limit ended it."""
        steps: Iterator[None] | None = None
        with self._guard("settle_steps"):
            steps = iter(self._step.steps())
        if steps is None:
            return
        for _ in range(MAX_STEPS):
            stopped: StoppedError | None = None
            ended = True
            with self._guard("settle_steps"):
                try:
                    ended = next(steps, _END) is _END
                except StoppedError as error:
                    stopped = error
            if stopped is not None:
                raise stopped
            if ended:
                return
            yield
        with self._guard("settle_steps"):
            raise WrongAnswer(f"yields more than {MAX_STEPS} steps")


class _GuardedHistory(_Guarded):
    _entered = False

    def __enter__(self) -> _GuardedHistory:  # noqa: PYI034 - typing has Self from 3.11 only
        with self._guard("allocation_history"):
            self._asked.__enter__()
            self._entered = True
        return self

    def __exit__(self, *exception: object) -> None:
        if self._entered:
            with self._guard("allocation_history"):
                self._asked.__exit__(None, None, None)

    def blocks_alive(self, device: str, is_user_file: Callable[[str], bool]) -> tuple[Contribution, ...] | None:
        if self._entered:
            with self._guard("blocks_alive"):
                parts: Any = self._asked.blocks_alive(device, is_user_file)
                return None if parts is None else tuple(_checked_part(of_class(part, Contribution)) for part in parts)
        return None

    def save(self, folder: Path, nodeid: str) -> None:
        if self._entered:
            with self._guard("save"):
                self._asked.save(folder, nodeid)


class _GuardedFinder(_Guarded):
    """A reference finder behind guards. Raises WrongAnswer for a finder that lacks a method."""

    def __init__(self, finder: ReferenceFinder, guard: GuardMaker) -> None:
        super().__init__(complete(finder, _FINDER_MEMBERS, WrongAnswer), guard)

    def owner_counter(self) -> Callable[[object], int | None]:
        with self._guard("owner_counter"):
            count = self._asked.owner_counter()

            def owners(value: object) -> int | None:
                with self._guard("owner_counter"):
                    found: object = count(value)
                    return None if found is None else whole(found, "a number or None")
                return None

            return owners
        return lambda _: None

    def take_census(self, budget: Budget) -> NativeObjects | None:
        found = self._ask("take_census", lambda natives: natives, None, budget)
        return None if found is None else _GuardedNatives(found, self._guard)

    def held_alone(self, arrays: list[Any]) -> set[int]:
        return self._ask("held_alone", lambda ids: {whole(one, "a set of ids") for one in ids}, set(), arrays)

    def may_close_rings(self, arrays: Sequence[object]) -> bool:
        return self._ask("may_close_rings", lambda answer: of_type(answer, bool), False, arrays)

    def root_of(self, value: object) -> str:
        return self._ask("root_of", _clean, "", value)


class _GuardedNatives(_Guarded):
    def lists(self) -> list[list[Any]]:
        return self._ask("lists", lambda lists: [of_type(one, list) for one in lists], [])

    def links(
        self,
        wanted: Mapping[int, object],
        unheld: Collection[int],
        known: Collection[tuple[int, int]],
        budget: Budget,
    ) -> list[Link]:
        with self._guard("links"):
            found = [of_class(link, Link) for link in self._asked.links(wanted, unheld, known, budget)]
            return [Link(link.parent, link.child, None if link.edge is None else _clean(link.edge)) for link in found]
        return []


@contextlib.contextmanager
def _ordinary_errors() -> Iterator[None]:
    """Turn `pytest.skip` and the like, which would end the current test, into an ordinary WrongAnswer."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - `pytest.skip` raises a BaseException
        raise WrongAnswer(f"raised {type(error).__name__}: {error}") from None


def _clean(text: object) -> str:
    return clean_text(text_of(text), TEXT_LIMIT)


def _checked_space(space: Any) -> DeviceSpace | None:
    return None if space is None else DeviceSpace(*map(size_or_none, of_class(space, DeviceSpace)))


def _checked_graph(size: Any) -> Autograd | None:
    if size is None:
        return None
    size = of_class(size, Autograd)
    return Autograd(size_of(size.nodes), size_of(size.saved_tensors), size_of(size.saved_bytes), cut=size.cut is True)


def _device(name: object) -> str:
    text = text_of(name)
    if not text or text in (HOST, "cpu") or clean_text(text, TEXT_LIMIT) != text:
        raise WrongAnswer(f"returned the device {shown(name)}, accepted is a name such as 'gpu:0'")
    return text


def _checked_reading(reading: object) -> DeviceReading:
    allocated, *others = of_class(reading, DeviceReading)
    return DeviceReading(size_of(allocated), *map(size_or_none, others))


def _checked_part(part: Any) -> Contribution:
    created = part.created if type(part.created) is Origin else None
    return Contribution(_clean(part.text), size_of(part.bytes), size_of(part.count), created)
