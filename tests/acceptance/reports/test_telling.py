"""What a reader is told of cycles, of unknown lines, of notebooks that run as tests, and in which colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from tests.conftest import Runner

CYCLES = """
    import pytest

    class Node:
        parent = child = value = None

    def make():
        parent, child = Node(), Node()
        parent.child = child
        child.parent = parent
        child.value = Buffer(1000)

    @pytest.mark.parametrize("number", range(3))
    def test_it(number):
        make()

    def test_other():
        kept = {"value": Buffer(1000)}
        kept["itself"] = kept
"""
DEEP = """
    KEPT = {}

    class Record:
        def __init__(self):
            self.loss = Buffer(1000)

    def test_it():
        KEPT.setdefault("all", []).append(Record())
"""
ONCE = """
    import pytest

    KEPT, MODELS, FAILED = [], [], []

    @pytest.fixture(scope="module")
    def model():
        MODELS.append(Buffer(2**21))

    def test_uses(model):
        pass

    def test_fills():
        if not KEPT:
            KEPT.append(Buffer(2**20))

    @pytest.mark.gpu_leak(confirm=0)
    def test_unconfirmed():
        FAILED.append(Buffer(2**22))
"""
NOTEBOOKS = """
    import sys, types, pytest

    class NotebookItem(pytest.Item):
        def runtest(self):
            pass

    NotebookItem.__module__ = "nbmake.pytest_items"

    class NotebookFile(pytest.File):
        def collect(self):
            yield NotebookItem.from_parent(self, name="notebook")

    def pytest_collect_file(file_path, parent):
        if file_path.suffix == ".ipynb":
            return NotebookFile.from_parent(parent, path=file_path)
"""


def test_a_kind_of_cycle_is_one_note_with_its_references_and_a_line(run: Runner) -> None:
    found = run(CYCLES, "-v")
    found.result.stdout.fnmatch_lines(
        [
            "NOTED 2.9 KiB in 3 tests",
            "  largest  test_it.py::test_it?0?, 1000 bytes",
            "  cycle    test_it.Node  (reference cycle)",
            "             .*: test_it.Node*",
            "               .*: test_it.Node, the first again*",
            "  fix      The memory is freed only when the garbage collector runs: *",
            "  also in  test_it.py::test_it?1?, 1000 bytes",
            "NOTED test_it.py::test_other",
            "  cycle    dict  (reference cycle)",
            "             ?'itself'?: dict, the first again  <- cut here",
        ]
    )
    lines = found.result.stdout.str()
    assert "<- cut here\n                 at test_it.py:" in lines
    assert "not searched" not in lines
    finding = found.tests["test_it[1]"]["findings"][0]
    assert finding["holder"]["root"] == "a reference cycle"
    assert {step["edge"] for step in finding["holder"]["path"]} == {".parent", ".child"}


def test_a_cycle_that_fails_is_explained_too(run: Runner) -> None:
    found = run(CYCLES, "--gpu-leak-cycles=fail")
    assert found.verdicts["test_other"] == "leaked"
    found.result.stdout.fnmatch_lines(["LEAKED 2.9 KiB in 3 tests", "  cycle    test_it.Node  (reference cycle)"])


def test_an_unknown_line_says_why(run: Runner) -> None:
    found = run(ONCE)
    text = " ".join(found.result.stdout.str().split())
    assert found.verdicts["test_fills"] == "leaked"
    for why in (
        "created unknown: a fixture is not run again by itself, and lines are recorded only in a re-run",
        "created unknown: no re-run was asked for, and lines are recorded only in a re-run",
    ):
        assert why in text
    reasons = {name: test["findings"][0]["why_line_unknown"] for name, test in found.tests.items() if test["findings"]}
    assert reasons["test_fills"] == "made by the first run alone, and lines are recorded only in a re-run"


def test_the_reference_to_cut_is_yellow_and_the_rest_of_the_path_dim(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    lines = run(DEEP, "--color=yes").result.outlines
    (marked,) = (line for line in lines if "cut here" in line)
    assert marked.startswith("\x1b[33m               [0]: test_it.Record  <- cut here")
    assert "\x1b[2m             ['all']: list\x1b[0m" in lines
    monkeypatch.setenv("NO_COLOR", "1")
    plain = run(DEEP).result.outlines
    assert "               [0]: test_it.Record  <- cut here, at test_it.py:10" in plain
    assert not any("\x1b" in line for line in plain)


def test_a_notebook_that_runs_as_a_test_is_unchecked(run: Runner, pytester: pytest.Pytester) -> None:
    with (pytester.path / "conftest.py").open("a", encoding="utf-8") as conftest:
        conftest.write("\n" + "\n".join(line[4:] for line in NOTEBOOKS.splitlines()))
    (pytester.path / "it.ipynb").write_text("{}")
    found = run("def test_clean(): pass\n\ndef test_fails(): assert 0", "it.ipynb", "test_it.py")
    assert (found.verdicts["test_clean"], found.verdicts["test_fails"]) == ("clean", "unchecked")
    assert found.tests["notebook"]["verdict"] == "unchecked"
    assert "a process of its own" in found.tests["notebook"]["why_unchecked"]
    found.result.stdout.fnmatch_lines(
        ["gpu-leak: 1 notebook was not checked: it runs in a process of its own*watch()*"]
    )


def test_a_plan_of_setups_counts_no_test(run: Runner) -> None:
    lines = run("def test_one(): pass", "--setup-plan").result.outlines
    assert not any("clean" in line for line in lines)


def test_a_note_of_a_test_that_leaks_stands_among_the_notes(run: Runner) -> None:
    source = """
        KEPT = []

        class Node:
            pass

        def test_it():
            KEPT.append(Buffer(8))
            node = Node()
            node.me, node.value = node, Buffer(1000)
    """
    lines = run(source, "-v").result.outlines
    titles = [line for line in lines if line.startswith(("LEAKED test_it", "NOTED test_it"))]
    assert titles[:2] == ["LEAKED test_it.py::test_it", "NOTED test_it.py::test_it"]
