"""The cycles that arrays hang on are read before a collection frees them."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from pytest_gpuleak.explain.annotate import annotate
from pytest_gpuleak.explain.cycles import STEPS, CycleReader
from pytest_gpuleak.model.findings import Finding
from tests.support.standin import Buffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuleak.model.findings import Holder

pytestmark = pytest.mark.usefixtures("small_heap")


class Node:
    """Refers to others."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@pytest.fixture(autouse=True)
def paused() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def read(*arrays: object) -> list[Holder | None]:
    found = CycleReader(lambda file: file == __file__).read(arrays, {id(array): 8 for array in arrays})
    return [found.get(id(array)) for array in arrays]


def ring_of_nodes() -> Buffer:
    child = Node(value=Buffer(8))
    child.parent = Node(child=child)  # type: ignore[attr-defined]
    value: Buffer = child.value  # type: ignore[attr-defined]
    return value


def test_a_ring_of_objects_is_named_by_types_and_references() -> None:
    (found,) = read(ring_of_nodes())
    assert found is not None
    name = f"{__name__}.Node"
    assert [(step.edge, step.type) for step in found.path] in (
        [(".child", name), (".parent", name)],
        [(".parent", name), (".child", name)],
    )
    assert (found.kind, found.root) == ("unknown", "a reference cycle")
    assert found.text == name + "".join(step.edge for step in found.path)


def test_a_heap_that_was_there_before_does_not_count_as_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gpuleak.heap.referrers._allocated_blocks", lambda: 16 * STEPS)
    assert read(ring_of_nodes()) != [None]


def class_of_a_function() -> Buffer:
    value = Buffer(8)

    class Local:
        def kept(self) -> Buffer:
            return value

    return value


def test_the_cycle_of_a_local_class_begins_at_the_class_and_has_the_line_of_its_function() -> None:
    (found,) = read(class_of_a_function())
    assert found is not None
    assert found.text.startswith(f"class {__name__}.class_of_a_function.<locals>.Local.__")
    assert found.file == __file__
    source = Path(__file__).read_text().split("\n")
    assert "def kept(self)" in source[(found.line or 0) - 1]
    told = annotate(Finding("cycle", False, "cpu", 1, 8, 0, "00", holder=found), str)
    assert told.hint is not None
    assert told.hint.startswith("Each class is in a cycle")
    assert told.holder is not None
    assert told.holder.deciding is None


def test_the_cycle_through_a_class_that_is_made_by_type_is_read_however_long_it_is() -> None:
    """As of `torch.nn.utils.parametrize`: the module's own new class has a property that closes over the module."""

    def changed(owner: Node) -> Node:
        def cached() -> Node:
            return owner

        owner.__class__ = type("Changed", (Node,), {"value": property(lambda _: cached())})
        return owner

    child = value = Buffer(8)
    for _ in range(4):
        child = Node(child=child)  # type: ignore[assignment]
    changed(child)  # type: ignore[arg-type]
    del child
    (found,) = read(value)
    assert found is not None
    assert found.text.startswith(f"class {__name__}.Changed.")
    assert "owner" in "".join(step.type for step in found.path)


def test_a_mock_is_in_cycles() -> None:
    def called(value: Buffer) -> Buffer:
        MagicMock()(value)
        return value

    (found,) = read(called(Buffer(8)))
    told = annotate(Finding("cycle", False, "cpu", 1, 8, 0, "00", holder=found), str)
    assert told.hint is not None
    assert told.hint.startswith("A mock is in cycles")


def test_a_stored_exception_tells_the_line() -> None:
    def kept() -> Buffer:
        value = Buffer(8)
        try:
            raise ValueError(value)  # noqa: TRY301 - its traceback is wanted
        except ValueError as error:
            stored = error  # noqa: F841 - the cycle
        return value

    (found,) = read(kept())
    assert found is not None
    assert {".__traceback__", ".tb_frame"} <= {step.edge for step in found.path}
    assert found.file == __file__
    assert found.line is not None
    assert found.line > kept.__code__.co_firstlineno


def test_what_is_not_on_a_cycle_has_none() -> None:
    value = Buffer(8)
    kept = {"here": [value]}
    assert read(value) == [None]
    assert kept


def test_nothing_read_is_kept() -> None:
    value = ring_of_nodes()
    reader = CycleReader(lambda _: True)
    found = reader.read([value], {id(value): 8})
    gone = weakref.ref(value)
    del value
    assert gone() is not None
    gc.collect()
    assert gone() is None
    assert found


def test_a_test_s_search_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gpuleak.explain.cycles.STEPS", 0)
    value = ring_of_nodes()
    assert CycleReader(lambda _: True).read([value], {id(value): 8}) == {}


def test_earlier_searches_take_nothing_from_a_later_one() -> None:
    reader, values = CycleReader(lambda _: True), [ring_of_nodes() for _ in range(50)]
    assert all(reader.read([value], {id(value): 8}) for value in values)


def test_the_largest_are_examined() -> None:
    large, small = ring_of_nodes(), [Buffer(1) for _ in range(9)]
    arrays = [*small, large]
    found = CycleReader(lambda _: True).read(arrays, {id(array): array is large for array in arrays})
    assert found.keys() == {id(large)}


def test_the_line_that_sets_the_attribute_is_told() -> None:
    found = Finding("cycle", False, "cpu", 1, 8, 0, "00", holder=read(Tree.made())[0])
    told = annotate(found, str)
    assert told.holder is not None
    assert told.hint is not None
    assert "weakref.ref" in told.hint
    assert told.holder.edit_file == __file__
    assert told.holder.edit_line is not None
    assert told.holder.deciding is not None
    line = Path(__file__).read_text(encoding="utf-8").split("\n")[told.holder.edit_line - 1]
    assert line.strip() in ("self.parent = parent", "tree.child = cls(tree)")
    assert f"{told.holder.path[told.holder.deciding].edge} = " in line


class Tree:
    """A node whose child refers to it."""

    def __init__(self, parent: Tree | None) -> None:
        self.value = Buffer(8)
        self.parent = parent
        self.child: Tree | None = None

    @classmethod
    def made(cls) -> Buffer:
        tree = cls(None)
        tree.child = cls(tree)
        return tree.value
