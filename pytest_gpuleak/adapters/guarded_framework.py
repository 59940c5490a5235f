"""Guard the members of a conftest.py's framework, and check and copy their values (its arrays: `adapters.guarded`)."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.answers import WrongAnswer, of_class, of_type, shown, size_of, size_or_none, text_of
from pytest_gpuleak.adapters.guarded import entered, missing_methods
from pytest_gpuleak.adapters.guarded_finder import TEXT_LIMIT, GuardedFinder
from pytest_gpuleak.adapters.probe_protocol import DeviceReading
from pytest_gpuleak.adapters.protocol import Framework, StoppedError
from pytest_gpuleak.heap.classes import is_kind_of
from pytest_gpuleak.model.findings import Autograd, Contribution, Origin
from pytest_gpuleak.model.readings import HOST, DeviceSpace
from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpuleak.adapters.guarded import GuardMaker
    from pytest_gpuleak.adapters.probe_protocol import DeviceProbe
    from pytest_gpuleak.adapters.protocol import (
        AllocationHistory,
        ArrayFramework,
        ReferenceFinder,
        Restore,
        SettleStep,
    )


MEMBERS: Final = tuple(name for name in vars(Framework) if not name.startswith("_"))
DEVICE_MEMBERS: Final = ("read", "used", "begin_peaks", "stop")

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


class GuardedFramework(Framework):
    """A framework behind guards, which note an error once under its name. Raises TypeError if its arrays lack a method.

    `guard` returns a member's context by its name. Members that describe the process (`version`, `processes`, ...) are
    not asked of a conftest.py's framework.
    """

    def __init__(
        self,
        framework: Framework,
        name: str,
        guard: GuardMaker,
        guard_arrays: Callable[[ArrayFramework], ArrayFramework],
    ) -> None:
        self.name = name
        self._framework = framework
        self._guard = guard
        self.arrays = guard_arrays(_complete(framework.arrays))
        storages = framework.storages
        self.storages = None if storages is None else guard_arrays(_complete(storages))
        tracers = framework.tracers
        self.tracers = None if tracers is None else guard_arrays(_complete(tracers))
        self._devices: DeviceProbe | None = None
        with guard("devices"):
            devices = framework.devices
            if devices is not None:
                missing = [one for one in DEVICE_MEMBERS if not callable(getattr(devices, one, None))]
                if missing:
                    raise WrongAnswer(f"{type(devices).__name__} has no {' and no '.join(missing)}")
                self._devices = GuardedDevices(devices, name)

    @property
    def devices(self) -> DeviceProbe | None:
        """Return the device probe that the framework had when it was added."""
        return self._devices

    @property
    def broken(self) -> str:
        """Return why nothing can be checked, with the framework's name; empty where the framework fails."""
        with self._guard("broken"):
            why = clean_text(text_of(self._framework.broken), TEXT_LIMIT)
            return f"{self.name}: {why}" if why else ""
        return ""

    def device_space(self, device: str) -> DeviceSpace | None:
        """Return the space on a device; None where the framework fails."""
        with self._guard("device_space"):
            space: Any = self._framework.device_space(device)
            return None if space is None else DeviceSpace(*map(size_or_none, of_class(space, DeviceSpace)))
        return None

    def release_cache(self, kinds: Collection[str]) -> list[str]:
        """Release cached memory; return the kinds released, none where the framework fails."""
        with self._guard("release_cache"):
            return [text_of(kind) for kind in self._framework.release_cache(kinds)]
        return []

    def settle_steps(self) -> list[SettleStep]:
        """Return the guarded settle steps; none where the framework fails."""
        with self._guard("settle_steps"):
            return [GuardedStep(step, self.name, self._guard) for step in self._framework.settle_steps()]
        return []

    def program_names(self) -> list[str]:
        """Return the names of its compiled programs; none where the framework fails."""
        with self._guard("program_names"):
            return [clean_text(text_of(name), TEXT_LIMIT) for name in self._framework.program_names()]
        return []

    def program_count(self) -> int:
        """Return the number of its compiled programs; 0 where the framework fails."""
        with self._guard("program_count"):
            return size_of(self._framework.program_count())
        return 0

    def reference_finders(self) -> list[ReferenceFinder]:
        """Return the guarded reference finders; none where the framework fails."""
        with self._guard("reference_finders"):
            return [GuardedFinder(finder, self._guard) for finder in self._framework.reference_finders()]
        return []

    def unread_arrays(self, devices: set[str]) -> Mapping[str, list[object]]:
        """Return its arrays on these devices that only native code knew; none where the framework fails."""
        with self._guard("unread_arrays"):
            kind = self.arrays.array_type()
            found = of_type(self._framework.unread_arrays(set(devices)), dict)
            if kind is None or not devices.issuperset(found):
                raise WrongAnswer("returned arrays of devices that it was not asked for")
            for array in [array for arrays in found.values() for array in of_type(arrays, list)]:
                if not is_kind_of(type(array), kind):
                    raise WrongAnswer(f"returned {shown(array)}, accepted are its arrays")
            return {device: list(arrays) for device, arrays in found.items()}
        return {}

    def graph_size(self, arrays: Sequence[object], budget_s: float) -> Autograd | None:
        """Return the graph size as plain numbers; None where the framework fails."""
        with self._guard("graph_size"):
            size: Any = self._framework.graph_size(arrays, budget_s)
            if size is None:
                return None
            size = of_class(size, Autograd)
            return Autograd(size_of(size.nodes), size_of(size.saved_tensors), size_of(size.saved_bytes))
        return None

    def allocation_history(self) -> AllocationHistory | None:
        """Return the guarded recorder; None where the framework fails."""
        with self._guard("allocation_history"):
            history = self._framework.allocation_history()
            return None if history is None else GuardedHistory(history, self._guard)
        return None

    def keep_states(self) -> list[Restore]:
        """Note the framework's states; return the guarded functions that restore them."""
        with self._guard("keep_states"):
            return [self._guarded(restore) for restore in self._framework.keep_states()]
        return []

    def _guarded(self, restore: Restore) -> Restore:
        def put_back() -> None:
            with self._guard("keep_states"):
                restore()

        return put_back

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Enter the framework's context. Errors of the body pass."""
        with entered(self._framework.in_place, self._guard, "in_place"):
            yield

    def is_distributed(self) -> bool:
        """Return whether this process is one rank of several; False where the framework fails."""
        with self._guard("is_distributed"):
            return of_type(self._framework.is_distributed(), bool)
        return False


class ArraysAlone(Framework):
    """A framework for a conftest.py that provides arrays alone."""

    def __init__(self, arrays: ArrayFramework) -> None:
        self.name = arrays.name
        self.arrays = arrays


class GuardedDevices:
    """A device probe whose values are checked and whose errors are ordinary: the engine drops a probe that raises."""

    def __init__(self, devices: DeviceProbe, name: str) -> None:
        self.name = f"the devices of the framework {name!r}"
        self.idle = False
        self.absent: dict[str, str] = {}
        self._devices = devices

    def read(self) -> dict[str, DeviceReading]:
        """Return the checked readings. Raises WrongAnswer, or the framework's error."""
        with _ordinary_errors():
            readings = of_type(self._devices.read(), dict)
            found = {_device(device): _checked_reading(reading) for device, reading in readings.items()}
            self.idle = getattr(self._devices, "idle", False) is True
            absent: Mapping[object, object] = getattr(self._devices, "absent", {})
            self.absent = {_device(device): clean_text(text_of(why), TEXT_LIMIT) for device, why in absent.items()}
        return found

    def used(self, device: str) -> int | None:
        """Return the bytes in use on a device. Raises WrongAnswer, or the framework's error."""
        with _ordinary_errors():
            return size_or_none(self._devices.used(device))

    def begin_peaks(self) -> None:
        """Restart the peaks. Raises the framework's error."""
        with _ordinary_errors():
            self._devices.begin_peaks()

    def stop(self) -> None:
        """Stop the probe. Raises the framework's error."""
        with _ordinary_errors():
            self._devices.stop()


class GuardedStep:
    """A framework's settle step behind guards."""

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


class GuardedHistory:
    """A framework's recorder of allocations behind guards."""

    def __init__(self, history: AllocationHistory, guard: GuardMaker) -> None:
        self._history = history
        self._guard = guard
        self._entered = False

    def __enter__(self) -> GuardedHistory:  # noqa: PYI034 - typing has Self from 3.11 only
        with self._guard("allocation_history"):
            self._history.__enter__()
            self._entered = True
        return self

    def __exit__(self, *exception: object) -> None:
        if self._entered:
            with self._guard("allocation_history"):
                self._history.__exit__(None, None, None)

    def blocks_alive(self, device: str, is_user_file: Callable[[str], bool]) -> tuple[Contribution, ...] | None:
        """Return the checked blocks of the framework's recorder; None where it fails."""
        if self._entered:
            with self._guard("blocks_alive"):
                parts: Any = self._history.blocks_alive(device, is_user_file)
                return None if parts is None else tuple(_checked_part(of_class(part, Contribution)) for part in parts)
        return None

    def save(self, folder: Path, nodeid: str) -> None:
        """Write the framework's recording; do nothing where it fails."""
        if self._entered:
            with self._guard("save"):
                self._history.save(folder, nodeid)


@contextlib.contextmanager
def _ordinary_errors() -> Iterator[None]:
    """Turn `pytest.skip` and the like, which would end the current test, into an ordinary WrongAnswer."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - `pytest.skip` raises a BaseException
        raise WrongAnswer(f"raised {type(error).__name__}: {error}") from None


def _complete(arrays: ArrayFramework) -> ArrayFramework:
    missing = missing_methods(arrays)
    if missing:
        raise TypeError(f"{type(arrays).__name__} has no {' and no '.join(missing)}")
    return arrays


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
    return Contribution(clean_text(text_of(part.text), TEXT_LIMIT), size_of(part.bytes), size_of(part.count), created)
