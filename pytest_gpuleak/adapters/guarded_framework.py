"""Guard the members of a conftest.py's framework; their answers are checked and copied (`adapters.answers`)."""

from __future__ import annotations

import contextlib
import inspect
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters import answers
from pytest_gpuleak.adapters.answers import WrongAnswer, complete
from pytest_gpuleak.adapters.guarded import METHODS, Guarded, asked
from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading
from pytest_gpuleak.adapters.protocol import Framework, NativeObjects, ReferenceFinder, StoppedError
from pytest_gpuleak.heap.classes import is_kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpuleak.adapters.guarded import GuardMaker
    from pytest_gpuleak.adapters.protocol import AllocationHistory, ArrayFramework, Restore, SettleStep
    from pytest_gpuleak.heap.budget import Budget
    from pytest_gpuleak.model.findings import Contribution

_OWN: Final = (
    "free_workspaces",
    "peak_recorder",
    "counted_on_host",
    "block_recorder",
    "pool_growth",
    "node_count",
    "counts_programs",
    "program_instructions",
    "library_states",
    "setup_lines",
    "watch_first_use",
)
MEMBERS: Final = tuple(name for name in vars(Framework) if not (name.startswith("_") or name in _OWN))
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
        self._devices: DeviceProbe | None = None
        with guard("devices"):
            devices = framework.devices
            if devices is not None:
                self._devices = _GuardedDevices(complete(devices, DEVICE_MEMBERS, WrongAnswer), name)

    device_space = asked("device_space", answers.space, NoneType)
    release_cache = asked("release_cache", lambda kinds: list(map(answers.text_of, kinds)), list)
    program_names = asked("program_names", lambda names: list(map(answers.clean, names)), list)
    program_count = asked("program_count", answers.size_of, int)
    graph_size = asked("graph_size", answers.graph, NoneType)
    is_distributed = asked("is_distributed", answers.truth, bool)

    @property
    def devices(self) -> DeviceProbe | None:
        """Return the device probe that the framework had when it was added."""
        return self._devices

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
        return self._ask(
            "settle_steps", lambda steps: [_GuardedStep(one, self.name, self._guard) for one in steps], list
        )

    def reference_finders(self) -> list[ReferenceFinder]:
        """Return the guarded reference finders; none where the framework fails."""
        return self._ask("reference_finders", lambda found: [_GuardedFinder(one, self._guard) for one in found], list)

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
            if not is_kind_of(type(array), kind):
                raise WrongAnswer(f"returned {answers.shown(array)}, accepted are its arrays")
        return {device: None if arrays is None else list(arrays) for device, arrays in found.items()}

    def keep_states(self) -> list[Restore]:
        """Note the framework's states; return the guarded functions that restore them."""
        return self._ask("keep_states", self._guarded_restores("keep_states"), list)

    def keep_values(self, roots: Callable[[], Mapping[str, object]]) -> list[Restore]:
        """Note the content of models that tests share; return the guarded functions that restore it."""
        return self._ask("keep_values", self._guarded_restores("keep_values"), list, roots)

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
        with _ordinary_errors():
            found = answers.device_readings(self._devices.read())
            self.idle = getattr(self._devices, "idle", False) is True
            absent: Mapping[object, object] = getattr(self._devices, "absent", {})
            self.absent = {answers.device_name(device): answers.clean(why) for device, why in absent.items()}
        return found

    def used(self, device: str) -> int | None:
        with _ordinary_errors():
            return answers.size_or_none(self._devices.used(device))

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


@contextlib.contextmanager
def _ordinary_errors() -> Iterator[None]:
    """Turn `pytest.skip` and the like, which would end the current test, into an ordinary WrongAnswer."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - `pytest.skip` raises a BaseException
        raise WrongAnswer(f"raised {type(error).__name__}: {error}") from None
