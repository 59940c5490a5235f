"""The markers on a test, and the policy that follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.policy import Policy
from pytest_gpuleak.session.config.options import ALLOW_MARKER, POLICY_MARKER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpuleak.model.policy import Settings


def build_policy(named: Mapping[str, Any]) -> Policy:
    """The policy of the values given, by the options' names."""
    if not named:
        return Policy()
    from pytest_gpuleak.session.config.option_table import OPTIONS

    policy = Policy(**{option.target: named[option.name] for option in OPTIONS if option.name in named})
    # The pair: where one of the two alone is named, growth is judged by that one alone.
    if "mb" in named and "tensors" not in named:
        return policy._replace(growing_tensors=None)
    if "tensors" in named and "mb" not in named:
        return policy._replace(growing_bytes=None)
    return policy


def policy_of(node: pytest.Item | pytest.Collector, settings: Settings) -> Policy:
    """Find the policy of a test, or of what was set up for a class or module.

    Raises ValueError for a marker that is not accepted, which only one added after `check_markers` can be.
    """
    named: dict[str, Any] = {}
    allowed: str | None = None
    marks = closest_first(node, POLICY_MARKER, ALLOW_MARKER)
    if not marks:
        return settings.policy
    from pytest_gpuleak.session.config.option_table import MARKER_ARGUMENTS, complaint_about

    for mark in marks:
        complaint = complaint_about(mark)
        if complaint is not None:
            raise ValueError(f"pytest.mark.{mark.name}: {complaint}")
        if mark.name == ALLOW_MARKER:
            allowed = allowed or mark.kwargs["reason"]
        else:
            for name, given in mark.kwargs.items():
                named.setdefault(name, MARKER_ARGUMENTS[mark.name][name].parse(given))
    if named:
        return build_policy({**settings.named, **named})._replace(allowed=allowed)
    return settings.policy if allowed is None else settings.policy._replace(allowed=allowed)


def check_markers(items: Iterable[pytest.Item], settings: Settings) -> None:
    """Check every marker of ours on the collected tests, where tests are to be checked.

    Raises pytest.UsageError for the first that is not accepted: it names the marker, its argument and value, what is
    accepted, and the test (for a marker of a class or module, the first test in it).
    """
    if not settings.enabled:
        return
    seen: set[int] = set()
    for item in items:
        for mark in closest_first(item, POLICY_MARKER, ALLOW_MARKER):
            # One marker of a module is the same object for all its tests. The nodes keep it alive, so ids are unique.
            if id(mark) not in seen:
                seen.add(id(mark))
                from pytest_gpuleak.session.config.option_table import complaint_about

                complaint = complaint_about(mark)
                if complaint is not None:
                    raise pytest.UsageError(f"pytest.mark.{mark.name}: {complaint}; on {place_of(item)}")


def place_of(item: pytest.Item) -> str:
    """Where a test stands, for a usage error: its id, and file and line."""
    file, line, _ = item.location
    return f"{item.nodeid} ({file}:{(line or 0) + 1})"


def closest_first(node: pytest.Item | pytest.Collector, *names: str) -> list[pytest.Mark]:
    """List the markers of these names on a node: its parameter's, its own, its class's, its module's."""
    if not _has_any(node, names):
        return []
    ours = [mark for mark in node.iter_markers() if mark.name in names]
    # pytest lists what `pytest.param(..., marks=...)` adds behind the function's own, though it is closer.
    of_parameter = {id(mark) for mark in getattr(getattr(node, "callspec", None), "marks", ())} if ours else ()
    return sorted(ours, key=lambda mark: id(mark) not in of_parameter)


def _has_any(node: pytest.Item | pytest.Collector, names: tuple[str, ...]) -> bool:
    """Whether a marker of these names is on a node: asked for each test, in a third of what `iter_markers` takes."""
    above: Any = node
    while above is not None:
        if above.own_markers:
            for mark in above.own_markers:
                if mark.name in names:
                    return True
        above = above.parent
    return False
