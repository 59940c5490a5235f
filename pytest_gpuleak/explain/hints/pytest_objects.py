"""Hints on what pytest keeps: test instances, recorded properties, session, config, higher-scoped fixtures' values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.hints.trail import code, cut

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail

KEPT_INSTANCE: Final = "kept by pytest"
"""Part of the root's text of a test class's instance (`explain.paths`)."""

_RECORDED: Final = "user_properties of "
_OWN: Final = {
    "_pytest.config.Config": "config",
    "_pytest.main.Session": "session",
    "_pytest.python.Function": "item",
    "_pytest.unittest.TestCaseFunction": "item",
    "_pytest.unittest.UnitTestCase": "class's node",
    "_pytest.python.Class": "class's node",
    "_pytest.python.Module": "module's node",
    "_pytest.python.Package": "package's node",
}
_BORROWED: Final = (".config", ".session", ".parent", ".cls", ".obj", ".module", ".instance", ".funcargs")


def kept_instance(trail: Trail) -> str | None:
    """Recognise an attribute of a test class's instance (pytest-dev/pytest, Function._instance)."""
    if trail.kind != "fixture" or KEPT_INSTANCE not in trail.root:
        return None
    return (
        "pytest keeps the instance of a test class until the session ends, and with it what the test put on `self`: "
        "delete the attribute in teardown_method, or use a fixture or a local variable."
    )


def recorded_property(trail: Trail) -> str | None:
    """Recognise an array given to `record_property`: the item and its reports keep it."""
    if trail.kind != "fixture" or not trail.root.startswith(_RECORDED):
        return None
    return (
        "pytest keeps what `record_property` was given until the session ends: record a plain value, such as "
        "`loss.item()`."
    )


def session_object(trail: Trail) -> str | None:
    """Recognise an attribute or stash item of pytest's config, session or nodes."""
    if trail.kind != "fixture":
        return None
    own = [index for index, step in enumerate(trail.steps) if step.type in _OWN]
    if not own:
        return None
    edge = trail.edge(own[-1])
    if not trail.is_plain(own[-1]) or edge.startswith("._") or edge in _BORROWED:
        return None
    noun = _OWN[trail.type(own[-1])]
    return (
        f"pytest's {noun} keeps {code(edge)} until the session ends: delete in teardown what the test put there, or use "
        "a fixture's value."
    )


def shared_fixture(trail: Trail) -> str | None:
    """Recognise what a test put into the value of a higher-scoped fixture."""
    if trail.kind != "fixture" or not trail.root.startswith("fixture ") or not trail.steps:
        return None
    if trail.type(0).startswith("_pytest.") or not trail.is_plain_until(len(trail.steps)):
        return None
    return (
        f"The test left it in the value of {cut(trail.root)}, which outlives the test: undo that in teardown, or give "
        "the fixture function scope."
    )
