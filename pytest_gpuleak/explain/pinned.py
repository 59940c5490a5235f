"""Tell an exception that user code keeps from one of a failed test, which pytest keeps until reports are written."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from pytest_gpuleak.explain.edges.chain import Line
    from pytest_gpuleak.model.findings import HolderKind

_RUNNERS: Final = ("_pytest", "pluggy", "unittest")
"""Packages whose frames catch a test's error (_pytest/runner.py, CallInfo.from_call; unittest/case.py, _Outcome)."""

_INFO: Final = "_pytest._code.code.ExceptionInfo"


def left_by_failure(line: Line, kind: HolderKind) -> tuple[int, Any] | None:
    """Return a failed test's exception or traceback on a path, with its position; None where user code keeps it."""
    if kind == "frame":
        return line.met.pinned
    if kind not in ("fixture", "thread"):
        return None
    # pytest keeps a failed test's exception with its arguments, also without a traceback.
    found = line.met.pinned or (line.met.error if kind == "fixture" else None)
    if found is None or (kind == "fixture" and _is_users_value(line)):
        return None
    before = [value for position, value in line.objects.items() if position < found[0]]
    if kind == "fixture" and any(safe_access.class_label(type(value)) == _INFO for value in before):
        return found
    return found if _caught_by_runner(line, found) else None


def _is_users_value(line: Line) -> bool:
    """Tell whether a path leads through a fixture's value (not pytest's own `pytestconfig`) or a test's instance."""
    edges = [step.text for step in line.steps[:2]]
    if edges[:1] == ["._instance"] or edges == ["._obj", ".__self__"]:
        return True
    if edges != [".cached_result", "[0]"]:
        return False
    value = line.objects.get(line.steps[2].position if len(line.steps) > 2 else line.end)
    return not safe_access.in_package(type(value), "_pytest")


def _caught_by_runner(line: Line, found: tuple[int, Any]) -> bool:
    """Tell whether the first traceback of the exception `found`, or below it, begins in a test runner's frame."""
    below = sorted(position for position in line.objects if position > found[0])
    for value in (found[1], *[line.objects[position] for position in below]):
        is_error = safe_access.is_a(value, BaseException)
        trace = safe_access.slot(value, BaseException, "__traceback__") if is_error else value
        if type(trace) is types.TracebackType:
            module = safe_access.plain_text(trace.tb_frame.f_globals.get("__name__"))
            return module is not None and any(safe_access.is_within(module, name) for name in _RUNNERS)
    return False
