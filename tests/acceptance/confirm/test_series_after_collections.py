"""A holder met before is recognised after collections of the whole heap, which make what the test made old."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.engine.detect.young_arrays import make_young
from tests.conftest import OFF

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.skipif(make_young() is None, reason="this interpreter's collector cannot be told what is young"),
]

HEAD = """
    import gc, types, pytest
    from tests.support.standin import Buffer

    REGISTRY, CACHE = {}, {}
    OLD = [types.SimpleNamespace() for _ in range(40)]

    def keep(i):
        REGISTRY[len(REGISTRY)] = {"closure": [types.SimpleNamespace(weight=Buffer(300), sizes=[Buffer(40)])]}

    def leave_garbage():
        old = OLD.pop()
        old.itself, old.buffer = old, Buffer(200)

"""

COLLECTING = """
    @pytest.mark.parametrize("i", range(4))
    def test_it(i):
        keep(i)
        gc.collect()
        keep(i)
"""

WITH_GARBAGE = """
    @pytest.mark.parametrize("i", range(4))
    def test_it(i):
        leave_garbage()
        keep(i)
"""

WITH_A_CACHE = """
    @pytest.mark.parametrize("i", range(4))
    def test_it(i):
        gc.collect()
        CACHE.setdefault(i, [Buffer(500)])
        keep(i)
        leave_garbage()
"""

SOURCES = pytest.mark.parametrize(
    "source", [COLLECTING, WITH_GARBAGE, WITH_A_CACHE], ids=["collect", "garbage", "cache"]
)


@SOURCES
def test_the_heap_is_searched_for_the_first_of_a_series(
    run: Runner, pytester: pytest.Pytester, searches: list[int], source: str
) -> None:
    del run  # it has made the conftest.py
    pytester.makepyfile(test_it=textwrap.dedent(HEAD + source))
    found = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", *OFF, "--gpu-leak")
    found.assert_outcomes(passed=4)
    assert "4 leaked" in found.outlines[-1]
    assert len(searches) == 1


def _told(findings: list[dict[str, Any]]) -> list[Any]:
    return [
        (one["kind"], one["failed"], one["count"], one["bytes"], one["bytes_per_run"], one["fingerprint"], one["hint"],
         one["holder"] and (one["holder"]["kind"], one["holder"]["root"]))
        for one in findings
    ]  # fmt: skip


@SOURCES
def test_a_report_says_what_it_says_with_a_search_for_each(
    run: Runner, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    together = {name: _told(test["findings"]) for name, test in run(HEAD + source).tests.items()}
    from pytest_gpuleak.explain.known_culprits import Culprits

    with monkeypatch.context() as patch:
        patch.setattr(Culprits, "recognise", lambda *_: None)
        assert {name: _told(test["findings"]) for name, test in run("").tests.items()} == together


@pytest.mark.torch
def test_tensors_with_autograd_graphs_are_recognised(run: Runner, searches: list[int]) -> None:
    pytest.importorskip("torch")
    found = run(
        """
        import gc, pytest, torch
        HISTORY = []

        @pytest.mark.parametrize("i", range(3))
        def test_it(i):
            HISTORY.append((torch.ones(1000, requires_grad=True) * 2).exp().sum())
            gc.collect()
        """
    )
    first, *others = [found.finding(name)["autograd"] for name in found.tests]
    assert first["nodes"] > 0
    assert others == [first, first]
    assert len(searches) == 1
