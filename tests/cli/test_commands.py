"""The command as CI and people call it: what it prints, where, and with which exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak import __version__
from pytest_gpuleak.model.codes.table import CODES, page
from pytest_gpuleak.model.findings import Holder, KnownLeak
from pytest_gpuleak.model.records import SCHEMA, TestRecord, encode
from pytest_gpuleak.reports.json.read import read_report
from pytest_gpuleak.reports.json.write import encode_report
from pytest_gpuleak.reports.terminal.section import render_leaks
from tests.support.schema import check_schema

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call, Save
    from tests.reports.conftest import Make

HOSTILE = "t/test_a.py::test_x[\x1b[2J\x07\u202e]"
COMMAND = [sys.executable, "-c", "from pytest_gpuleak.cli import main; main()"]


def unchecked(make: type[Make]) -> TestRecord:
    return make.test("t.py::test_x", verdict="unchecked", why_unchecked="it failed", outcome="failed")


@pytest.fixture
def leaky(save: Save, make: type[Make]) -> Path:
    return save("leaky.json", make.report(make.test("t.py::test_x", make.finding()), make.test("t.py::test_y")))


@pytest.fixture
def clean(save: Save, make: type[Make]) -> Path:
    return save("clean.json", make.report(make.test("t.py::test_x"), make.test("t.py::test_y")))


def test_help_has_examples_for_each_command(call: Call) -> None:
    assert call().stderr.count("gpuleak ") + call("--help").stdout.count("gpuleak ") >= 5
    for name in ("show", "diff", "gate", "merge", "convert", "explain", "completion"):
        text = call(name, "--help").stdout
        assert f"\n  gpuleak {name} " in text, "an example on a line of its own"
    assert __version__ in call("--version").stdout


def test_explain_prints_pages(call: Call) -> None:
    found = call("explain", "gl101", "GL004")
    assert found.exit_code == 0
    assert found.stdout == f"{page(CODES['GL101'])}\n{page(CODES['GL004'])}"
    listed = call("explain").stdout
    assert all(f"  {code.id}  {code.title}\n" in listed for code in CODES.values())


@pytest.mark.parametrize("code", ["GL999", "", "101", HOSTILE])
def test_explain_refuses_what_is_no_code(call: Call, code: str) -> None:
    found = call("explain", "GL101", code)
    assert (found.exit_code, found.stdout) == (2, "")
    (line,) = found.stderr.splitlines()
    assert line.startswith("gpuleak: ")
    assert line.endswith(f"is not accepted, only a code such as GL101: `gpuleak explain` lists all {len(CODES)}")
    assert line.isprintable()


def test_show_is_the_terminal_report(call: Call, leaky: Path) -> None:
    found = call("show", "leaky.json")
    assert found.exit_code == 0
    lines = found.stdout.splitlines()
    assert "GPU LEAKS" in lines[0]
    assert lines[1:-2] == render_leaks(read_report(leaky), verbosity=0, width=100)
    assert lines[-2] == "gpu-leak: more on each: gpuleak explain GL001"
    assert lines[-1].startswith("gpu-leak: 1 leaked, 1 clean")


def test_show_quiet_and_verbose(call: Call, leaky: Path) -> None:
    assert call("show", "-q", "leaky.json").stdout.startswith("t.py::test_x: growing: 1 tensor")
    assert "[0]: float32 [1024, 1024]" in call("show", "-v", "leaky.json").stdout


def test_show_as_json_has_what_fails_and_the_line_to_cut(call: Call, save: Save, make: type[Make]) -> None:
    placed = Holder(
        "module", "app.HISTORY", "app.HISTORY[0]", edit_file="app.py", edit_line=7, edit_code="HISTORY.append(loss)"
    )
    leak, note = make.finding(holder=placed), make.finding(failed=False)
    report = make.report(make.test("a", leak, note), make.test("b", note), make.test("c"))
    save("r.json", report)
    shown = json.loads(call("show", "--format", "json", "r.json").stdout)
    check_schema(shown)
    (test,) = shown["tests"]
    (found,) = test["findings"]
    assert (test["nodeid"], found["edit"]) == ("a", {"file": "app.py", "line": 7, "code": "HISTORY.append(loss)"})
    assert shown["summary"]["tests"] == 3
    every = json.loads(call("show", "-v", "--format", "json", "r.json").stdout)
    assert [len(one["findings"]) for one in every["tests"]] == [2, 1, 0]
    assert every["tests"][0]["findings"][1]["edit"] is None


def test_show_as_json_cannot_be_short(call: Call, leaky: Path) -> None:
    found = call("show", "-q", "--format", "json", leaky.name)
    assert (found.exit_code, found.stdout) == (2, "")
    assert "--quiet: only --format text can be shortened" in found.stderr


def test_show_from_standard_input(call: Call, leaky: Path) -> None:
    assert call("show", "-", input=leaky.read_bytes()).stdout == call("show", "leaky.json").stdout


def test_what_a_report_says_of_itself_is_shown(call: Call, save: Save, make: type[Make]) -> None:
    stale = KnownLeak("t.py::test_z", None, "growing", "cuda", 1024, "aa", holder="app.CACHE")
    save("r.json", make.report(make.test("a"), incomplete="killed by signal 9", stale=(stale,)))
    text = call("show", "r.json").stdout
    assert "gpu-leak: THE REPORT IS INCOMPLETE: killed by signal 9" in text
    assert "t.py::test_z  growing, 1.0 KiB on cuda, held by app.CACHE" in text


def test_nothing_in_a_report_reaches_the_terminal_as_it_is(call: Call, folder: Path, make: type[Make]) -> None:
    hostile = "\x1b]0;owned\x07\u202e\n"
    finding = make.finding(holder=Holder("module", hostile, hostile), hint=hostile, evidence=(hostile,))
    stale = KnownLeak(hostile, hostile, "growing", hostile, 5, "aa", holder=hostile, reason=hostile)
    report = make.report(make.test(HOSTILE, finding), stale=(stale,), incomplete=hostile)
    tests, entries = map(encode, report.tests), map(encode, report.stale)
    # Not by way of `write_report`, which cleans: a stranger's file has what it likes.
    (folder / "bad.json").write_text(
        json.dumps({"schema": SCHEMA, **vars(report), "tests": list(tests), "stale": list(entries)})
    )
    (folder / "good.json").write_text(encode_report(make.report(make.test(HOSTILE))))
    for arguments in (
        ("show", "-v", "bad.json"),
        ("diff", "good.json", "bad.json"),
        ("diff", "bad.json", "good.json"),
        ("gate", "bad.json", "--fail-stale"),
        ("merge", "bad.json", "-o", "-"),
        ("convert", "bad.json", "-o", "-"),
    ):
        found = call(*arguments)
        for text in (found.stdout, found.stderr):
            assert text.replace("\n", "").isprintable(), arguments
        assert "\\x1b" in found.stdout


def test_diff(call: Call, leaky: Path, clean: Path) -> None:
    worse = call("diff", "clean.json", "leaky.json")
    assert worse.exit_code == 1
    assert worse.stdout.splitlines()[0] == "NEW     t.py::test_x"
    assert "VERDICT t.py::test_x: clean -> leaked" in worse.stdout
    better = call("diff", "leaky.json", "clean.json")
    assert (better.exit_code, better.stdout.splitlines()[0]) == (0, "GONE    t.py::test_x")
    same = call("diff", "leaky.json", "leaky.json")
    assert same.exit_code == 0
    assert same.stdout == "gpu-leak: leaks: 0 new, 0 gone; 0 verdicts changed; 0 tests added, 0 removed\n"


def test_diff_tolerance(call: Call, save: Save, make: type[Make]) -> None:
    for name, size in (("old.json", 100), ("new.json", 130)):
        save(name, make.report(make.test("a", make.finding(bytes=size))))
    assert call("diff", "old.json", "new.json").exit_code == 1
    assert call("diff", "old.json", "new.json", "--tolerance", "30").exit_code == 0


def test_gate_passes_what_is_clean(call: Call, clean: Path) -> None:
    found = call("gate", "clean.json")
    assert found.exit_code == 0
    assert found.stdout.splitlines()[-1] == "gate: passed: no leaks; 2 tests"


def test_gate_stops_a_leak_and_names_it(call: Call, leaky: Path, clean: Path) -> None:
    found = call("gate", "clean.json", "leaky.json")
    assert found.exit_code == 1
    assert "LEAKED t.py::test_x" in found.stdout
    assert found.stdout.splitlines()[-1] == "gate: FAILED: 1 test leaks"


def test_gate_takes_what_the_run_called_known(call: Call, save: Save, make: type[Make]) -> None:
    save("r.json", make.report(make.test("a", make.finding(failed=False, known=True))))
    found = call("gate", "r.json")
    assert (found.exit_code, found.stdout.splitlines()[-1]) == (0, "gate: passed: no new leaks, 1 known leak; 1 test")


def test_gate_fails_what_is_incomplete_or_empty(call: Call, save: Save, make: type[Make], clean: Path) -> None:
    save("cut.json", make.report(make.test("a"), incomplete="killed"))
    save("none.json", make.report())
    found = call("gate", "clean.json", "cut.json")
    assert (found.exit_code, found.stdout.splitlines()[-1]) == (1, "gate: FAILED: tests are missing: cut.json: killed")
    assert call("gate", "none.json").exit_code == 1
    assert call("gate", "none.json", "clean.json").exit_code == 0


def test_gate_by_one_leak_alone_tells_git_bisect(call: Call, save: Save, make: type[Make], leaky: Path) -> None:
    leaks = make.test("t.py::test_x", make.finding(fingerprint="1d06a442"), make.finding(fingerprint="ffff0000"))
    save("two.json", make.report(leaks, make.test("t.py::test_y")))
    found = call("gate", "two.json", "--only", "1D06")
    assert found.exit_code == 1
    assert found.stdout.count("LEAKED") == 1
    assert "1D06: found, 1 finding" in found.stdout
    assert call("gate", "two.json", "--only", "abcd").exit_code == 0
    for report in (make.report(unchecked(make)), make.report(make.test("t.py::test_y"), incomplete="killed")):
        save("part.json", report)
        assert call("gate", "part.json", "--only", "abcd").exit_code == 2
    save("part.json", make.report(leaks, unchecked(make)))
    assert call("gate", "part.json", "--only", "ffff").exit_code == 1
    assert "no fingerprint" in call("gate", "two.json", "--only", "; rm").stderr


def test_gate_by_a_baseline(call: Call, folder: Path, leaky: Path, clean: Path) -> None:
    from pytest_gpuleak.baseline.file import Baseline, dump_baseline
    from pytest_gpuleak.baseline.update import update_baseline

    baseline, _ = update_baseline(Baseline(()), read_report(leaky))
    (folder / "known.toml").write_text(dump_baseline(baseline), encoding="utf-8")
    (folder / "empty.toml").write_text(dump_baseline(Baseline(())), encoding="utf-8")
    known = call("gate", "leaky.json", "--baseline", "known.toml", "--fail-stale")
    assert (known.exit_code, known.stdout.splitlines()[-1]) == (0, "gate: passed: no new leaks, 1 known leak; 2 tests")
    new = call("gate", "leaky.json", "--baseline", "empty.toml")
    assert new.exit_code == 1
    assert new.stdout.splitlines()[-1] == "gate: FAILED: 1 test leaks beyond what the baseline lists"
    stale = call("gate", "clean.json", "--baseline", "known.toml")
    assert stale.exit_code == 0
    assert "gpu-leak: stale: t.py::test_x  growing" in stale.stdout
    failed = call("gate", "clean.json", "--baseline", "known.toml", "--fail-stale")
    assert failed.exit_code == 1
    assert failed.stdout.splitlines()[-1] == "gate: FAILED: 1 entry of the baseline is stale: take out what is gone"


def test_gate_where_the_check_itself_failed(call: Call, folder: Path, clean: Path) -> None:
    document = json.loads(clean.read_text(encoding="utf-8"))
    for name, faults, of_test in (
        ("outside.json", ["the counter heap failed: OSError"], []),
        ("inside.json", [], ["x failed"]),
    ):
        document["faults"] = faults
        document["tests"][0]["faults"] = of_test
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
    assert call("gate", "clean.json", "--strict").exit_code == 0
    assert call("gate", "outside.json", "inside.json").exit_code == 0
    outside, inside = call("gate", "outside.json", "--strict"), call("gate", "inside.json", "--strict")
    assert (outside.exit_code, inside.exit_code) == (1, 1)
    assert outside.stdout.splitlines()[-1] == (
        "gate: FAILED: the check itself failed outside of the tests: the counter heap failed: OSError"
    )
    assert inside.stdout.splitlines()[-1] == "gate: FAILED: the check itself failed in 1 test: x failed"
    merged = call("merge", "outside.json", "clean.json", "-o", "merged.json")
    assert merged.exit_code == 0
    assert call("gate", "merged.json", "--strict").exit_code == 1
    document["faults"] = "text"
    (folder / "bad.json").write_text(json.dumps(document), encoding="utf-8")
    assert "faults is 'text', which is not a list" in call("gate", "bad.json").stderr


@pytest.mark.parametrize("content", [b"", b"\xff", b"[[[", b"version = 2\n", b"version = 1\nversion = 1\n", None])
def test_a_baseline_that_cannot_be_used(call: Call, folder: Path, clean: Path, content: bytes | None) -> None:
    if content is not None:
        (folder / "bad.toml").write_bytes(content)
    found = call("gate", "clean.json", "--baseline", "bad.toml")
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith("gpuleak: ")
    assert found.stderr.count("\n") == 1
    assert "bad.toml" in found.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("gate", "clean.json"),
        ("diff", "clean.json"),
        ("merge", "-o", "clean.json"),
        ("convert", "-o", "c.md"),
    ],
)
def test_a_report_that_cannot_be_used_is_one_line_and_changes_nothing(
    call: Call, folder: Path, clean: Path, arguments: tuple[str, ...]
) -> None:
    before = clean.read_bytes()
    (folder / "bad.json").write_text('{"schema": "pytest-gpuleak/report/2"}')
    found = call(*arguments, "bad.json")
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith("gpuleak: bad.json was written by a newer version")
    assert found.stderr.count("\n") == 1
    assert clean.read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["bad.json", "clean.json"]


def test_usage_errors(call: Call, clean: Path) -> None:
    for arguments in (("gate",), ("gate", "--baseline"), ("nonsense",), ("show", "clean.json", "--nonsense")):
        assert call(*arguments).exit_code == 2
    twice = call("merge", "-", "-", "-o", "out.json")
    assert twice.exit_code == 2
    assert "standard input (-) can be read once" in twice.stderr


def test_merge_writes_a_report_of_the_schema(call: Call, folder: Path, leaky: Path, clean: Path) -> None:
    found = call("merge", "clean.json", "leaky.json", "-o", "all.json")
    assert (found.exit_code, found.stdout) == (0, "")
    assert found.stderr.startswith("merged 2 reports; gpu-leak: 1 leaked, 1 clean")
    document = json.loads((folder / "all.json").read_text())
    check_schema(document)
    assert [test["verdict"] for test in document["tests"]] == ["leaked", "clean"]


def test_merge_of_what_is_hostile_stays_within_the_schema(call: Call, folder: Path, make: type[Make]) -> None:
    document = json.loads(encode_report(make.report(make.test("a", make.finding()))))
    document["tests"][0]["nodeid"] = "\x1b\ud800" + "x" * 10_000
    document["tests"][0]["duration_s"] = None
    (folder / "bad.json").write_text(json.dumps(document))
    call("merge", "bad.json", "-o", "all.json")
    check_schema(json.loads((folder / "all.json").read_text()))


def test_merge_over_one_of_its_inputs(call: Call, clean: Path, leaky: Path) -> None:
    assert call("merge", "clean.json", "leaky.json", "-o", "clean.json").exit_code == 0
    assert read_report(clean).summary["leaked"] == 1


def test_merge_to_standard_output_feeds_show(call: Call, clean: Path, leaky: Path) -> None:
    merged = call("merge", "clean.json", "leaky.json", "-o", "-")
    assert "LEAKED t.py::test_x" in call("show", "-", input=merged.stdout_bytes).stdout


def test_merge_names_what_is_incomplete(call: Call, save: Save, make: type[Make]) -> None:
    save("cut.json", make.report(make.test("a"), incomplete="killed"))
    assert "incomplete: cut.json: killed\n" in call("merge", "cut.json", "-o", "all.json").stderr


def test_convert_by_suffix_by_name_and_to_standard_output(call: Call, folder: Path, leaky: Path) -> None:
    for arguments in (("-o", "out.json"), ("-o", "OUT.JSON"), ("-o", "report", "--format", "json")):
        assert call("convert", "leaky.json", *arguments).exit_code == 0
        assert json.loads((folder / arguments[1]).read_text())["tests"][0]["nodeid"] == "t.py::test_x"
    assert json.loads(call("convert", "leaky.json", "-o", "-").stdout)["summary"]["leaked"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "out.txt"), "out.txt names no known format; accepted is a file (.json"),
        (("-o", "nowhere/out.json"), "nowhere/out.json lies in a folder that does not exist"),
        (("-o", "nowhere/out", "--format", "json"), "nowhere/out lies in a folder that does not exist"),
        (("-o", "."), ". is a folder"),
        (("-o", ".", "--format", "json"), ". is a folder"),
    ],
)
def test_an_output_that_cannot_be_written(call: Call, leaky: Path, arguments: tuple[str, ...], said: str) -> None:
    for command in ("convert", "merge"):
        found = call(command, "leaky.json", *arguments)
        assert (found.exit_code, found.stdout) == (2, "")
        assert found.stderr.startswith(f"gpuleak: {said}")
        assert found.stderr.count("\n") == 1


def test_a_disk_that_is_full(call: Call, folder: Path, leaky: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", refuse)
    for command in ("convert", "merge"):
        found = call(command, "leaky.json", "-o", "out.json")
        assert found.exit_code == 2
        assert "out.json could not be written (No space left on device)" in found.stderr
    assert [path.name for path in folder.iterdir()] == ["leaky.json"]


def test_colours_only_where_they_are_wanted(call: Call, leaky: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" not in call("gate", "leaky.json").stdout
    assert "\x1b[31mLEAKED t.py::test_x" in call("gate", "leaky.json", color=True).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in call("gate", "leaky.json", color=True).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(call: Call, shell: str) -> None:
    found = call("completion", shell)
    assert found.exit_code == 0
    assert "_GPULEAK_COMPLETE" in found.stdout


def test_a_reader_that_goes_away_is_no_error(leaky: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "gate", str(leaky)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONIOENCODING": "ascii"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process:
        assert process.stderr.read() == b""
    assert process.returncode == 1, "the gate's own verdict"
