"""Hints on what pytest keeps: test instances, recorded properties, session, config, higher-scoped fixtures' values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.hints.pattern import Pattern
from pytest_gpuleak.explain.hints.trail import code

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail

KEPT_INSTANCE: Final = "kept by pytest"
"""Part of the root's text of a test class's instance (`explain.paths`)."""

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
_SHARED_BY_PYTEST: Final = ("_pytest.config.", "_pytest.fixtures.", "_pytest.tmpdir.")
"""How the types begin of what is not a value that a user has given a fixture."""

_BORROWED: Final = (".config", ".session", ".parent", ".cls", ".obj", ".module", ".instance", ".funcargs")


kept_instance: Final = Pattern(
    "pytest keeps the instance of a test class until the session ends, and with it what the test put on `self`: delete "
    "the attribute in teardown_method (`tearDown` of a TestCase), or use a fixture or a local variable.",
    root=rf"(?s:.*{KEPT_INSTANCE}.*)",
    kinds=("fixture",),
)
"""An attribute of a test class's instance (pytest-dev/pytest, Function._instance).

Of a TestCase that wraps its method in its constructor (torch.testing._internal.common_utils), the item's keywords keep it.
"""


recorded_property: Final = Pattern(
    "pytest keeps what `record_property` was given until the session ends: record a plain value, such as "
    "`loss.item()`.",
    root=r"(?s:user_properties of .*)",
    kinds=("fixture",),
)
"""An array given to `record_property`: the item and its reports keep it."""


def session_object(trail: Trail) -> str | None:
    """Recognise an attribute or stash item of pytest's config, session or nodes."""
    index = max((index for index, step in enumerate(trail.steps) if step.type in _OWN), default=None)
    if trail.kind != "fixture" or index is None:
        return None
    edge = trail.edge(index)
    if not trail.is_plain(index) or edge.startswith("._") or edge in _BORROWED:
        return None
    return (
        f"pytest's {_OWN[trail.type(index)]} keeps {code(edge)} until the session ends: delete in teardown what the "
        "test put there, or use a fixture's value."
    )


shared_fixture: Final = Pattern(
    "The test left it in the value of {fixture}, which outlives the test: undo that in teardown, or give the fixture "
    "function scope.",
    root=r"(?s:(?P<fixture>fixture .*))",
    kinds=("fixture",),
    holds=lambda trail, _: bool(trail.steps) and not trail.type(0).startswith(_SHARED_BY_PYTEST),
)
"""What a test put into the value of a higher-scoped fixture."""
