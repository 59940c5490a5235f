"""Keep the reports and the output of a re-run from plugins, the terminal and the log file of the run."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.host.descriptors import out_of_the_way
from pytest_gpuleak.model.source_files import is_user_file
from pytest_gpuleak.session.rerun.unseen.restoring import Restore, all_of, keep_mapping, nothing, replace

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

_SAVED: dict[int, int] = {}
"""Descriptors of the standard streams as they were, by number, while a re-run's writes to them are dropped."""


def open_stderr() -> int:
    """Return a new descriptor of stderr that neither pytest's capturing nor a muted re-run redirects."""
    try:
        return out_of_the_way(os.dup(_SAVED.get(2, 2)))
    except OSError:  # it is closed
        return os.open(os.devnull, os.O_WRONLY)


class _Sink:
    """A stream that drops what is written, and is as another in all else."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        del lines

    @property
    def buffer(self) -> io.BytesIO:
        return io.BytesIO()


def mute_terminal(config: pytest.Config) -> Restore:
    """Mute what pytest's terminal reporter writes."""
    writer: Any = getattr(config.pluginmanager.get_plugin("terminalreporter"), "_tw", None)
    if writer is None:
        return nothing
    restore = keep_mapping(vars(writer))
    writer._file = _Sink(writer._file)
    return restore


def mute_capture(config: pytest.Config) -> Restore:
    """Mute what pytest's capturing lets through, by its kind."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    method = "no" if capture is None else getattr(capture, "_method", "")
    restores: list[Restore] = []
    if capture is not None:
        # `with capsys.disabled()` must not print on the terminal within a re-run.
        restores.append(replace(capture, "global_and_fixture_disabled", contextlib.nullcontext))
    if method == "no":
        streams = [name for name in ("stdout", "stderr") if getattr(sys, name) is not None]
        restores += [replace(sys, name, _Sink(getattr(sys, name))) for name in streams]
    if method == "tee-sys":
        for way in ("out", "err"):  # what is captured goes to the capture alone (`_pytest.capture.TeeCaptureIO`)
            file: Any = getattr(getattr(getattr(capture, "_global_capturing", None), way, None), "tmpfile", None)
            if hasattr(file, "_other"):
                restores.append(replace(file, "_other", _Sink(file._other)))
    if method != "fd":
        restores += map(_mute_descriptor, (1, 2))
    return all_of(restores)


def mute_log(config: pytest.Config) -> Restore:
    """Mute pytest's live log and its log file."""
    plugin: Any = config.pluginmanager.get_plugin("logging-plugin")
    handlers = [getattr(plugin, name, None) for name in ("log_cli_handler", "log_file_handler")]
    found = [handler for handler in handlers if handler is not None]
    for handler in found:
        handler.addFilter(_refuse)
    return all_of(functools.partial(handler.removeFilter, _refuse) for handler in found)


def _refuse(_record: object) -> bool:
    return False


def _mute_descriptor(descriptor: int) -> Restore:
    with contextlib.suppress(Exception):  # what was printed before must not be dropped with it
        (sys.__stdout__ if descriptor == 1 else sys.__stderr__).flush()  # type: ignore[union-attr]
    try:
        saved = out_of_the_way(os.dup(descriptor))
    except OSError:  # it is closed
        return nothing
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
    outermost = _SAVED.setdefault(descriptor, saved) == saved  # a run within a test that is run again mutes it again

    def restore() -> None:
        if outermost:
            del _SAVED[descriptor]
        os.dup2(saved, descriptor)
        os.close(saved)

    return restore


SWALLOWED = ("pytest_runtest_logreport", "pytest_exception_interact", "pytest_assertion_pass")
"""Hooks that no plugin is called for. Sub-tests log their reports themselves, and request a debugger (`--pdb`)."""


def swallow_reports(item: pytest.Item) -> Restore:
    """Log no report and record no warning of the re-run: plugins would turn what a test noted into a failure."""
    manager, hooks = item.config.pluginmanager, item.config.hook
    subset = manager.subset_hook_caller
    users = [impl.plugin for impl in hooks.pytest_runtest_makereport.get_hookimpls() if _is_users(impl, item)]
    # Use pluggy's own callers: a plugin that lists its hooks during the re-run reads their implementations.
    silent: dict[str, Any] = {name: subset(name, manager.get_plugins()) for name in SWALLOWED}
    silent["pytest_runtest_makereport"] = subset("pytest_runtest_makereport", users)

    def subset_but_silent(name: str, remove_plugins: Any) -> Any:
        return silent[name] if name in silent else subset(name, remove_plugins)

    warned = contextlib.ExitStack()
    warned.enter_context(warnings.catch_warnings(record=True))
    replaced = [replace(hooks, name, caller) for name, caller in silent.items()]
    # An item below a conftest.py uses a proxy that the plugin manager creates each time.
    return all_of([*replaced, replace(manager, "subset_hook_caller", subset_but_silent), warned.close])


def _is_users(impl: Any, item: pytest.Item) -> bool:
    code = getattr(impl.function, "__code__", None)
    own = impl.function.__module__.startswith(("pytest_gpuleak.", "_pytest."))  # pytest may be installed anywhere
    return code is not None and not own and is_user_file(code.co_filename, str(item.config.rootpath))
