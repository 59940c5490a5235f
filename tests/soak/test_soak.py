"""The soak finds what it is made to find, and draws the same suites from the same seed."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from tests.soak.comparing import compare
from tests.soak.running import Outcome, Side, run_suite
from tests.soak.shrinking import shrink
from tests.soak.suites import JSON_REPORT, SMALL, Piece, Suite, draw_suite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILE = "test_soak_0.py"


def suite_of(*pieces: Piece, plugin_options: tuple[str, ...] = (JSON_REPORT,)) -> Suite:
    return Suite("by hand", pieces, ("--basetemp=basetemp",), None, plugin_options, (), (), False, frozenset())


def piece(name: str, body: str, left: str) -> Piece:
    source = f"KEPT_{name} = []\ndef {name}():\n    {body.replace('KEPT', f'KEPT_{name}')}\n"
    return Piece(name, 0, source, {name: left}, {}, SMALL)


PIECES = (
    piece("test_clean", "say('draws', random.random())", "nothing"),
    piece("test_leaks", "KEPT.append(make(100))", "growing"),
    piece("test_fails", "assert not make(100)", "unchecked"),
)


def reports(name: str, call: str = "passed", *, leaked: bool = False) -> list[dict[str, Any]]:
    empty: dict[str, Any] = {
        "xfail": None,
        "sections": [],
        "text": "",
        "properties": [],
        "type": "TestReport",
        "worker": None,
    }
    phases = {"setup": "passed", "call": call, "teardown": "failed" if leaked else "passed"}
    return [
        {"kind": "report", "nodeid": f"{FILE}::{name}", "when": when, "outcome": outcome, **empty}
        | {"leaked": leaked and when == "teardown"}
        for when, outcome in phases.items()
    ]


def record(name: str, verdict: str) -> dict[str, Any]:
    return {"nodeid": f"{FILE}::{name}", "verdict": verdict, "why_unchecked": None, "findings": []}


def sides(folder: Path) -> tuple[Side, Side]:
    """What the two runs of the suite leave if all is well."""
    first, last = reports("test_clean"), reports("test_fails", "failed")
    bare = Outcome(1, [*first, *reports("test_leaks"), *last], "", None, False)
    verdicts = {"test_clean": "clean", "test_leaks": "leaked", "test_fails": "unchecked"}
    document = {"tests": [record(name, verdict) for name, verdict in verdicts.items()], "fixtures": []}
    checked = Outcome(1, [*first, *reports("test_leaks", leaked=True), *last], "", document, False)
    files = {"made.txt": b"1"}
    return Side(folder / "bare", [bare], files), Side(folder / "with", [copy.deepcopy(checked)], dict(files))


def test_equal_runs_and_right_verdicts_are_no_difference(tmp_path: Path) -> None:
    assert compare(suite_of(*PIECES), *sides(tmp_path)) == []


@pytest.mark.parametrize(
    ("leaked", "differences"),
    [({"test_leaks"}, []), (set(), ["missed"]), ({"test_clean", "test_leaks"}, ["false alarm"])],
    ids=["right", "missed", "false alarm"],
)
def test_without_a_report_what_fails_tells_the_verdicts(
    tmp_path: Path, leaked: set[str], differences: list[str]
) -> None:
    without, with_it = sides(tmp_path)
    outcome = with_it.outcomes[0]
    outcome.report, outcome.records[:6] = None, [
        one for name in ("test_clean", "test_leaks") for one in reports(name, leaked=name in leaked)
    ]  # fmt: skip
    found = compare(suite_of(*PIECES, plugin_options=()), without, with_it)
    assert [one.kind for one in found if one.kind != "exit status"] == differences


def test_a_folder_that_pytest_shortened_is_no_difference(tmp_path: Path) -> None:
    both = sides(tmp_path)
    for side in both:
        side.outcomes[0].records[7]["text"] = f"main_task=<Ta...6-9/{side.folder.name}/suite/test_soak_0.py:22>"
    assert compare(suite_of(*PIECES), *both) == []


def test_the_number_of_a_thread_in_a_dump_is_no_difference(tmp_path: Path) -> None:
    both = sides(tmp_path)
    for side, number in zip(both, (140389273880256, 140555192305344), strict=True):
        dump = f"~~~~ Stack of ThreadPoolExecutor-0_0 ({number}) ~~~~"
        side.outcomes[0].records[7]["sections"] = [["Captured stdout call", dump]]
    assert compare(suite_of(*PIECES), *both) == []


def _change(index: int, **values: Any) -> Callable[[Side], object]:
    return lambda side: side.outcomes[0].records[index].update(values)


def _verdict(index: int, verdict: str) -> Callable[[Side], object]:
    return lambda side: side.outcomes[0].report["tests"][index].update(verdict=verdict)  # type: ignore[index]


def _fixture(side: Side) -> None:
    assert side.outcomes[0].report is not None
    side.outcomes[0].report["fixtures"].append({"name": "model", "findings": [{"failed": True}]})


def _swap(side: Side) -> None:
    records = side.outcomes[0].records
    side.outcomes[0].records = records[6:] + records[:6]


CHANGES: dict[str, tuple[Callable[[Side], object], str]] = {
    "a test that fails": (_change(1, outcome="failed"), "outcome"),
    "another text": (_change(7, text="assert other"), "text"),
    "output": (_change(1, sections=[["Captured stdout call", "soak draws 0.5"]]), "sections"),
    "a property": (_change(2, properties=[["key", "value"]]), "properties"),
    "order": (_swap, "order"),
    "a report too few": (lambda side: side.outcomes[0].records.pop(2), "reports"),
    "a test too few": (lambda side: side.outcomes[0].records.__delitem__(slice(0, 3)), "missing"),
    "exit status": (lambda side: setattr(side.outcomes[0], "status", 3), "exit status"),
    "a hang": (lambda side: setattr(side.outcomes[0], "status", None), "hang"),
    "a process": (lambda side: setattr(side.outcomes[0], "left", True), "processes left"),
    "an internal error": (lambda side: setattr(side.outcomes[0], "output", "INTERNALERROR> x"), "fault"),
    "no report": (lambda side: setattr(side.outcomes[0], "report", None), "report"),
    "a record too few": (lambda side: side.outcomes[0].report["tests"].pop(0), "lost"),  # type: ignore[index]
    "a false alarm": (_verdict(0, "leaked"), "false alarm"),
    "a note": (_verdict(0, "noted"), "verdict"),
    "a leak that is missed": (_verdict(1, "clean"), "missed"),
    "a failed test that is judged": (_verdict(2, "clean"), "verdict"),
    "a fixture that leaves nothing": (_fixture, "false alarm"),
    "a file's content": (lambda side: side.files.update({"made.txt": b"2"}), "files"),
    "a file": (lambda side: side.files.update({"other.txt": b""}), "files"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_kind_of_difference_is_found(tmp_path: Path, change: str) -> None:
    without, with_it = sides(tmp_path)
    alter, kind = CHANGES[change]
    alter(with_it)
    assert kind in {difference.kind for difference in compare(suite_of(*PIECES), without, with_it)}


def test_a_leak_ends_a_stepwise_run_as_a_stopped_one(tmp_path: Path) -> None:
    suite = suite_of(PIECES[1])
    without, with_it = sides(tmp_path)
    without.outcomes[0].status, with_it.outcomes[0].status = 0, 2
    stepwise = dataclasses.replace(suite, options=("--stepwise",))
    kinds = [{found.kind for found in compare(one, without, with_it)} for one in (suite, stepwise)]
    assert kinds[0] - kinds[1] == {"exit status"}


def test_a_run_that_stops_at_a_leak_does_not_come_to_a_later_interrupt(tmp_path: Path) -> None:
    suite = suite_of(PIECES[1])
    without, with_it = sides(tmp_path)
    without.outcomes[0].status, with_it.outcomes[0].status = 2, 1
    stops = dataclasses.replace(suite, options=("--maxfail=2",), traits=frozenset({*suite.traits, "stops"}))
    kinds = [{found.kind for found in compare(one, without, with_it)} for one in (suite, stops)]
    assert "exit status" in kinds[0] - kinds[1]


def test_a_fixture_is_missed_only_where_it_was_torn_down(tmp_path: Path) -> None:
    suite = suite_of(*PIECES, dataclasses.replace(PIECES[0], left={}, fixtures={"model": "retained"}))
    without, with_it = sides(tmp_path)
    assert compare(suite, without, with_it) == []  # `os._exit`, say
    for side in (without, with_it):
        side.outcomes[0].records.append({"kind": "finalised", "name": "model"})
    assert [(found.kind, found.where) for found in compare(suite, without, with_it)] == [("missed", "fixture model")]


def test_the_same_seed_draws_the_same_suite(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
        draw_suite("5-7").write(folder)
    one, other = ({path.name: path.read_text() for path in folder.iterdir()} for folder in folders)
    assert one == other
    assert draw_suite("5-7") != draw_suite("5-8")


def test_what_is_drawn_is_python_and_varied() -> None:
    drawn = [draw_suite(f"9-{number}") for number in range(300)]
    for suite in drawn:
        for one in suite.pieces:
            compile(one.source, one.name, "exec")
            assert "@" not in one.source.replace("@pytest", "").replace("@class", "").replace("@func", "").replace(
                "@hypothesis", ""
            ).replace("@unittest", "")
    left = {what for suite in drawn for one in suite.pieces for what in one.left.values()}
    assert left >= {"growing", "retained", "cycle", "nothing", "unsure", "shared", "unchecked", "allowed", "later"}
    assert {trait for suite in drawn for trait in suite.traits} >= {"xdist", "stops", "uncaptured", "reruns", "strict"}
    assert any(suite.again for suite in drawn)


def test_shrinking_leaves_what_shows_the_difference() -> None:
    suite = dataclasses.replace(draw_suite("3-2"), options=("-v", "-p", "no:logging", "--tb=short"))
    wanted = suite.pieces[len(suite.pieces) // 2]

    def shows(candidate: Suite) -> bool:
        return wanted in candidate.pieces and "no:logging" in candidate.options

    smaller = shrink(suite, shows, tries=500)
    assert smaller.pieces == (wanted,)
    assert smaller.options == ("-p", "no:logging")


MEDDLER = """
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call" and item.name == "test_fails":
        report.outcome, report.longrepr = "passed", None
    return report

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if item.name == "test_clean":
        import random
        random.random()
"""


@pytest.mark.slow
def test_a_plugin_that_meddles_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = suite_of(*PIECES)
    assert compare(suite, *run_suite(suite, tmp_path / "well")) == []
    (tmp_path / "meddler.py").write_text(MEDDLER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = compare(suite, *run_suite(suite, tmp_path / "ill", extra=("-p", "meddler")))
    kinds = {(difference.kind, difference.where.rpartition("::")[2]) for difference in found}
    assert {("outcome", "test_fails"), ("sections", "test_clean"), ("exit status", "run 0")} - kinds == {
        ("exit status", "run 0")  # a leak ends the run with the same status as the failure
    }


@pytest.mark.slow
def test_a_check_that_is_off_misses_the_leak(tmp_path: Path) -> None:
    suite = suite_of(*PIECES)
    # More tensors than the leaking test leaves may stay.
    found = compare(suite, *run_suite(suite, tmp_path / "run", extra=("--gpu-leak-tensors=1000",)))
    assert ("missed", f"{FILE}::test_leaks") in {(difference.kind, difference.where) for difference in found}
