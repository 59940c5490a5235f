"""Counts of the references to NumPy's own dtypes and its memory handler, by which new arrays show."""

from __future__ import annotations

import sys
from operator import gt
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.numpy.known_arrays import ArrayReferences
from pytest_gpuleak.adapters.registry import have_added_arrays

if TYPE_CHECKING:
    from collections.abc import Callable

numpy = pytest.importorskip("numpy")

RECORD = numpy.dtype([("weight", "f8"), ("count", "i4")])


@pytest.fixture
def references() -> ArrayReferences:
    found = ArrayReferences()
    if not found.counts():
        pytest.skip("NumPy's dtypes are immortal in this interpreter")
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda: numpy.ones(3, "f4"),
        lambda: numpy.ones(3, bool)[1:],
        lambda: numpy.empty(3, object),
        lambda: numpy.frombuffer(b"1234", "i2"),
        lambda: numpy.ones(3, [("weight", "f8"), ("count", "i4")]),
        lambda: numpy.ma.zeros(3, "i8"),
        lambda: numpy.zeros(3, RECORD),
        lambda: numpy.zeros(3, "U5"),
        lambda: numpy.zeros(3, "M8[ns]"),
        lambda: numpy.zeros(3, ">f4"),
    ],
    ids=[
        "float",
        "view",
        "objects",
        "buffer",
        "records",
        "masked",
        "records of one dtype",
        "text",
        "dates",
        "byte order",
    ],
)
def test_an_array_that_is_kept_raises_a_count(references: ArrayReferences, make: Callable[[], Any]) -> None:
    make()  # what its first use keeps
    before = references.counts()
    kept = [make()]
    assert any(map(gt, references.counts(), before))
    kept.clear()
    assert references.counts() == before


def test_without_numpy_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    assert ArrayReferences().counts() == []


def test_immortal_dtypes_are_not_counted(references: ArrayReferences, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[ArrayReferences.__module__]
    monkeypatch.setattr(module, "getrefcount", lambda _: 0xFFFFFFFF)
    assert references.counts() == []


def test_the_number_is_unknown_where_arrays_have_gone(references: ArrayReferences) -> None:
    older = [numpy.array([1.0])]
    before = references.counts()
    older[0] = numpy.array([1.0])
    assert have_added_arrays(before, references.counts()) is False
    older.clear()
    assert have_added_arrays(before, references.counts()) is None


def test_a_numpy_without_a_memory_handler_has_its_dtypes_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    known = len(ArrayReferences().counts())
    monkeypatch.setattr(sys.modules[ArrayReferences.__module__], "_HAS_HANDLER", 2**31)
    assert len(ArrayReferences().counts()) == max(known - 1, 0)
