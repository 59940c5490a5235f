"""Hide a re-run from plugins that the rest of `unseen` does not cover, a row each. `docs/plugins.md` lists them."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuleak.session.rerun.unseen.restoring import Restore, all_of, keep_list, keep_mapping, keep_names, nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Hidden(NamedTuple):
    """A plugin, loaded with `module`, that would record a re-run (`why`: what of it) unless `hide` is called."""

    module: str
    why: str
    hide: Callable[[pytest.Item, Any], Restore]


class Refused(NamedTuple):
    """A plugin, loaded with `module`, under which a test is not run again, unless `why_not` returns ""."""

    module: str
    why_not: Callable[[pytest.Item], str]


class NotHiddenError(Exception):
    """Raised if a re-run cannot be hidden from a plugin, such as an untested version of it."""


def hide_from_plugins(item: pytest.Item) -> Restore:
    """Hide a re-run of the test from the loaded plugins. Raises NotHiddenError if a plugin does not match its row."""
    restores: list[Restore] = []
    for row in HIDDEN:
        module = sys.modules.get(row.module)
        if module is not None:
            try:
                restores.append(row.hide(item, module))
            except Exception as error:
                all_of(restores)()
                package = row.module.partition(".")[0]
                raise NotHiddenError(
                    f"a re-run cannot be hidden from {package} ({type(error).__name__}: {error})"
                ) from error
    return all_of(restores)


def why_not_again(item: pytest.Item) -> str:
    """Return why a plugin would record a re-run of the test; empty if none would."""
    for row in REFUSED:
        if row.module in sys.modules:
            with contextlib.suppress(Exception):  # another version than was tried
                reason = row.why_not(item)
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
        for caller, implementations in saved:
            known = {id(one) for one in implementations}
            new = [one for one in caller._hookimpls if id(one) not in known]  # registered by the test
            caller._hookimpls = [*implementations, *new]

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
    attributes = vars(item)
    restore = keep_names(attributes, ["_json_report_extra"])
    if "_json_report_extra" in attributes:  # the first run's are written when its teardown's report is logged
        attributes["_json_report_extra"] = {}
    return all_of([restore, _mute_all_of(item, module)])


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
    state = vars(session)
    queued = state.get("_queued_snapshot_writes", {})
    option = item.config.option
    kept = keep_names(vars(option), ["update_snapshots"])
    option.update_snapshots = False
    extensions = state.get("_extensions")
    mappings = [queued, *queued.values(), *([extensions] if type(extensions) is dict else [])]
    return all_of([kept, keep_list(session._assertions), *map(keep_mapping, mappings)])


def _hide_from_hypothesis(item: pytest.Item, hypothesis: Any) -> Restore:
    # A traced re-run takes longer than the first run, and a failing one would leave its example for the next session.
    restores = [_silence_observations()]
    test = getattr(item, "obj", None)
    function: Any = test.__func__ if type(test) is types.MethodType else test
    names = vars(function) if type(function) is types.FunctionType else {}
    settings = names.get("_hypothesis_internal_use_settings")
    if settings is not None:
        restores.append(keep_names(names, ["_hypothesis_internal_use_settings"]))
        names["_hypothesis_internal_use_settings"] = _for_a_rerun(hypothesis, settings)
    elif item.parent is not None:  # a state machine's test case has its settings on the class
        case = getattr(item.parent, "obj", None)
        settings = vars(case).get("settings") if isinstance(case, type) else None
        if type(settings) is hypothesis.settings:
            case_type: Any = case
            case_type.settings = _for_a_rerun(hypothesis, settings)
            restores.append(lambda: setattr(case_type, "settings", settings))
    return all_of(restores)


def _for_a_rerun(hypothesis: Any, settings: Any) -> Any:
    checks = {*settings.suppress_health_check, hypothesis.HealthCheck.differing_executors}
    checks.add(hypothesis.HealthCheck.too_slow)
    return hypothesis.settings(settings, database=None, deadline=None, suppress_health_check=[*checks])


def _silence_observations() -> Restore:
    module: Any = sys.modules.get("hypothesis.internal.observability")
    restores: list[Restore] = []
    for name in ("TESTCASE_CALLBACKS", "_callbacks", "_callbacks_all_threads"):
        callbacks: Any = vars(module).get(name) if module is not None else None
        if type(callbacks) in (list, dict):
            restores.append(keep_mapping(callbacks) if type(callbacks) is dict else keep_list(callbacks))
            callbacks.clear()
    return all_of(restores)


def _no_breakpoints(_item: pytest.Item, pdb: Any) -> Restore:
    restore = all_of([keep_names(vars(pdb), ["set_trace"]), keep_names(vars(sys), ["breakpointhook"])])

    def go_on(*arguments: object, **options: object) -> None:
        del arguments, options

    pdb.set_trace = sys.breakpointhook = go_on
    return restore


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


HIDDEN: tuple[Hidden, ...] = (
    Hidden("coverage", "lines and contexts of the re-run", _pause_coverage),
    Hidden("pytest_benchmark.plugin", "a second row, traced and slower", _cut_benchmarks),
    Hidden("pytest_jsonreport.plugin", "metadata, log and output", _hide_from_json_report),
    Hidden("allure_pytest.listener", "labels, steps, attachments, fixtures", _mute_allure),
    Hidden("syrupy.session", "a second use of each snapshot, an update", _keep_snapshots),
    Hidden("hypothesis", "failing examples, observations", _hide_from_hypothesis),
    Hidden("pytest_rerunfailures", "a failed attempt; it puts finalizers of wider fixtures aside", _mute_all_of),
    Hidden("pdb", "a second stop at a breakpoint", _no_breakpoints),
)
"""Plugins, and Python's debugger, that would see a re-run."""

REFUSED: tuple[Refused, ...] = (Refused("pytest", _why_not_debugged), Refused("vcr", _why_not_recorded))
"""Plugins under which a test is not run again."""
