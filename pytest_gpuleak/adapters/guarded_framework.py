"""Guard the members of a conftest.py's framework; their answers are checked and copied (`adapters.answers`)."""

from __future__ import annotations

import contextlib
import inspect
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pytest_gpuleak.adapters import answers
from pytest_gpuleak.adapters.answers import WrongAnswer, complete
from pytest_gpuleak.adapters.guarded import METHODS, Guarded, asked
from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading
from pytest_gpuleak.adapters.protocol import Framework, StoppedError
from pytest_gpuleak.adapters.reference_protocol import NativeObjects, ReferenceFinder
from pytest_gpuleak.heap.safe_access import is_subclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pytest_gpuleak.adapters.guarded import GuardMaker
    from pytest_gpuleak.adapters.protocol import AllocationHistory, ArrayFramework, Restore, SettleStep
    from pytest_gpuleak.heap.budget import Budget
    from pytest_gpuleak.model.findings import Contribution

_T = TypeVar("_T")

MEMBERS: Final = tuple(name for name in vars(Framework) if not name.startswith("_"))
DEVICE_MEMBERS: Final = ("read", "used", "begin_peaks", "stop")
FINDER_MEMBERS: Final = ("owner_counter", "take_census", "held_alone", "may_close_rings", "root_of")

MAX_STEPS: Final = 100
"""Yields of one settle step that are followed: a generator may never end."""

_END: Any = object()


def is_whole(answer: object) -> bool:
    """Return whether an object is meant as a `Framework` rather than as arrays alone. Runs none of its code."""
    kind = inspect.getattr_static(answer, "arrays", None)
    return kind is not None and inspect.getattr_static(answer, "array_type", None) is None


def missing_members(framework: object) -> list[str]:
    """Return the members of `Framework` that an object lacks. Runs none of its code."""
    return [name for name in MEMBERS if inspect.getattr_static(framework, name, _END) is _END]


class GuardedFramework(Guarded, Framework):
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

        def guarded(arrays: ArrayFramework | None) -> ArrayFramework | None:
            return None if arrays is None else guard_arrays(complete(arrays, METHODS))

        self.arrays = guard_arrays(complete(framework.arrays, METHODS))
        self.storages, self.tracers = guarded(framework.storages), guarded(framework.tracers)
        with guard("devices"):
            devices = framework.devices
            if devices is not None:
                self.devices = _GuardedDevices(complete(devices, DEVICE_MEMBERS, WrongAnswer), name)

    device_space = asked("device_space", answers.space, NoneType)
    release_cache = asked("release_cache", lambda kinds: list(map(answers.text_of, kinds)), list)
    program_names = asked("program_names", lambda names: list(map(answers.clean, names)), list)
    program_count = asked("program_count", answers.size_of, int)
    graph_size = asked("graph_size", answers.graph, NoneType)
    is_distributed = asked("is_distributed", answers.truth, bool)

    @property
    def broken(self) -> str:
        """Return why nothing can be checked, with the framework's name; empty where the framework fails."""
        with self._guard("broken"):
            why = answers.clean(self._asked.broken)
            return f"{self.name}: {why}" if why else ""
        return ""

    def counts_programs(self) -> bool:
        """Return whether the framework's class counts its programs. Runs none of its code."""
        return Framework.counts_programs(self._asked)

    def settle_steps(self) -> list[SettleStep]:
        """Return the guarded settle steps; none where the framework fails."""
        return self._ask("settle_steps", self._of_each(lambda step: _GuardedStep(step, self.name, self._guard)), list)

    def reference_finders(self) -> list[ReferenceFinder]:
        """Return the guarded reference finders; none where the framework fails."""
        return self._ask("reference_finders", self._of_each(lambda finder: _GuardedFinder(finder, self._guard)), list)

    def allocation_history(self) -> AllocationHistory | None:
        """Return the guarded recorder; None where the framework fails."""
        found = self._ask("allocation_history", lambda history: history, NoneType)
        return None if found is None else _GuardedHistory(found, self._guard)

    def unread_arrays(self, devices: set[str]) -> Mapping[str, list[object] | None]:
        """Return its arrays on these devices that only native code knew; none where the framework fails."""
        return self._ask("unread_arrays", lambda found: self._own_arrays(found, devices), dict, set(devices))

    def _own_arrays(self, found: Any, devices: set[str]) -> Mapping[str, list[object] | None]:
        kind = self.arrays.array_type()
        if kind is None or not devices.issuperset(answers.of_type(found, dict)):
            raise WrongAnswer("returned arrays of devices that it was not asked for")
        for array in [one for arrays in found.values() if arrays is not None for one in answers.of_type(arrays, list)]:
            if not is_subclass(type(array), kind):
                raise WrongAnswer(f"returned {answers.shown(array)}, accepted are its arrays")
        return {device: None if arrays is None else list(arrays) for device, arrays in found.items()}

    def keep_states(self) -> list[Restore]:
        """Note the framework's states; return the guarded functions that restore them."""
        return self._ask("keep_states", self._of_each(lambda one: partial(self._restore, "keep_states", one)), list)

    def keep_values(self, roots: Callable[[], Mapping[str, object]]) -> list[Restore]:
        """Note the content of models that tests share; return the guarded functions that restore it."""
        guarded: Callable[[Any], list[Restore]] = self._of_each(lambda one: partial(self._restore, "keep_values", one))
        return self._ask("keep_values", guarded, list, roots)

    def _restore(self, member: str, restore: Restore) -> None:
        with self._guard(member):
            restore()

    @staticmethod
    def _of_each(guarded: Callable[[Any], _T]) -> Callable[[Any], list[_T]]:
        return lambda found: list(map(guarded, found))

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Enter the framework's context. Errors of the body pass."""
        with self._entered("in_place"):
            yield


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
        found = answers.device_readings(_ordinarily(self._devices.read))
        self.idle = getattr(self._devices, "idle", False) is True
        absent: Mapping[object, object] = getattr(self._devices, "absent", {})
        self.absent = {answers.device_name(device): answers.clean(why) for device, why in absent.items()}
        return found

    def used(self, device: str) -> int | None:
        return answers.size_or_none(_ordinarily(lambda: self._devices.used(device)))

    def begin_peaks(self) -> None:
        _ordinarily(self._devices.begin_peaks)

    def stop(self) -> None:
        _ordinarily(self._devices.stop)


class _GuardedStep(Guarded):
    def __init__(self, step: SettleStep, name: str, guard: GuardMaker) -> None:
        super().__init__(step, guard)
        self.collects = bool(step.collects)
        self.what = f"a settle step of the framework {name!r}"

    def steps(self) -> Iterator[None]:
        """Run the step, `MAX_STEPS` yields at most. Raises StoppedError where the caller's limit ended it."""
        steps: Iterator[None] = iter(())
        with self._guard("settle_steps"):
            steps = iter(self._asked.steps())
        for _ in range(MAX_STEPS):
            if self._have_ended(steps):
                return
            yield
        with self._guard("settle_steps"):
            raise WrongAnswer(f"yields more than {MAX_STEPS} steps")

    def _have_ended(self, steps: Iterator[None]) -> bool:
        stopped: StoppedError | None = None
        with self._guard("settle_steps"):
            try:
                return next(steps, _END) is _END
            except StoppedError as error:
                stopped = error
        if stopped is not None:
            raise stopped
        return True


class _GuardedHistory(Guarded):
    _is_recording = False

    def __enter__(self) -> _GuardedHistory:  # noqa: PYI034 - typing has Self from 3.11 only
        with self._guard("allocation_history"):
            self._asked.__enter__()
            self._is_recording = True
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_recording:
            with self._guard("allocation_history"):
                self._asked.__exit__(None, None, None)

    def blocks_alive(self, device: str, is_user_file: Callable[[str], bool]) -> tuple[Contribution, ...] | None:
        if not self._is_recording:
            return None
        return self._ask("blocks_alive", answers.blocks, NoneType, device, is_user_file)

    @property
    def why_not(self) -> str:
        with self._guard("why_not"):
            return answers.clean(getattr(self._asked, "why_not", ""))
        return ""

    def save(self, folder: Path, nodeid: str) -> None:
        if self._is_recording:
            with self._guard("save"):
                self._asked.save(folder, nodeid)


class _GuardedFinder(Guarded, ReferenceFinder):
    """A reference finder behind guards. Raises WrongAnswer for a finder that lacks a method."""

    def __init__(self, finder: ReferenceFinder, guard: GuardMaker) -> None:
        super().__init__(complete(finder, FINDER_MEMBERS, WrongAnswer), guard)

    held_alone = asked("held_alone", answers.ids, set)
    below = asked("below", list, list, optional=True)
    may_close_rings = asked("may_close_rings", answers.truth, bool)
    root_of = asked("root_of", answers.clean, str)

    def owner_counter(self) -> Callable[[object], int | None]:
        with self._guard("owner_counter"):
            count = self._asked.owner_counter()

            def owners(value: object) -> int | None:
                with self._guard("owner_counter"):
                    return answers.whole_or_none(count(value))
                return None

            return owners
        return lambda _: None

    def take_census(self, budget: Budget) -> NativeObjects | None:
        found = self._ask("take_census", lambda natives: natives, NoneType, budget)
        return None if found is None else _GuardedNatives(found, self._guard)


class _GuardedNatives(Guarded, NativeObjects):
    lists = asked("lists", answers.lists, list)
    links = asked("links", answers.links, list)


def _ordinarily(call: Callable[[], _T]) -> _T:
    """Turn `pytest.skip` and the like, which would end the current test, into an ordinary WrongAnswer."""
    try:
        return call()
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - `pytest.skip` raises a BaseException
        raise WrongAnswer(f"raised {type(error).__name__}: {error}") from None
