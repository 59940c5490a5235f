"""`--gpu-leak-clean`: after a failed test its frames are cleared, and the device's cache is released.

A failed test's traceback pins the locals of its frames: pytest keeps it in ``sys.last_value`` until the next call, and
plugins keep it longer. What an error itself refers to (its arguments, ``AttributeError.obj``) is not touched, and goes with
the error. By the time that anything is cleared the traceback has been written, and the debuggers are done.
"""

from __future__ import annotations

import gc
import inspect
import sys
import types
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpuleak.heap.classes import is_kind_of
from pytest_gpuleak.heap.collector import collect, get_referrers, whole_heap
from pytest_gpuleak.model.readings import HOST
from pytest_gpuleak.session.features.out_of_memory.text import error_chain
from pytest_gpuleak.session.fixtures import is_wider
from pytest_gpuleak.session.frameworks import shared_frameworks
from pytest_gpuleak.session.pytest_internals import DeferredFinalizerErrors, log_handlers, release_values, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from pytest_gpuleak.adapters.frameworks import Frameworks

_GENERATOR_FLAGS: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

_traceback_of: Callable[[BaseException], types.TracebackType | None] = vars(BaseException)["__traceback__"].__get__


class CleaningHooks:
    """Cleans up after each failed attempt of a test.

    Args:
        config: pytest's config.
        counters: reads the devices in use, by device and metric (`MemoryWatch.read`).
        rerunning: whether a test is being run again by the plugin, whose errors are no failures.
    """

    def __init__(
        self,
        config: pytest.Config,
        counters: Callable[[], Mapping[tuple[str, str], int]],
        rerunning: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self._counters = counters
        self._rerunning = rerunning
        # A debugger that pytest has started may be asked about the frames of any test later on.
        self._active = not (config.getoption("usepdb", False) or config.getoption("trace", False))
        self._failed: list[tuple[BaseException, types.TracebackType | None]] = []
        self._kept: dict[int, BaseException] = {}  # errors of wider fixtures' setups, by id of the FixtureDef
        self._warned = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Clean once the test is over for everybody: reports are logged, re-runs of other plugins done."""
        try:
            result = yield
            self._clean(item)
            return result
        finally:
            self._failed.clear()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Another attempt begins (pytest-rerunfailures, flaky): the failed one before it is done with."""
        __tracebackhide__ = True  # a failure's text shows only the user's frames, as without the plugin
        if not self._rerunning():
            self._clean(item)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note the error of a phase that has failed, or of a sub-test."""
        report = yield
        if self._active and report.failed and call.excinfo is not None and not self._rerunning():
            self._failed.append((call.excinfo.value, call.excinfo.tb))
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """Note the error of a wider fixture's setup: pytest raises it again in each test that asks for the fixture."""
        __tracebackhide__ = True
        try:
            return (yield)
        except BaseException as error:
            if self._active and is_wider(fixturedef):
                self._kept[id(fixturedef)] = error
            raise

    def pytest_fixture_post_finalizer(self, fixturedef: Any) -> None:
        """The fixture is torn down, and its error forgotten."""
        self._kept.pop(id(fixturedef), None)

    def _clean(self, item: pytest.Item) -> None:
        if not self._failed:
            return
        try:
            with DeferredFinalizerErrors(self._config, item.nodeid):
                clear_frames(self._errors(), [*self._kept.values(), *_errors_of_collectors(item)])
                self._failed.clear()
                release_values(item, log_handlers(self._config))
                if gc.isenabled():
                    collect()  # a full one: failed tests are few, and in a scan there is no border to stop at
                release_device_cache(self._counters(), shared_frameworks(self._config))
        except Exception as error:  # noqa: BLE001 - a clean-up that fails changes no outcome
            self._failed.clear()
            if not self._warned:
                self._warned = True
                warn(self._config, f"could not clean up after a failed test: {type(error).__name__}", item.nodeid)

    def _errors(self) -> list[tuple[BaseException, types.TracebackType | None]]:
        """What has failed, and what Python keeps for a debugger of its own."""
        last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if last is None:
            return self._failed
        return [*self._failed, (last, getattr(sys, "last_traceback", None))]


def clear_frames(
    errors: Iterable[tuple[BaseException, types.TracebackType | None]], kept: Iterable[BaseException] = ()
) -> int:
    """Clear the locals of the functions that errors have ended, and of those in the errors behind them.

    What still runs is left alone, and so is a generator or coroutine that is suspended: to clear its frame would close
    it, and run the user's ``finally`` (`frame.clear`, up to Python 3.12).

    Args:
        errors: each with a traceback of its own, where it has one beside its ``__traceback__``.
        kept: errors whose frames are left alone, since they are to be raised and shown again.

    Returns:
        How many frames were cleared.
    """
    spared = set(map(id, _frames([(error, None) for error in kept])))
    frames = [frame for frame in _frames(errors) if id(frame) not in spared]
    suspended = _suspended([frame for frame in frames if frame.f_code.co_flags & _GENERATOR_FLAGS])
    cleared = 0
    for frame in frames:
        if id(frame) not in suspended:
            with suppress(RuntimeError):  # it runs
                frame.clear()
                _forget_snapshot(frame)
                cleared += 1
    return cleared


def _forget_snapshot(frame: types.FrameType) -> None:
    """Empty the dict that ``f_locals`` has left in a frame, as pytest does when it shows the locals.

    Up to Python 3.12 `frame.clear` does not (CPython's frame_tp_clear). One that the user keeps (``locals()``) is left.
    """
    if sys.version_info >= (3, 13) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return
    others = (id(frame.f_globals), id(frame.f_builtins))
    for part in gc.get_referents(frame):
        # Referred to by the frame, by the list of referents, by `part`, and by the call that counts.
        if type(part) is dict and id(part) not in others and sys.getrefcount(part) <= 4:
            part.clear()


def release_device_cache(counters: Mapping[tuple[str, str], int], frameworks: Frameworks) -> list[str]:
    """Give what the frameworks' allocators have cached back to the devices.

    Args:
        counters: the devices in use, by device and metric. Where nothing is cached nothing is asked.
        frameworks: have the allocators.

    Returns:
        The kinds of devices that were asked (``cuda``).
    """
    kinds = {
        device.partition(":")[0]
        for (device, metric), reserved in counters.items()
        if metric == "reserved" and device != HOST and reserved > counters.get((device, "allocated"), 0)
    }
    return frameworks.release_cache(kinds) if kinds else []


def _frames(errors: Iterable[tuple[BaseException, types.TracebackType | None]]) -> list[types.FrameType]:
    """The frames of all tracebacks, each once, those of causes, contexts and groups included."""
    frames: dict[int, types.FrameType] = {}
    for error, own in errors:
        for top in (own, *map(_traceback_of, error_chain(error))):
            entry = top
            while entry is not None:
                frames[id(entry.tb_frame)] = entry.tb_frame
                entry = entry.tb_next
    return list(frames.values())


def _suspended(frames: list[types.FrameType]) -> set[int]:
    """Ids of those frames of generators and coroutines that have not finished."""
    if sys.version_info >= (3, 11):
        # The collector sees into a frame once it is on its own (CPython's frame_traverse, f_owns_frame or owner): until
        # then its contents are the generator's, or the running thread's.
        return {id(frame) for frame in frames if not any(part is frame.f_code for part in gc.get_referents(frame))}
    if not frames:
        return set()
    # Before, a generator that has not finished refers to its frame, and one that has does not.
    with whole_heap():
        holders = get_referrers(*frames)
    kinds = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
    return {
        id(frame)
        for holder in holders
        if type(holder) in kinds
        for frame in frames
        if any(part is frame for part in gc.get_referents(holder))
    }


def _errors_of_collectors(item: pytest.Item) -> list[BaseException]:
    """Errors of collectors' setups: pytest raises them again in each of their tests (runner.py, `SetupState.setup`)."""
    stack = getattr(getattr(item.session, "_setupstate", None), "stack", None)
    if type(stack) is not dict:
        return []
    return [error for _, error in stack.values() if is_kind_of(type(error), BaseException)]
