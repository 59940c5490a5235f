"""Restore after a re-run what pytest and plugins keep on a test, on the session, in the cache and in folders."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import sys
import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.session.rerun.unseen.restoring import Restore, all_of, keep_list, keep_mapping, keep_names, nothing

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ITEM_NAMES = frozenset({"funcargs", "_request", "_obj", "_instance", "_testcase", "_store"})
"""Attributes of a test that the re-run's own steps create, and that are released after it."""


RUNNER_NAMES = ("tries", "failures", "skips", "test", "optionflags", "original_optionflags", "debugger")
"""Counts and state of a `doctest.DocTestRunner`, which all doctests of a module share."""


def keep_item(item: pytest.Item) -> Restore:
    """Note what pytest and plugins keep on a test (`item.rep_call`, hypothesis's statistics)."""
    keywords: Any = item.keywords
    return all_of(
        [
            keep_mapping(vars(item), leave=ITEM_NAMES),
            keep_mapping(item.stash._storage),
            keep_list(item.user_properties),
            keep_list(item._report_sections),
            keep_list(item.own_markers),
            keep_mapping(keywords._markers),
        ]
    )


def keep_session(item: pytest.Item) -> Restore:
    """Note whether the session is to stop, pytest's cache, JUnit's notes and the interpreter's fault handler."""
    session, config = item.session, item.config
    return all_of(
        [
            # Setting the properties of these names emits a warning.
            keep_names(vars(session), ["_shouldstop", "_shouldfail", "shouldstop", "shouldfail", "testsfailed"]),
            _keep_junit(item),
            _keep_cache(config),
            _keep_fault_handler(config),
        ]
    )


def _keep_junit(item: pytest.Item) -> Restore:
    # Fixtures write attributes of the test and properties of the suite at once.
    module: Any = sys.modules.get("_pytest.junitxml")
    xml = None if module is None else item.config.stash.get(module.xml_key, None)
    if xml is None:
        return nothing
    restores = [keep_list(xml.global_properties)]
    for reporter in list(xml.node_reporters.values()):
        restores += [keep_mapping(reporter.attrs), keep_list(reporter.properties), keep_list(reporter.nodes)]
    return all_of(restores)


def _keep_cache(config: pytest.Config) -> Restore:
    # Read each file before `config.cache.set` writes it.
    cache: Any = getattr(config, "cache", None)
    if cache is None:
        return nothing
    write, contents = cache.set, {}

    def write_for_now(key: str, value: object) -> None:
        path: Path = cache._getvaluepath(key)
        if path not in contents:
            contents[path] = path.read_bytes() if path.is_file() else None
        write(key, value)

    vars(cache)["set"] = write_for_now

    def restore() -> None:
        vars(cache).pop("set", None)
        for path, content in contents.items():
            with contextlib.suppress(OSError):
                if content is None:
                    path.unlink()
                else:
                    path.write_bytes(content)

    return restore


def _keep_fault_handler(config: pytest.Config) -> Restore:
    # pytest's timer for a slow test, which has ended, covers the whole protocol, and may end the process.
    if config.pluginmanager.hasplugin("faulthandler") and float(config.getini("faulthandler_timeout") or 0) > 0:
        faulthandler.cancel_dump_traceback_later()
    enabled = faulthandler.is_enabled()

    def restore() -> None:
        if enabled and not faulthandler.is_enabled():
            module: Any = sys.modules.get("_pytest.faulthandler")
            key = getattr(module, "fault_handler_stderr_fd_key", None)
            copied: Any = None if key is None else config.stash.get(key, None)
            file: Any = sys.__stderr__ if copied is None else copied
            faulthandler.enable(file)
        elif not enabled and faulthandler.is_enabled():
            faulthandler.disable()

    return restore


def keep_temporary_folders(item: pytest.Item) -> Restore:
    """Note the folders below pytest's base. New ones are removed, unless a fixture that stays may have made them."""
    factory: Any = getattr(item.config, "_tmp_path_factory", None)
    base: Path | None = getattr(factory, "_basetemp", None)
    if factory is None:
        return nothing
    numbers: dict[str, int] | None = getattr(factory, "_next_number", None)  # pytest 9.1
    counted = None if numbers is None else dict(numbers)
    before = {} if base is None else _entries(base)
    fixtures = _set_up(item)

    def restore() -> None:
        made_in: Path | None = factory._basetemp
        if made_in is None or not _set_up(item) <= fixtures:
            return
        for name, target in _entries(made_in).items():
            if before.get(name, name) != target:  # a new folder has no entry, a new link another target
                _put_back(made_in / name, before.get(name))
        if numbers is not None and counted is not None:
            numbers.clear()
            numbers.update(counted)

    return restore


def _entries(folder: Path) -> dict[str, str | None]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        # os.readlink on a plain string: `Path.readlink` would create an object for each.
        return {entry.name: os.readlink(entry.path) if entry.is_symlink() else None for entry in entries}  # noqa: PTH115
    return {}


def _put_back(path: Path, target: str | None) -> None:
    with contextlib.suppress(OSError):
        if path.is_symlink():
            path.unlink()
            if target is not None:
                path.symlink_to(target)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _set_up(item: pytest.Item) -> frozenset[int]:
    hooks: Any = item.config.pluginmanager.get_plugin("gpuleak-runtest")
    found: frozenset[int] = hooks.wider_fixtures()
    return found


def revive_doctest(item: pytest.Item) -> Restore:
    """Give a doctest its module's names for the re-run: `doctest.DebugRunner.run` clears them when it has passed."""
    module: Any = sys.modules.get("_pytest.doctest")
    if module is None or module.DoctestItem not in type(item).__mro__:
        return nothing
    test: Any = vars(item)["dtest"]
    runner: Any = vars(item)["runner"]
    results = [value for name in ("_name2ft", "_stats") if type(value := vars(runner).get(name)) is dict]
    restore = all_of([*map(keep_mapping, [test.globs, *results]), keep_names(vars(runner), RUNNER_NAMES)])
    if "__name__" not in test.globs:
        test.globs.update(_names_of(test))
    return restore


def _names_of(test: Any) -> dict[str, Any]:
    """Return the module's names; a text file has none but ``__name__``."""
    parts = test.name.split(".")
    for length in range(len(parts), 0, -1):
        module = sys.modules.get(".".join(parts[:length]))
        if type(module) is types.ModuleType and _is_of(module, test.filename):
            return {"__name__": "__main__", **vars(module)}
    return {"__name__": "__main__"}


def _is_of(module: types.ModuleType, filename: str | None) -> bool:
    source = vars(module).get("__file__")
    if filename is None or type(source) is not str:
        return False
    return source == filename or source.removesuffix("c") == filename
