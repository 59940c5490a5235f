"""Runs in which one holder is met again and again, or is the tensor itself: what the reports say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

if TYPE_CHECKING:
    import pytest

    from tests.conftest import Runner

GROWING = """
    import pytest

    KEPT = []

    @pytest.fixture(scope="module")
    def index():
        KEPT.append(Buffer(4 * 1024**2))
        return KEPT

    @pytest.mark.parametrize("size", [16, 36, 64, 8 * 1024**2, 100, 144, 196])
    def test_search(index, size):
        KEPT.append(Buffer(size))
"""
ITSELF = """
    LAST = None

    def test_global():
        global LAST
        LAST = Buffer(4 * 1024**2)
"""
CACHE = """
    import functools

    class Mel:
        def __init__(self):
            self.window = Buffer(16384)

        @functools.lru_cache
        def frames(self, n):
            return n // 2

    def test_frames():
        mel = Mel()
        assert mel.frames(4) == 2 and mel.frames(6) == 3
"""


def test_the_largest_leak_of_a_holder_is_explained_and_all_are_added_up(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(GROWING, "--gpu-leak-report=leaks.md", "--gpu-leak-report=leaks.html")
    found.result.stdout.fnmatch_lines(
        [
            "LEAKED 12.0 MiB in 7 tests, fixture 'index'",
            "  largest  test_it.py::test_search?8388608?, 8.0 MiB",
            "  growing: 1 tensor, 8.0 MiB on cpu; each run leaves 8.0 MiB more",
            "  also in  fixture 'index' (module scope, test_it.py:7), 4.0 MiB",
            "           test_it.py::test_search?196?, 196 bytes",
            "gpu-leak: 7 leaked, 1 fixture leaked ('index'), 0 clean*",
        ]
    )
    assert found.result.stdout.str().count("LEAKED ") == 1 + 7 + 1  # in full, and in the short summary: tests, fixture
    markdown = (pytester.path / "leaks.md").read_text()
    assert markdown.count("<details>") == 1
    assert "left by 7 tests, fixture <code>index</code>" in markdown
    assert "the same holder in 7 other findings, 12.0 MiB in all" in (pytester.path / "leaks.html").read_text()


def test_a_global_that_is_the_tensor_itself_is_in_every_report(run: Runner, pytester: pytest.Pytester) -> None:
    from pytest_gpuleak.cli import main

    names = [f"leaks.{suffix}" for suffix in ("html", "md", "sarif")]
    found = run(ITSELF, *(f"--gpu-leak-report={name}" for name in names))
    assert found.holder("test_global") == "test_it.LAST"
    assert "could not be written" not in found.result.stdout.str()
    for name in names:
        written = (pytester.path / name).read_text(encoding="utf-8")
        assert "test_it.LAST" in written
        converted = CliRunner().invoke(main, ["convert", "report.json", "-o", f"converted-{name}"])
        assert converted.exit_code == 0, converted.output
        assert (pytester.path / f"converted-{name}").read_text(encoding="utf-8") == written


def test_two_entries_of_one_cache_are_written_once(run: Runner) -> None:
    found = run(CACHE)
    lines = found.result.outlines
    assert len([line for line in lines if line.startswith("  held by  test_it.Mel.frames")]) == 1
    assert lines.count("             (cache key): tuple  <- cut here") == 1
    found.result.stdout.fnmatch_lines(["  and by   * further reference* of the same holder"])
