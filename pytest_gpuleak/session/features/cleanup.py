"""`--gpu-leak-clean`: clear the frames that a failed test's traceback keeps, and release the device's cache."""

from __future__ import annotations

import gc
import inspect
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.heap.collector import collect
from pytest_gpuleak.heap.frames import suspended_frames
from pytest_gpuleak.heap.interpreter import getrefcount
from pytest_gpuleak.heap.safe_access import is_subclass
from pytest_gpuleak.model.readings import HOST
from pytest_gpuleak.session.faults import error_chain, traceback_of
from pytest_gpuleak.session.fixtures import is_wider, nodes_set_up
from pytest_gpuleak.session.pytest_internals import DeferredFinalizerErrors, log_handlers, release_values, warn

if TYPE_CHECKING:
    import types
    from collections.abc import Generator, Iterable, Mapping

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.session.attempt import AttemptLog


class CleaningHooks:
    """Clean up after each failed attempt of a test."""

    def __init__(self, tracker: RunTracker, attempts: AttemptLog) -> None:
        self._tracker = tracker
        self._attempts = attempts
        self._config = config = attempts.config
        # pytest's debugger may show the frames of any test later on.
        self._active = not (config.getoption("usepdb", False) or config.getoption("trace", False))
        self._failed: list[tuple[BaseException, types.TracebackType | None]] = []
        self._kept: dict[int, BaseException] = {}  # errors of wider fixtures' setups, by id of the FixtureDef
        self._warned = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Clean up after the test: reports are logged, re-runs of other plugins have ended."""
        try:
            result = yield
            self._clean(item)
            return result
        finally:
            self._failed.clear()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Clean up the failed attempt before another one begins (pytest-rerunfailures, flaky)."""
        __tracebackhide__ = True  # a failure's text shows only the user's frames, as without the plugin
        if not self._attempts.rerunning:
            self._clean(item)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Record the error of a failed phase or sub-test."""
        report = yield
        if self._active and report.failed and call.excinfo is not None and not self._attempts.rerunning:
            self._failed.append((call.excinfo.value, call.excinfo.tb))
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """Record the error of a higher-scoped fixture's setup, which pytest raises again in each of its tests."""
        __tracebackhide__ = True
        try:
            return (yield)
        except BaseException as error:
            if self._active and is_wider(fixturedef):
                self._kept[id(fixturedef)] = error
            raise

    def pytest_fixture_post_finalizer(self, fixturedef: Any) -> None:
        """Forget a torn-down fixture's error."""
        self._kept.pop(id(fixturedef), None)

    def _clean(self, item: pytest.Item) -> None:
        if not self._failed:
            return
        try:
            with DeferredFinalizerErrors(self._config, item.nodeid):
                last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # kept for Python's debugger
                if last is not None:
                    self._failed.append((last, getattr(sys, "last_traceback", None)))
                clear_frames(self._failed, [*self._kept.values(), *_errors_of_collectors(item)])
                self._failed.clear()
                release_values(item, log_handlers(self._config))
                if gc.isenabled():
                    collect()  # a full one: failed tests are few, and in a scan there is no border to stop at
                release_device_cache(self._tracker.counters.read(), self._tracker.frameworks)
        except Exception as error:  # noqa: BLE001 - a clean-up that fails changes no outcome
            self._failed.clear()
            if not self._warned:
                self._warned = True
                warn(self._config, f"could not clean up after a failed test: {type(error).__name__}", item.nodeid)


def clear_frames(
    errors: Iterable[tuple[BaseException, types.TracebackType | None]], kept: Iterable[BaseException] = ()
) -> None:
    """Clear the locals of functions that errors have ended, but not of errors in `kept`.

    Running frames, and suspended generators, whose ``finally`` would run (up to 3.12), are left alone.
    """
    spared = set(map(id, _frames([(error, None) for error in kept])))
    frames = [frame for frame in _frames(errors) if id(frame) not in spared]
    suspended = suspended_frames(frames)
    for frame in frames:
        if id(frame) not in suspended:
            with suppress(RuntimeError):  # it runs
                frame.clear()
                _forget_snapshot(frame)


def _forget_snapshot(frame: types.FrameType) -> None:
    """Empty the dict that ``f_locals`` leaves in a frame up to Python 3.12, unless user code keeps it."""
    if sys.version_info >= (3, 13) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return
    others = (id(frame.f_globals), id(frame.f_builtins))
    for part in gc.get_referents(frame):
        # References: the frame, the list of referents, `part`, and the call that counts.
        if type(part) is dict and id(part) not in others and getrefcount(part) <= 4:
            part.clear()


def release_device_cache(counters: Mapping[tuple[str, str], int], frameworks: Frameworks) -> None:
    """Return cached memory to the devices in `counters`, which are by device and metric."""
    kinds = {
        device.partition(":")[0]
        for (device, metric), reserved in counters.items()
        if metric == "reserved" and device != HOST and reserved > counters.get((device, "allocated"), 0)
    }
    if kinds:
        frameworks.release_cache(kinds)


def _frames(errors: Iterable[tuple[BaseException, types.TracebackType | None]]) -> list[types.FrameType]:
    frames: dict[int, types.FrameType] = {}
    for error, own in errors:
        for top in (own, *map(traceback_of, error_chain(error))):
            frames.update((id(frame), frame) for frame, _ in traceback.walk_tb(top))
    return list(frames.values())


def _errors_of_collectors(item: pytest.Item) -> list[BaseException]:
    """Return errors of collectors' setups, which pytest raises again in each of their tests (`SetupState.setup`)."""
    return [error for _, _, error in nodes_set_up(item.session) if is_subclass(type(error), BaseException)]
