"""Counts of the references to NumPy's own dtypes, by which new arrays show."""

from __future__ import annotations

import sys
from operator import gt
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.numpy.dtype_references import DtypeReferences

if TYPE_CHECKING:
    from collections.abc import Callable

numpy = pytest.importorskip("numpy")


@pytest.fixture
def references() -> DtypeReferences:
    found = DtypeReferences()
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
    ],
    ids=["float", "view", "objects", "buffer", "records", "masked"],
)
def test_an_array_that_is_kept_raises_a_count(references: DtypeReferences, make: Callable[[], Any]) -> None:
    make()  # what its first use keeps
    before = references.counts()
    kept = [make()]
    assert any(map(gt, references.counts(), before))
    kept.clear()
    assert references.counts() == before


def test_without_numpy_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    assert DtypeReferences().counts() == []


def test_immortal_dtypes_are_not_counted(references: DtypeReferences, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[DtypeReferences.__module__]
    monkeypatch.setattr(module, "getrefcount", lambda _: 0xFFFFFFFF)
    assert references.counts() == []
