"""Release objects that pytest keeps alive after a test, and defer what it reports."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import types
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpuleak.heap.collector import delivered_again, watch_signals
from pytest_gpuleak.heap.lost_signals import UnraisableHook
from pytest_gpuleak.session.fixtures import is_wider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType


def log_handlers(config: pytest.Config) -> tuple[Any, ...]:
    """Return the handlers of pytest's logging plugin that keep records; none where the plugin is blocked."""
    plugin = config.pluginmanager.get_plugin("logging-plugin")
    found = (getattr(plugin, name, None) for name in ("caplog_handler", "report_handler"))
    return tuple(handler for handler in found if handler is not None)


def release_values(
    item: pytest.Item,
    handlers: Sequence[Any],
    letting_go: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
) -> None:
    """Release fixtures' values and log records' arguments, as pytest itself does right after the teardown's report.

    The values of wider fixtures that were torn down go last, within `letting_go`.
    """
    values = getattr(item, "funcargs", None)
    if type(values) is dict:
        fixtures = getattr(getattr(item, "_request", None), "_fixture_defs", {})
        gone = [
            name for name, one in fixtures.items() if name in values and one.cached_result is None and is_wider(one)
        ]
        wider = [values.pop(name) for name in gone]
        values.clear()
        if wider:
            with letting_go():
                wider.clear()
    for handler in handlers:
        if handler.records:
            handler.reset()


def fixtures_of(item: pytest.Item) -> list[Any]:
    """Return the definitions of the fixtures that a test uses, those included that it has requested while it ran."""
    info = getattr(item, "_fixtureinfo", None)
    known = [fixture for fixtures in getattr(info, "name2fixturedefs", {}).values() for fixture in fixtures]
    return [*known, *getattr(getattr(item, "_request", None), "_fixture_defs", {}).values()]


def older_instance(item: pytest.Item) -> weakref.ref[object] | None:
    """Return a weak reference to the `unittest.TestCase` instance that pytest made when it collected the test (8.2)."""
    instance = vars(item).get("_instance")
    test_case = getattr(sys.modules.get("unittest"), "TestCase", None)
    if instance is None or test_case is None or not issubclass(type(instance), test_case):
        return None
    return weakref.ref(instance)


def plugin_packages(config: pytest.Config) -> set[str]:
    """Return the top-level packages of the installed plugins, which were loaded before the tests and stay loaded."""
    plugins = (plugin for plugin, _ in config.pluginmanager.list_plugin_distinfo())
    return {plugin.__name__.partition(".")[0] for plugin in plugins if type(plugin) is types.ModuleType}


def keep_files_real() -> None:
    """Have pyfakefs leave our modules out: it replaces `os` and `open` in all that are loaded, and a file system may stay up."""
    patcher = getattr(sys.modules.get("pyfakefs.fake_filesystem_unittest"), "Patcher", None)
    tools = getattr(patcher, "RUNTIME_SKIPMODULES", None)
    if type(tools) is dict:
        tools["pytest_gpuleak"] = ["pytest_gpuleak"]  # by the module that tells of a tool, prefixes of its modules


def runs_nothing(config: pytest.Config) -> bool:
    """Tell whether tests are only listed: with ``--collect-only``, or ``--setup-plan``."""
    return bool(config.option.collectonly or getattr(config.option, "setupplan", False))


def fixtures_of_items(config: pytest.Config) -> list[Any]:
    """Return the FixtureDefs that the collected tests ask for, each once; not those that are asked for as a test runs."""
    found: dict[int, Any] = {}
    for item in getattr(config.pluginmanager.get_plugin("session"), "items", ()):
        defined = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
        found.update((id(fixture), fixture) for fixtures in defined.values() for fixture in fixtures)
    return list(found.values())


COLLECTED: Final = pytest.StashKey[frozenset[int]]()
"""Key of the ids of the FixtureDefs that were there when the tests had been collected."""


def note_collected(session: pytest.Session) -> None:
    """Note the FixtureDefs that are there now: the others are registered by tests as they run."""
    collected = (id(one) for _, fixtures in fixture_lists(session) for one in fixtures)
    session.config.stash[COLLECTED] = frozenset(collected)


def fixture_lists(session: pytest.Session) -> Iterator[tuple[Any, list[Any]]]:
    """Yield pytest's lists of FixtureDefs, each with the node or nodeid that it is of; None: it is of many."""
    registries = getattr(getattr(session, "_fixturemanager", None), "__dict__", {})
    for fixtures in registries.get("_arg2fixturedefs", {}).values():  # before pytest 9.1
        yield None, fixtures
    for name in ("_arg2node2fixturedefs", "_arg2nodeid2fixturedefs"):
        for by_place in registries.get(name, {}).values():
            yield from by_place.items()


_NOTEBOOKS = frozenset({"nbmake", "nbval", "pytest_notebook"})
"""Packages of plugins whose items run notebooks."""


ELSEWHERE: Final = "a notebook runs in a process of its own, its kernel, which is not watched"
"""Why a notebook that runs as a test has no verdict."""


def runs_elsewhere(item: pytest.Item) -> bool:
    """Tell whether a plugin runs an item's code in a process of its own."""
    if type(item).__module__.startswith("_pytest."):
        return False  # nearly every test: pytest's own classes derive from no plugin's
    return any(kind.__module__.partition(".")[0] in _NOTEBOOKS for kind in type(item).__mro__)


def colour_red(config: pytest.Config) -> None:
    """Colour pytest's progress and last line red for leaks, as for failures. Another reporter keeps its colours."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    build = getattr(reporter, "build_summary_stats_line", None)
    own = getattr(reporter, "__dict__", ("build_summary_stats_line",))
    if not callable(build) or "build_summary_stats_line" in own:
        return

    def build_red() -> tuple[list[tuple[str, dict[str, bool]]], str]:
        parts, _ = build()
        leaked = {"red": True, "bold": True}
        return [(text, leaked if text.endswith(" leaked") else markup) for text, markup in parts], "red"

    reporter.build_summary_stats_line = build_red
    if callable(getattr(reporter, "_determine_main_color", None)):  # of the progress; pytest has no public way
        reporter._determine_main_color = lambda _unknown: "red"  # noqa: SLF001


class PhaseSignals:
    """Lose no signal under pytest before 8.4, which replaces `sys.unraisablehook` in each phase (see `LostSignals`)."""

    @staticmethod
    def are_lost(config: pytest.Config) -> bool:
        """Tell whether this pytest does so (_pytest/unraisableexception.py)."""
        return hasattr(config.pluginmanager.get_plugin("unraisableexception"), "catch_unraisable_exception")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Wrap the hook of this phase, which pytest's wrapper has just set."""
        watch_signals()

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


class DeferredFinalizerErrors:
    """Turn errors in ``__del__``, which our collections bring forward, into warnings: ``-W error`` would fail tests."""

    __slots__ = ("_config", "_hook", "_messages", "nodeid")

    def __init__(self, config: pytest.Config, nodeid: str = "") -> None:
        self.nodeid = nodeid
        self._config = config
        self._messages: list[str] = []
        self._hook: UnraisableHook | None = None

    def __enter__(self) -> None:
        self._hook = UnraisableHook(self._note, sys.unraisablehook)
        sys.unraisablehook = self._hook.take

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hook is not None:
            sys.unraisablehook, self._hook = self._hook.previous, None
        if self._messages:
            messages, self._messages = self._messages, []
            if error is None:
                for message in messages:
                    warn(self._config, message, self.nodeid)

    def _note(self, unraisable: Any) -> bool:
        if not delivered_again(unraisable):
            kind = getattr(unraisable.exc_type, "__name__", "?")
            self._messages.append(f"{kind} ignored in a finalizer that ran while {self.nodeid} was checked for leaks")
        return True


def warn(config: pytest.Config, message: str, nodeid: str) -> None:
    """List a warning in pytest's summary, past the user's filters: it must fail no test."""
    warning = pytest.PytestWarning(f"gpu-leak: {message}")
    recorded = warnings.WarningMessage(warning, pytest.PytestWarning, __file__, 0, source=None)
    config.hook.pytest_warning_recorded.call_historic(
        kwargs={"warning_message": recorded, "when": "runtest", "nodeid": nodeid, "location": None}
    )


@contextlib.contextmanager
def paused_timer() -> Iterator[None]:
    """Pause the process's alarm clock, by which pytest-timeout ends a test, while the plugin works within the test."""
    set_timer = getattr(signal, "setitimer", None)
    if set_timer is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    left, interval = set_timer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if left:
            set_timer(signal.ITIMER_REAL, left, interval)


def stop_timer(item: pytest.Item) -> None:
    """Cancel pytest-timeout's timer, which would raise in the plugin's work after the test, or end the process."""
    cancel = getattr(item.config.hook, "pytest_timeout_cancel_timer", None)
    if cancel is not None:
        cancel(item=item)
