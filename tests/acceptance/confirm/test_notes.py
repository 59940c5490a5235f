"""Something small that does not grow costs no search where no report is written and notes are not shown."""

from __future__ import annotations

import gc
import importlib
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.conftest import OFF

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Runner

    Quiet = Callable[..., list[str]]


AUGMENTATIONS = """
    class Augmentation:
        def __call__(self):
            self.last = Buffer(40)

    @pytest.mark.parametrize("augmentation", [Augmentation() for _ in range(3)])
    def test_it(augmentation):
        augmentation()
"""


@pytest.fixture
def quiet(run: Runner, pytester: pytest.Pytester) -> Quiet:  # `run` has made the conftest.py
    """Runs a test file under the plugin without a report; returns the lines printed."""
    del run

    def start(source: str, *options: str) -> list[str]:
        pytester.makepyfile(
            test_it="import pytest\nfrom tests.support.standin import Buffer\n" + textwrap.dedent(source)
        )
        plain = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", *OFF, "--gpu-leak")
        # A collection during the run would free the arrays of the module that the last run in this process has left: in
        # doubt whether they were replaced, a leak is run again, and that is not the run that a test means.
        gc.collect()
        return pytester.runpytest_inprocess(*plain, *options).outlines

    return start


def summary(lines: list[str]) -> str:
    """The plugin's line at the end, up to what the check took."""
    (line,) = [line for line in lines if line.startswith("gpu-leak: ") and "leaked" in line]
    return line.partition(";")[0]


@pytest.mark.parametrize("options", [(), ("--junitxml=junit.xml",)], ids=" ".join)
def test_a_note_that_nothing_shows_is_not_searched_for(
    quiet: Quiet, searches: list[int], options: tuple[str, ...]
) -> None:
    assert summary(quiet(AUGMENTATIONS, *options)) == "gpu-leak: 0 leaked, 3 noted, 0 clean"
    assert searches == []


@pytest.mark.slow
@pytest.mark.parametrize("options", [("-v",), ("--gpu-leak-report=report.json",)], ids=" ".join)
def test_a_note_that_is_read_has_its_holder(quiet: Quiet, searches: list[int], options: tuple[str, ...]) -> None:
    lines = quiet(AUGMENTATIONS, *options)
    assert summary(lines) == "gpu-leak: 0 leaked, 3 noted, 0 clean"
    assert searches


def test_what_grows_fails_with_its_holder_however_small(quiet: Quiet, searches: list[int]) -> None:
    lines = quiet("KEPT = []\n\ndef test_it():\n    KEPT.append(Buffer(1))\n")
    assert summary(lines) == "gpu-leak: 1 leaked, 0 clean"
    assert any("held by  test_it.KEPT[0]" in line for line in lines), lines
    assert searches == [3]


@pytest.mark.newest
def test_generators_draw_as_without_the_plugin(run: Runner, pytester: pytest.Pytester) -> None:
    # Each suspect's re-run draws too. Later generators are made in the midst of the session, some within old objects.
    source = """
        import gc, random, pytest
        try:
            from numpy.random import default_rng
        except ImportError:
            default_rng = random.Random
        EARLY, KEPT, DRAWN = random.Random(1), {}, []

        class Box:
            pass

        BOX = Box()

        @pytest.fixture(scope="class")
        def held():
            return {"generator": random.Random(2)}

        @pytest.fixture(scope="class")
        def other():
            return [default_rng(3)]

        def draw(*generators):
            DRAWN.extend(generator.random() for generator in generators)

        def test_first():
            KEPT["a"] = Buffer(10)
            draw(EARLY)

        class TestLater:
            def test_a(self, held):
                KEPT["b"] = Buffer(10)
                BOX.generator = random.Random(4)
                draw(EARLY, held["generator"])

            def test_b(self, held):
                gc.collect()
                KEPT["c"] = Buffer(10)
                draw(EARLY, held["generator"], BOX.generator)

            def test_c(self, held, other):
                gc.get_objects()
                KEPT["d"] = Buffer(10)
                draw(EARLY, held["generator"], BOX.generator, other[0])

            def test_d(self, held, other):
                KEPT["e"] = Buffer(10)
                draw(EARLY, held["generator"], BOX.generator, other[0])

        def test_last():
            import json
            with open("drawn.json", "w") as file:
                json.dump([EARLY.random(), BOX.generator.random()], file)
    """
    drawn = []
    for plugin in ("--no-gpu-leak", "--gpu-leak"):
        run(source, plugin=plugin, apart=True).result.assert_outcomes(passed=6)
        drawn.append((pytester.path / "drawn.json").read_text())
    assert drawn[0] == drawn[1]


@pytest.mark.usefixtures("without_roots")
def test_a_search_that_fails_after_the_quick_rerun_says_so(quiet: Quiet, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("lost its way")

    monkeypatch.setattr(importlib.import_module("pytest_gpuleak.explain.explain"), "explain_crowd", fail)
    text = " ".join(" ".join(quiet("KEPT = []\n\ndef test_it():\n    KEPT.append(Buffer(1))\n")).split())
    assert "held by unknown: the search failed: " in text
    assert "not searched for" not in text


@pytest.mark.torch
def test_leaks_among_notes_have_their_lines_from_runs_of_their_own(quiet: Quiet, searches: list[int]) -> None:
    """A run for the lines that fails leaves the leak with its holder."""
    pytest.importorskip("torch")
    lines = quiet("""
        import torch

        LAST, HISTORY, OTHER, TRACED, RUNS = {}, [], [], [], []

        def is_traced():
            return torch._C._len_torch_function_stack() > 0

        @pytest.mark.parametrize("number", range(4))
        def test_note(number):
            LAST["x"] = torch.ones(10 + number)
            TRACED.append(is_traced())

        def test_leak():
            TRACED.append(is_traced())
            HISTORY.append(torch.ones(10))

        def test_last():
            assert TRACED[-3:] == [False, False, True]
            assert not any(TRACED[:-1])

        def test_fails_for_its_lines():
            RUNS.append(1)
            assert len(RUNS) < 3
            OTHER.append(torch.ones(10))
    """)
    assert summary(lines) == "gpu-leak: 2 leaked, 4 noted, 1 clean"
    text = "\n".join(lines)
    assert "held by  test_it.HISTORY[0]" in text
    assert "held by  test_it.OTHER[0]" in text
    assert text.count("HISTORY.append(torch.ones(10))") == 1
    assert "OTHER.append(torch.ones(10))" not in text
    assert len(searches) == 1


def test_a_worker_names_what_the_controller_writes(run: Runner) -> None:
    found = run(
        "class Augmentation:\n    pass\n\nONE = Augmentation()\n\ndef test_it():\n    ONE.last = Buffer(40)\n", "-n1"
    )
    assert found.finding("test_it")["holder"]["text"] == "test_it.ONE.last"
