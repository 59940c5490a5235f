"""Hints on what pytest keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.explain.hints import pytest_objects
from tests.support.leaks import hint_for, leak, trail

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding

pytestmark = pytest.mark.newest

ITEM = "pytest item 'test_it'"


@pytest.mark.parametrize(
    ("finding", "start"),
    [
        (
            leak("TestNet instance kept by pytest", (".x", "test_it.TestNet"), kind="fixture", found="retained"),
            "pytest keeps the instance of a test class until the session ends",
        ),
        (
            leak(f"user_properties of {ITEM}", ("[0]", "list"), ("[1]", "tuple"), kind="fixture", found="retained"),
            "pytest keeps what `record_property` was given",
        ),
        (
            leak(
                ITEM,
                (".config", "_pytest.python.Function"),
                (".xs", "_pytest.config.Config"),
                ("[0]", "list"),
                kind="fixture",
            ),
            "pytest's config keeps `.xs`",
        ),
        (leak(ITEM, (".batch", "_pytest.python.Function"), kind="fixture"), "pytest's item keeps `.batch`"),
        (leak("pytest item '?'", (".keep", "_pytest.main.Session"), kind="fixture"), "pytest's session keeps `.keep`"),
        (
            leak("fixture 'shared'", ("['x']", "dict"), kind="fixture", found="retained"),
            "The test left it in the value of fixture 'shared'",
        ),
    ],
)
def test_what_pytest_keeps_is_named(finding: Finding, start: str) -> None:
    hint = hint_for(finding)
    assert hint is not None
    assert hint.startswith(start)


@pytest.mark.parametrize(
    "finding",
    [
        leak("app.kept by pytest", kind="module"),
        leak("fixture 'model'", kind="fixture"),  # the fixture's own value
        leak("fixture 'model'", (".func", "_pytest.fixtures.FixtureDef"), (".x", "function"), kind="fixture"),
        leak(ITEM, ("._request", "_pytest.python.Function"), kind="fixture"),
        leak(ITEM, (".config", "_pytest.python.Function"), (".x", "app.Plugin"), kind="fixture"),
        leak("app.ITEMS", ("[0]", "list"), (".batch", "_pytest.python.Function"), found="cycle"),
    ],
)
def test_what_pytest_keeps_for_itself_gets_no_hint_of_this_kind(finding: Finding) -> None:
    for inspect in (
        pytest_objects.kept_instance,
        pytest_objects.recorded_property,
        pytest_objects.session_object,
        pytest_objects.shared_fixture,
    ):
        assert inspect(trail(finding)) is None
