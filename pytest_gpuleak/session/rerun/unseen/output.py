"""Keep the reports and the output of a re-run from plugins, the terminal and the log file of the run."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.source_files import is_user_file
from pytest_gpuleak.session.rerun.unseen.restoring import keep_names, replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from pytest_gpuleak.session.rerun.unseen.restoring import Restore

_SAVED: dict[int, int] = {}
"""Descriptors of the standard streams as they were, by number, while a re-run's writes to them are dropped."""


def open_stderr() -> int:
    """Return a new descriptor of stderr that neither pytest's capturing nor a muted re-run redirects."""
    try:
        return os.dup(_SAVED.get(2, 2))
    except OSError:  # it is closed
        return os.open(os.devnull, os.O_WRONLY)


class _Sink(io.TextIOBase):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return bool(self._stream.isatty())

    def fileno(self) -> int:
        return int(self._stream.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override] # a plain attribute of the base class
        return str(getattr(self._stream, "encoding", None) or "utf-8")

    @property
    def buffer(self) -> io.BytesIO:
        return io.BytesIO()


@contextlib.contextmanager
def muted_output(config: pytest.Config) -> Iterator[None]:
    """Mute pytest's terminal, its live log and log file, and what its capturing lets through."""
    manager = config.pluginmanager
    with contextlib.ExitStack() as stack:
        writer: Any = getattr(manager.get_plugin("terminalreporter"), "_tw", None)
        if writer is not None:
            stack.callback(vars(writer).update, dict(vars(writer)))
            writer._file = _Sink(writer._file)
        capture: Any = manager.get_plugin("capturemanager")
        if capture is not None:
            # `with capsys.disabled()` must not print on the terminal within a re-run.
            stack.enter_context(replaced(vars(capture), {"global_and_fixture_disabled": contextlib.nullcontext}))
        method = "no" if capture is None else getattr(capture, "_method", "")
        if method == "no":
            streams = {
                name: _Sink(getattr(sys, name)) for name in ("stdout", "stderr") if getattr(sys, name) is not None
            }
            stack.enter_context(replaced(vars(sys), streams))
        if method == "tee-sys":
            for way in ("out", "err"):  # what is captured goes to the capture alone (`_pytest.capture.TeeCaptureIO`)
                file: Any = getattr(getattr(getattr(capture, "_global_capturing", None), way, None), "tmpfile", None)
                if hasattr(file, "_other"):
                    stack.enter_context(replaced(vars(file), {"_other": _Sink(file._other)}))
        if method != "fd":
            for descriptor in (1, 2):
                stack.enter_context(_muted_descriptor(descriptor))
        logging: Any = manager.get_plugin("logging-plugin")
        for name in ("log_cli_handler", "log_file_handler"):
            handler = getattr(logging, name, None)
            if handler is not None:
                handler.addFilter(_refuse)
                stack.callback(handler.removeFilter, _refuse)
        yield


def _refuse(_record: object) -> bool:
    return False


@contextlib.contextmanager
def _muted_descriptor(descriptor: int) -> Iterator[None]:
    with contextlib.suppress(Exception):  # what was printed before must not be dropped with it
        (sys.__stdout__ if descriptor == 1 else sys.__stderr__).flush()  # type: ignore[union-attr]
    try:
        saved = os.dup(descriptor)
    except OSError:  # it is closed
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
    outermost = _SAVED.setdefault(descriptor, saved) == saved  # a run within a test that is run again mutes it again
    try:
        yield
    finally:
        if outermost:
            del _SAVED[descriptor]
        os.dup2(saved, descriptor)
        os.close(saved)


SWALLOWED = ("pytest_runtest_logreport", "pytest_exception_interact", "pytest_assertion_pass")
"""Hooks that no plugin is called for. Sub-tests log their reports themselves, and request a debugger (`--pdb`)."""


@contextlib.contextmanager
def unreported(item: pytest.Item) -> Iterator[None]:
    """Log no report and record no warning of the re-run: plugins would turn what a test noted into a failure."""
    manager, hooks = item.config.pluginmanager, item.config.hook
    subset = manager.subset_hook_caller
    users = [impl.plugin for impl in hooks.pytest_runtest_makereport.get_hookimpls() if _is_users(impl, item)]
    # Use pluggy's own callers: a plugin that lists its hooks during the re-run reads their implementations.
    replacements: dict[str, Any] = {name: subset(name, manager.get_plugins()) for name in SWALLOWED}
    replacements["pytest_runtest_makereport"] = subset("pytest_runtest_makereport", users)

    def subset_but_silent(name: str, remove_plugins: Any) -> Any:
        return replacements[name] if name in replacements else subset(name, remove_plugins)

    # An item below a conftest.py uses a proxy that the plugin manager creates each time.
    with (
        replaced(vars(hooks), replacements),
        replaced(vars(manager), {"subset_hook_caller": subset_but_silent}),
        warnings.catch_warnings(record=True),
    ):
        yield


def _is_users(impl: Any, item: pytest.Item) -> bool:
    code = getattr(impl.function, "__code__", None)
    if code is None:
        return False
    own = impl.function.__module__.startswith(("pytest_gpuleak.", "_pytest."))  # pytest may be installed anywhere
    return not own and is_user_file(code.co_filename, str(item.config.rootpath))


def count_failed_subtests(item: pytest.Item) -> int:
    """Return how many sub-tests of a test have failed, which fail it when its call's report is logged."""
    failures = _failed_subtests(item)
    return sum(failures.get(key, 0) for key in _keys_of(item))


def keep_failed_subtests(item: pytest.Item) -> Restore:
    """Note that count. pytest has one for each test so far: only the test's own is looked at."""
    return keep_names(_failed_subtests(item), _keys_of(item))


def _failed_subtests(item: pytest.Item) -> dict[Any, int]:
    key: Any = getattr(sys.modules.get("_pytest.subtests"), "failed_subtests_key", None)  # pytest 9
    counts: dict[Any, int] = {} if key is None else item.config.stash.get(key, {})
    return counts


def _keys_of(item: pytest.Item) -> list[Any]:
    """Return what pytest has used as the key of a test: its nodeid, and from 9.2 on a `NodeId`."""
    own = getattr(item, "id", None)
    return [item.nodeid, own] if type(own).__module__.startswith("_pytest.") else [item.nodeid]
