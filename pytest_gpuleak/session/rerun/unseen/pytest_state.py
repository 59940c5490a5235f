"""Restore after a re-run what pytest and plugins keep on a test, on the session and in the cache."""

from __future__ import annotations

import contextlib
import faulthandler
import sys
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.session.rerun.unseen.restoring import Restore, all_of, keep_list, keep_mapping, keep_names, nothing

if TYPE_CHECKING:
    import pathlib

    import pytest

ITEM_NAMES = frozenset({"funcargs", "_request", "_obj", "_instance", "_testcase", "_store"})
"""Attributes of a test that the re-run's own steps create, and that are released after it."""


def keep_item(item: pytest.Item) -> Restore:
    """Note the attributes, the stash, the recorded properties and the captured output of a test.

    Plugins that follow a test's phases keep their notes on it (`item.rep_call`, hypothesis's statistics).
    """
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
    """Note what fixtures write into the JUnit report at once: attributes of the test, properties of the suite."""
    module: Any = sys.modules.get("_pytest.junitxml")
    xml = None if module is None else item.config.stash.get(module.xml_key, None)
    if xml is None:
        return nothing
    restores = [keep_list(xml.global_properties)]
    for reporter in list(xml.node_reporters.values()):
        restores += [keep_mapping(reporter.attrs), keep_list(reporter.properties), keep_list(reporter.nodes)]
    return all_of(restores)


def _keep_cache(config: pytest.Config) -> Restore:
    """Keep the files that a test writes by `config.cache.set`: read each before the re-run writes it."""
    cache: Any = getattr(config, "cache", None)
    if cache is None:
        return nothing
    write, contents = cache.set, {}

    def write_for_now(key: str, value: object) -> None:
        path: pathlib.Path = cache._getvaluepath(key)
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
    """Cancel the dump for a slow test, which has ended, and restore the handler.

    pytest's `faulthandler_timeout` covers the whole protocol, and `faulthandler_exit_on_timeout` ends the process.
    """
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
