"""What pytest itself keeps."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.explain import explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.interpreter


class Thing:
    """Stands for a tensor."""


@pytest.fixture(scope="module")
def store() -> dict[str, object]:
    return {"big": Thing()}


@pytest.fixture
def batch() -> Iterator[list[Thing]]:
    inner = Thing()
    yield [Thing()]
    del inner


def test_fixture_value(store: dict[str, object]) -> None:
    holder = explain([store["big"]])[0].holder
    assert (holder.kind, holder.root, holder.text) == ("fixture", "fixture 'store'", "fixture 'store'['big']")
    assert holder.file == __file__


def test_fixture_of_the_test(batch: list[Thing]) -> None:
    holder = explain([batch[0]])[0].holder
    assert (holder.kind, holder.text) == ("fixture", "fixture 'batch'[0]")


def test_recorded_property(record_property: Callable[[str, object], None]) -> None:
    record_property("loss", Thing())
    properties = _properties(sys._getframe(1))
    holder = explain([properties[-1][1]])[0].holder
    properties.clear()  # under xdist a report travels, and a Thing cannot
    assert holder.kind == "fixture"
    assert "user_properties of pytest item 'test_recorded_property'" in holder.text or "fixture" in holder.text


def _properties(frame: Any) -> Any:
    while frame is not None:
        item = frame.f_locals.get("item")
        if isinstance(item, pytest.Item):
            return item.user_properties
        frame = frame.f_back
    raise AssertionError


class TestSeveral:
    def test_attributes_of_one_instance(self) -> None:
        self.x, self.y = [Thing()], Thing()
        texts = [found.holder.text for found in explain([self.x[0], self.y])]
        assert texts == ["TestSeveral instance kept by pytest.x[0]", "TestSeveral instance kept by pytest.y"]


class TestModel:
    def test_instance(self) -> None:
        self.x = [Thing()]
        holder = explain([self.x[0]])[0].holder
        assert (holder.kind, holder.root) == ("fixture", "TestModel instance kept by pytest")
        assert holder.text == "TestModel instance kept by pytest.x[0]"
