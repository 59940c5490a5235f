"""Restore after a re-run what pytest and plugins keep on a test, on the session, in the cache and in folders."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.heap.safe_access import module_dict, plain_text
from pytest_gpuleak.session.attempt import TRACKER
from pytest_gpuleak.session.pytest_internals import COLLECTED, fixture_lists
from pytest_gpuleak.session.rerun.unseen.restoring import (
    Restore,
    all_of,
    keep_list,
    keep_mapping,
    keep_names,
    keep_value,
    nothing,
    replace,
)

if TYPE_CHECKING:
    from pathlib import Path

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


def forget_fixtures(item: pytest.Item) -> Restore:
    """Forget what the last run has registered for the test's own node (`pytest.register_fixture`), which pytest keeps.

    The re-run registers its own, and beside older ones of the same name would be given the value of these.
    """
    collected = item.config.stash[COLLECTED]
    for place, fixtures in fixture_lists(item.session):
        if place in (item, item.nodeid, None):
            fixtures[:] = [one for one in fixtures if id(one) in collected or one.baseid != item.nodeid]
    return nothing


def renew_instance(item: pytest.Item) -> Restore:
    """Have pytest make a new instance of a plain test class: a second run on the first would see its attributes."""
    attributes = vars(item)
    if type(attributes.get("_obj")) is not types.MethodType or not isinstance(item.parent, pytest.Class):
        return nothing
    names = ("_obj", "_instance")
    restore = keep_names(attributes, names)
    for name in names:
        attributes.pop(name, None)
    return restore


def keep_session(item: pytest.Item) -> Restore:
    """Note whether the session is to stop, and how many tests have failed."""
    # Setting the properties of these names emits a warning.
    return keep_names(vars(item.session), ["_shouldstop", "_shouldfail", "shouldstop", "shouldfail", "testsfailed"])


def keep_junit(item: pytest.Item) -> Restore:
    """Note what fixtures have written for JUnit at once: attributes of the test, properties of the suite."""
    module: Any = sys.modules.get("_pytest.junitxml")
    xml = None if module is None else item.config.stash.get(module.xml_key, None)
    if xml is None:
        return nothing
    restores = [keep_list(xml.global_properties)]
    for reporter in list(xml.node_reporters.values()):
        restores += [keep_mapping(reporter.attrs), keep_list(reporter.properties), keep_list(reporter.nodes)]
    return all_of(restores)


def keep_cache(item: pytest.Item) -> Restore:
    """Read each file of pytest's cache before the re-run writes it."""
    cache: Any = getattr(item.config, "cache", None)
    if cache is None:
        return nothing
    write, contents = cache.set, {}

    def write_for_now(key: str, value: object) -> None:
        path: Path = cache._getvaluepath(key)
        if path not in contents:
            contents[path] = path.read_bytes() if path.is_file() else None
        write(key, value)

    def restore() -> None:
        for path, content in contents.items():
            with contextlib.suppress(OSError):
                if content is None:
                    path.unlink()
                else:
                    path.write_bytes(content)

    return all_of([restore, replace(cache, "set", write_for_now)])


def keep_fault_handler(item: pytest.Item) -> Restore:
    """Note whether crashes are reported, and stop pytest's timer for a slow test, which has ended."""
    config = item.config
    if config.pluginmanager.hasplugin("faulthandler") and float(config.getini("faulthandler_timeout") or 0) > 0:
        faulthandler.cancel_dump_traceback_later()  # it covers the whole protocol, and may end the process

    def write(enabled: bool) -> None:
        key = getattr(sys.modules.get("_pytest.faulthandler"), "fault_handler_stderr_fd_key", None)
        stderr: Any = sys.__stderr__ if key is None else config.stash.get(key, sys.__stderr__)
        if enabled:
            faulthandler.enable(stderr)
        else:
            faulthandler.disable()

    return keep_value(faulthandler.is_enabled, write)


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


def keep_temporary_folders(item: pytest.Item) -> Restore:
    """Note the folders below pytest's base. New ones are removed, unless a fixture that stays may have made them."""
    factory: Any = getattr(item.config, "_tmp_path_factory", None)
    base: Path | None = getattr(factory, "_basetemp", None)
    if factory is None:
        return nothing
    numbers: dict[str, int] = getattr(factory, "_next_number", {})  # pytest 9.1
    counted = keep_mapping(numbers)
    before = {} if base is None else _entries(base)
    fixtures = _set_up(item)

    def restore() -> None:
        made_in: Path | None = factory._basetemp
        if made_in is None or not _set_up(item) <= fixtures:
            return
        for name, target in _entries(made_in).items():
            if before.get(name, name) != target:  # a new folder has no entry, a new link another target
                _put_back(made_in / name, before.get(name))
        counted()

    return restore


def _entries(folder: Path) -> dict[str, str | None]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        # os.readlink on a plain string: `Path.readlink` would create an object for each.
        return {entry.name: os.readlink(entry.path) if entry.is_symlink() else None for entry in entries}  # noqa: PTH115
    return {}


def _put_back(path: Path, target: str | None) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()
        if target is not None:
            path.symlink_to(target)


def _set_up(item: pytest.Item) -> frozenset[int]:
    return item.config.stash[TRACKER].ownership.active_ids


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
        names = module_dict(sys.modules.get(".".join(parts[:length]))) or {}
        source = plain_text(names.get("__file__"))
        if source is not None and test.filename in (source, source.removesuffix("c")):
            return {"__name__": "__main__", **names}
    return {"__name__": "__main__"}
