"""Skip the tests that need a process, a thread or an event loop where the interpreter can start none, as in WebAssembly.

A test is skipped where it fails after its code, or a suite that it runs, has asked for one: no list has to be kept. What
the plugin itself asks for does not count, since it must go on without.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import gc
import importlib
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpuleak.session.rerun import watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

STARTERS: Final[list[tuple[str, Any, str]]] = [
    ("a process", subprocess.Popen, "__init__"), ("a process", os, "fork"), ("a thread", threading.Thread, "start")
]  # fmt: skip

ABSENT: Final = ("resource", "yaml")
"""Modules that have no build for WebAssembly: files that import them are skipped."""

BETWEEN: Final = {*sys.stdlib_module_names, "pynvml", "pympler", "psutil", "pyodide"} - {"__main__"}
"""Packages that ask on behalf of their caller: `ctypes.util` starts a process to find a library."""

_watch = watchdog.watch
_start = _thread.start_new_thread
_asked_for: set[str] = set()
_skipped: list[str] = []


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def note(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that a call from outside the plugin is noted as `kind`."""

    @functools.wraps(function)
    def noted(*arguments: Any, **named: Any) -> Any:
        caller: Any = sys._getframe(1)
        while _package(caller) in BETWEEN:
            caller = caller.f_back
        if _package(caller) != "pytest_gpuleak":
            _asked_for.add(kind)
        return function(*arguments, **named)

    return noted


def watch_without_thread(*arguments: Any, **named: Any) -> bool:
    """Run again what no thread can watch: the plugin would not, and most tests could not be confirmed."""
    try:
        return _watch(*arguments, **named)
    except watchdog.CannotWatchError:
        if _thread.start_new_thread is not _start:
            raise  # a test has replaced it, and wants to see what happens then
    arguments[0]()
    return False


def install() -> None:
    """Note from now on who asks for processes and threads, let re-runs go without a watchdog, ."""
    with contextlib.suppress(ImportError):
        # What stands for an event loop there runs nothing until JavaScript's own gets its turn.
        STARTERS.append(("an event loop", importlib.import_module("pyodide.webloop").WebLoop, "__init__"))
    for kind, owner, name in STARTERS:
        setattr(owner, name, note(kind, getattr(owner, name)))
    watchdog.watch = watch_without_thread


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    text = str(report.longrepr)
    missing = [name for name in ABSENT if "ModuleNotFoundError" in text and name in text.splitlines()[-1]]
    if report.failed and missing:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 1, f"Skipped: {missing[0]} is not there")
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart() -> None:
    _asked_for.clear()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and _asked_for:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 1, f"Skipped: needs {' and '.join(sorted(_asked_for))}")
        _skipped.append(item.nodeid)
    return report


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Free what a skipped test has left, such as coroutines that never ran: the next test would be blamed for them."""
    if _skipped:
        _skipped.clear()
        for name in ("last_exc", "last_value", "last_traceback", "last_type"):
            vars(sys).pop(name, None)
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            gc.collect()
        finally:
            sys.unraisablehook = hook


if sys.platform in ("emscripten", "wasi"):
    install()
