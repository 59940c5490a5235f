"""Hide a re-run from plugins that the rest of `unseen` does not cover, a row each. `docs/plugins.md` lists them."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.heap.safe_access import is_a
from pytest_gpuleak.session.rerun.unseen.restoring import (
    Restore,
    all_of,
    keep_list,
    keep_mapping,
    keep_names,
    nothing,
    replace,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class NotHiddenError(Exception):
    """Raised if a re-run cannot be hidden from a plugin, such as an untested version of it."""


def hide_from_plugins(item: pytest.Item) -> Restore:
    """Hide a re-run of the test from the loaded plugins. Raises NotHiddenError if a plugin does not match its row."""
    restores: list[Restore] = []
    for name, hide in HIDDEN.items():
        module = sys.modules.get(name)
        if module is not None:
            try:
                restores.append(hide(item, module))
            except Exception as error:
                all_of(restores)()
                package = name.partition(".")[0]
                raise NotHiddenError(
                    f"a re-run cannot be hidden from {package} ({type(error).__name__}: {error})"
                ) from error
    return all_of(restores)


def why_not_again(item: pytest.Item) -> str:
    """Return why a plugin would record a re-run of the test; empty if none would."""
    for module, why_not in REFUSED.items():
        if module in sys.modules:
            with contextlib.suppress(Exception):  # another version than was tried
                reason = why_not(item)
                if reason:
                    return reason
    return ""


def _mute(manager: Any, plugin: Any) -> Restore:
    # Some hooks are called through a caller that already leaves out plugins.
    callers = [getattr(caller, "_orig", caller) for caller in manager.get_hookcallers(plugin) or []]
    saved = [(caller, caller._hookimpls) for caller in callers]
    for caller, implementations in saved:
        caller._hookimpls = [one for one in implementations if one.plugin is not plugin]

    def restore() -> None:
        for caller, known in saved:
            new = [one for one in caller._hookimpls if all(one is not other for other in known)]
            caller._hookimpls = [*known, *new]  # those that the test has registered too

    return restore


def _mute_all_of(item: pytest.Item, module: Any) -> Restore:
    manager = item.config.pluginmanager
    return all_of(
        _mute(manager, plugin)
        for plugin in manager.get_plugins()
        if plugin is module or type(plugin).__module__ == module.__name__
    )


def _pause_coverage(item: pytest.Item, coverage: Any) -> Restore:
    """Stop measuring: lines that only the re-run reaches would count as tested."""
    plugin: Any = item.config.pluginmanager.get_plugin("_cov")
    controller = getattr(plugin, "cov_controller", None)
    if controller is not None and controller.started:
        # A paused controller leaves its contexts alone, and does not measure child processes.
        controller.pause()
        return controller.resume  # type: ignore[no-any-return]
    current = coverage.Coverage.current()
    if current is None or not current._started:
        return nothing
    current.stop()
    return current.start  # type: ignore[no-any-return]


def _cut_benchmarks(item: pytest.Item, _module: Any) -> Restore:
    session = vars(item.config).get("_benchmarksession")
    return nothing if session is None else keep_list(session.benchmarks)


def _hide_from_json_report(item: pytest.Item, module: Any) -> Restore:
    # The first run's are written when its teardown's report is logged.
    return all_of([replace(item, "_json_report_extra", {}), _mute_all_of(item, module)])


def _mute_allure(item: pytest.Item, module: Any) -> Restore:
    """Mute allure's own plugin manager too, which receives steps and attachments."""
    commons: Any = sys.modules.get("allure_commons")
    restores = [_mute_all_of(item, module)]
    if commons is not None:
        manager = commons.plugin_manager
        restores += [_mute(manager, plugin) for plugin in manager.get_plugins()]
    return all_of(restores)


def _keep_snapshots(item: pytest.Item, _module: Any) -> Restore:
    """Keep the counts of snapshots and the pending writes; let a re-run compare, but update none."""
    session = vars(item.config).get("_syrupy")
    if session is None:
        return nothing
    queued = vars(session).get("_queued_snapshot_writes", {})
    extensions = vars(session).get("_extensions")
    mappings = [queued, *queued.values(), *([extensions] if type(extensions) is dict else [])]
    kept = [keep_list(session._assertions), *map(keep_mapping, mappings)]
    return all_of([*kept, replace(item.config.option, "update_snapshots", value=False)])


def _hide_from_hypothesis(item: pytest.Item, hypothesis: Any) -> Restore:
    """Keep no failing example for the next session; a traced re-run takes longer than the first run."""
    restores = [_silence_observations()]
    test = getattr(item, "obj", None)
    function: Any = test.__func__ if type(test) is types.MethodType else test
    case: Any = getattr(item.parent, "obj", None)  # a state machine's test case has its settings on the class
    owners: tuple[tuple[Any, type, str], ...] = (
        (function, types.FunctionType, "_hypothesis_internal_use_settings"),
        (case, type, "settings"),
    )
    for owner, kind, name in owners:
        settings: Any = vars(owner).get(name) if is_a(owner, kind) else None
        if type(settings) is hypothesis.settings:
            checks = {*settings.suppress_health_check, hypothesis.HealthCheck.differing_executors}
            checks.add(hypothesis.HealthCheck.too_slow)
            changed = hypothesis.settings(settings, database=None, deadline=None, suppress_health_check=[*checks])
            restores.append(replace(owner, name, changed))
    return all_of(restores)


def _silence_observations() -> Restore:
    module: Any = sys.modules.get("hypothesis.internal.observability")
    names = ("TESTCASE_CALLBACKS", "_callbacks", "_callbacks_all_threads")
    found: list[Any] = [] if module is None else [vars(module).get(name) for name in names]
    callbacks = [one for one in found if type(one) in (list, dict)]
    restores = [keep_mapping(one) if type(one) is dict else keep_list(one) for one in callbacks]
    for one in callbacks:
        one.clear()
    return all_of(restores)


def _set_results_aside(item: pytest.Item, harvest: Any) -> Restore:
    """Let pytest-harvest store the test's fixtures a second time, which it refuses."""
    stores = [one for one in harvest.FIXTURE_STORE.values() if item.nodeid in one]
    restore = all_of([keep_names(one, [item.nodeid]) for one in stores])
    for one in stores:
        del one[item.nodeid]
    return restore


def _no_breakpoints(_item: pytest.Item, pdb: Any) -> Restore:
    def go_on(*arguments: object, **options: object) -> None:
        del arguments, options

    return all_of([replace(pdb, "set_trace", go_on), replace(sys, "breakpointhook", go_on)])


def _why_not_debugged(item: pytest.Item) -> str:
    return "pytest's --trace would open the debugger a second time" if item.config.getoption("trace", False) else ""


def _why_not_recorded(item: pytest.Item) -> str:
    """Tell whether a cassette may be written: a re-run would add its requests."""
    config = item.config
    recording = config.pluginmanager.hasplugin("recording")
    # pytest-recording's fixture of this name exists for every test.
    asked = not recording and "vcr" in getattr(item, "fixturenames", ())
    if item.get_closest_marker("vcr") is None and not asked:
        return ""
    mode = config.getoption("--record-mode", None) or config.getoption("--vcr-record", None) or "none"
    if config.getoption("--disable-recording", None) or config.getoption("--disable-vcr", None) or mode == "none":
        return ""
    name = "pytest-recording" if recording else "pytest-vcr"
    return f"{name} records what it requests (record mode {mode})"


HIDDEN: dict[str, Callable[[pytest.Item, Any], Restore]] = {
    "coverage": _pause_coverage,  # lines and contexts of the re-run
    "pytest_benchmark.plugin": _cut_benchmarks,  # a second row, traced and slower
    "pytest_jsonreport.plugin": _hide_from_json_report,  # metadata, log and output
    "allure_pytest.listener": _mute_allure,  # labels, steps, attachments, fixtures
    "syrupy.session": _keep_snapshots,  # a second use of each snapshot, an update
    "hypothesis": _hide_from_hypothesis,  # failing examples, observations
    "pytest_rerunfailures": _mute_all_of,  # a failed attempt; it puts finalizers of wider fixtures aside
    "pytest_harvest.plugin": _set_results_aside,  # the fixtures of the test, which it stores once
    "pdb": _no_breakpoints,  # a second stop at a breakpoint
}
"""By their modules how a re-run is hidden from plugins, and from Python's debugger; each with what it would see."""

REFUSED: dict[str, Callable[[pytest.Item], str]] = {"pytest": _why_not_debugged, "vcr": _why_not_recorded}
"""By the modules of plugins, why a test is not run again under them; an empty text where it is."""
