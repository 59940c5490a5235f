"""Read the markers on a test, and derive its policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.session.config import values
from pytest_gpuleak.session.config.settings import build_policy
from pytest_gpuleak.session.options import ALLOW_MARKER, OPTIONS, POLICY_MARKER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpuleak.model.policy import Policy, Settings

_ARGUMENTS = {
    POLICY_MARKER: {option.name: values.kind_of(option) for option in OPTIONS if option.marker},
    ALLOW_MARKER: {"reason": values.REASON},
}

USAGE_ERROR_KEY = "gpu_leak_usage_error"
"""Key of a worker's usage error in its ``workeroutput``."""


def why_not_accepted(mark: pytest.Mark) -> str | None:
    """Tell why a marker `gpu_leak` or `allow_gpu_leak` is not accepted; None where it is."""
    known = _ARGUMENTS[mark.name]
    if mark.args:
        given = values.show(mark.args[0])
        return f"positional argument {given} is not accepted, only keyword arguments: {', '.join(known)}"
    required = {"reason": None} if mark.name == ALLOW_MARKER else {}
    return values.why_not_accepted({**required, **mark.kwargs}, known)


def policy_of(node: pytest.Item | pytest.Collector, settings: Settings) -> Policy:
    """Find the policy of a test, or of a class's or module's setup. Raises ValueError for a marker added late."""
    marks = closest_first(node, POLICY_MARKER, ALLOW_MARKER)
    if not marks:
        return settings.policy
    named: dict[str, Any] = {}
    allowed: str | None = None
    for mark in marks:
        why = why_not_accepted(mark)
        if why is not None:
            raise ValueError(f"pytest.mark.{mark.name}: {why}")
        if mark.name == ALLOW_MARKER:
            allowed = allowed or mark.kwargs["reason"]
        else:
            for name, given in mark.kwargs.items():
                named.setdefault(name, _ARGUMENTS[POLICY_MARKER][name].parse(given))
    policy = build_policy({**settings.named, **named}) if named else settings.policy
    return policy if allowed is None else policy._replace(allowed=allowed)


def check_markers(items: Iterable[pytest.Item]) -> None:
    """Check the markers `gpu_leak` and `allow_gpu_leak` of the collected tests. Raises as `check_each` does."""
    check_each(items, why_not_accepted, POLICY_MARKER, ALLOW_MARKER)


def check_each(items: Iterable[pytest.Item], why_not: Callable[[pytest.Mark], str | None], *names: str) -> None:
    """Check markers of these names. Raises pytest.UsageError for a bad one: for a worker, the controller does."""
    seen: set[int] = set()
    for item in items:
        for mark in closest_first(item, *names):
            # All tests of a module share its marker. The nodes keep it alive, so ids are unique.
            if id(mark) not in seen:
                seen.add(id(mark))
                why = why_not(mark)
                if why is not None:
                    file, line, _ = item.location
                    place = f"{item.nodeid} ({file}:{(line or 0) + 1})"
                    error = f"pytest.mark.{mark.name}: {why}; on {place}"
                    output = getattr(item.config, "workeroutput", None)
                    if output is None:
                        raise pytest.UsageError(error)
                    output[USAGE_ERROR_KEY] = error
                    raise pytest.Session.Failed("usage error")


def closest_first(node: pytest.Item | pytest.Collector, *names: str) -> list[pytest.Mark]:
    """List the markers of these names on a node: its parameter's, its own, its class's, its module's."""
    ours: list[pytest.Mark] = []
    above: Any = node
    while above is not None:
        for mark in above.own_markers:
            if mark.name in names:
                ours.append(mark)
        above = above.parent
    if not ours:
        return ours
    # pytest lists markers of `pytest.param(..., marks=...)` after the function's own, though they are closer.
    of_parameter = {id(mark) for mark in getattr(getattr(node, "callspec", None), "marks", ())}
    return sorted(ours, key=lambda mark: id(mark) not in of_parameter)
