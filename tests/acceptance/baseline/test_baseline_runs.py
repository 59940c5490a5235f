"""Runs under a baseline: adopt it, run clean, stop what is new, and let the list shrink."""

from __future__ import annotations

import errno
import json
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.session.features import baseline as baseline_run

if TYPE_CHECKING:
    import pathlib

    from tests.conftest import Run, Runner

OPTION = "--gpu-leak-baseline=leaks.toml"
UPDATE = "--gpu-leak-update-baseline"
PLAIN = ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:hypothesispytest", "--gpu-leak"]

SUITE = """
    import os, pytest
    KEPT, NEW, MODELS = [], [], []
    MODE = os.environ.get("MODE", "")

    @pytest.fixture(scope="module")
    def model():
        MODELS.append(Buffer(3 << 20))

    @pytest.mark.parametrize("name", ["/tmp/a::b[1]"] + ["c"] * ("parameter" in MODE))
    def test_leaks(name):
        if "fixed" not in MODE:
            KEPT.append(Buffer(2000 if "grown" in MODE else 1000))

    def test_uses(model):
        assert MODELS

    def test_clean():
        if "new" in MODE:
            NEW.append(Buffer(100))
        assert "broken" not in MODE
"""

LEAKS = "gpu-leak: baseline *leaks.toml: 2 added, 0 removed, 0 changed, 0 kept"


@pytest.fixture
def suite(run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the suite in a mode, with a baseline."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "")
    pytester.makepyfile(test_it="")
    source = SUITE

    def start(mode: str, *arguments: str, **options: Any) -> Run:
        nonlocal source
        monkeypatch.setenv("MODE", mode)
        text, source = source, ""  # written once: a file that changes within a second may be taken for the old one
        return run(text, OPTION, *arguments, **options)

    return start


@pytest.fixture
def file(pytester: pytest.Pytester) -> pathlib.Path:
    return pytester.path / "leaks.toml"


def test_from_adopting_to_shrinking(suite: Any, file: pathlib.Path) -> None:
    adopted = suite("", UPDATE)
    adopted.result.stdout.fnmatch_lines(
        [
            LEAKS,
            "  + fixture 'model' of test_it.py  retained, 3.0 MiB on cpu, held by test_it.MODELS",
            "  + test_it.py::test_leaks  growing, 1000 bytes on cpu, held by test_it.KEPT",
            "gpu-leak: write into each entry's `reason` why*",
            "gpu-leak: 0 leaked, 1 noted, 2 clean, baseline: 2 known*",
        ]
    )
    assert adopted.result.ret == 0
    file.write_text(file.read_text().replace('reason = ""', 'reason = "ticket 12"') + "# reviewed by hand\n")
    text = file.read_text()

    clean = suite("parameter", "-v")
    clean.result.stdout.fnmatch_lines(
        ["KNOWN 2.0 KiB in 2 tests", "  largest  test_it.py::test_leaks*", "  known (baseline): ticket 12"]
    )
    assert (clean.result.ret, clean.report["summary"]["known"], clean.report["summary"]["leaked"]) == (0, 3, 0)
    assert clean.fixtures["model"]["findings"][0]["known"]
    assert clean.finding("test_leaks[c]")["known"]

    worse = suite("new,grown")
    worse.result.stdout.fnmatch_lines(
        [
            "LEAKED test_it.py::test_leaks*",
            "  grown (baseline): 2.0 KiB, 100 % more than the 1000 bytes that are listed;*",
            "LEAKED test_it.py::test_clean",
            "  new (baseline): the baseline does not list it",
        ]
    )
    assert (worse.result.ret, worse.report["summary"]["leaked"]) == (1, 2)
    assert file.read_text() == text

    fixed = suite("fixed", "--gpu-leak-fail-stale")
    fixed.result.stdout.fnmatch_lines(
        [
            "gpu-leak: 1 entry of the baseline is stale, the leak is gone, which FAILS the run: *leaks.toml",
            "  - test_it.py::test_leaks  growing, 1000 bytes on cpu, held by test_it.KEPT",
            "*take them out of the file, or run all tests with --gpu-leak-update-baseline",
            "gpu-leak: 0 leaked, * baseline: 1 known, 1 stale*",
        ]
    )
    assert (fixed.result.ret, [entry["test"] for entry in fixed.report["stale"]]) == (1, ["test_it.py::test_leaks"])

    suite("fixed,new", UPDATE).result.stdout.fnmatch_lines(["gpu-leak: baseline *: 1 added, 1 removed, 0 changed, 1 *"])
    assert (file.read_text().count("ticket 12"), "test_leaks" in file.read_text()) == (1, False)


@pytest.mark.slow
def test_workers_know_it_and_write_nothing(run: Runner, file: pathlib.Path) -> None:
    pytest.importorskip("xdist")
    source = """
        import os, pytest
        KEPT, MODELS = [], []

        @pytest.fixture(scope="module")
        def model():
            MODELS.append(Buffer(3 << 20))

        def test_leaks(model):
            KEPT.append(Buffer(100))

        def test_clean(model):
            assert MODELS
        """
    file.write_text("version = 1\n" + entry_of("test_it.py::test_clean"))
    found = run(source, OPTION, UPDATE, "-n2", apart=True)
    found.result.stdout.fnmatch_lines(
        ["gpu-leak: baseline *leaks.toml: 2 added, 1 removed, 0 changed, 0 kept", "  + fixture 'model' of test_it.py*"]
    )
    assert found.result.ret == 0
    file.write_text(file.read_text() + entry_of("test_it.py::test_clean"))
    text = file.read_text()
    again = run("", OPTION, "-n2", "--dist=loadgroup", "-v", apart=True)
    again.result.stdout.fnmatch_lines(["KNOWN test_it.py::test_leaks*", "  - test_it.py::test_clean*"])
    assert (again.result.ret, again.report["summary"]["stale"], file.read_text()) == (0, 1, text)
    assert again.report["summary"]["leaked"] == again.report["summary"]["fixtures_leaked"] == 0


@pytest.mark.interpreter  # TOML is read by a package before Python 3.11
def test_a_part_of_the_suite_adds_only_what_it_saw(suite: Any, file: pathlib.Path) -> None:
    file.write_text("version = 1\n" + entry_of("test_it.py::test_clean"))
    found = suite("", UPDATE, "-k", "leaks")
    found.result.stdout.fnmatch_lines(
        ["gpu-leak: not all was seen (2 tests deselected): the baseline gained only what was; 1 entry was kept unseen"]
    )
    assert (found.result.ret, file.read_text().count("[[leak]]")) == (0, 2)


@pytest.mark.parametrize("arguments", [["-k", "leaks and not c"], ["test_it.py::test_leaks[c]"]])
def test_a_part_of_a_test_removes_nothing(suite: Any, file: pathlib.Path, arguments: list[str]) -> None:
    file.write_text("# by hand\nversion = 1\n" + entry_of("test_it.py::test_leaks"))
    text = file.read_text()
    found = suite("fixed,parameter", UPDATE, *arguments)
    assert (found.result.ret, file.read_text(), found.report["stale"]) == (0, text, [])


@pytest.mark.parametrize(
    ("mode", "arguments", "why"),
    [
        ("new,broken", ["-k", "clean"], "tests failed for other reasons than leaks"),
        ("fixed,broken", ["-x", "test_it.py::test_clean", "test_it.py"], "the run is incomplete: *stopping after 1*"),
        ("new", ["-k", "nothing"], "no test ran"),
        ("", ["--setup-only", "-k", "clean"], "no test was called"),
    ],
)
def test_a_run_that_cannot_be_trusted_is_not_recorded(
    suite: Any, file: pathlib.Path, mode: str, arguments: list[str], why: str
) -> None:
    file.write_text("version = 1\n")
    found = suite(mode, UPDATE, *arguments)
    found.result.stdout.fnmatch_lines([f"gpu-leak: the baseline *leaks.toml was not updated: {why}"])
    assert (found.result.ret != 0, file.read_text()) == (True, "version = 1\n")


def test_a_refused_update_does_not_speak_of_listed_holders(suite: Any, file: pathlib.Path) -> None:
    found = suite("new,broken", UPDATE)
    found.result.stdout.fnmatch_lines(["gpu-leak: the baseline *leaks.toml was not updated: tests failed *"])
    found.result.stdout.no_fnmatch_line("*passed as known*")
    assert (found.result.ret != 0, file.exists()) == (True, False)


def test_an_interrupted_run_is_not_recorded(run: Runner, file: pathlib.Path) -> None:
    source = """
        KEPT = []
        def test_leaks():
            KEPT.append(Buffer(100))
        def test_interrupts():
            pytest.exit("enough")
        """
    found = run(f"import pytest\n{textwrap.dedent(source)}", OPTION, UPDATE)
    found.result.stdout.fnmatch_lines(["gpu-leak: the baseline *leaks.toml was not updated: the run is incomplete*"])
    assert not file.exists()
    assert found.verdicts == {"test_leaks": "leaked"}


def entry_of(test: str, **changes: str | int) -> str:
    fields = {"test": test, "kind": "growing", "device": "cpu", "bytes": 9, "fingerprint": "00aa", **changes}
    return "[[leak]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())


@pytest.mark.parametrize(
    ("arguments", "stale"),
    [
        ([], ["test_it.py::test_gone", "test_removed.py::test_x"]),
        (["-k", "test_it", "test_it.py"], ["test_it.py::test_gone"]),
        (["test_it.py::test_it"], []),
        (["--lf", "-p", "cacheprovider"], []),
        (["--ignore=test_it.py"], ["test_removed.py::test_x"]),
    ],
)
def test_tests_that_are_gone(
    run: Runner, pytester: pytest.Pytester, file: pathlib.Path, arguments: list[str], stale: list[str]
) -> None:
    file.write_text("version = 1\n" + "".join(map(entry_of, ["test_it.py::test_gone", "test_removed.py::test_x"])))
    pytester.makepyfile(test_other="def test_other(): pass\n")
    found = run("def test_it(): pass\n", OPTION, *arguments)
    assert [entry["test"] for entry in found.report["stale"]] == stale


def test_a_baseline_of_another_rootdir_is_not_taken_apart(run: Runner, file: pathlib.Path) -> None:
    file.write_text("version = 1\n" + entry_of("sub/test_it.py::test_it"))
    found = run("def test_it(): pass\n", OPTION, "--gpu-leak-fail-stale")
    found.result.stdout.fnmatch_lines(["gpu-leak: none of the baseline's test files is below the rootdir *"])
    assert (found.result.ret, found.report["stale"]) == (0, [])


def test_a_leak_that_is_allowed_is_not_recorded(run: Runner, file: pathlib.Path) -> None:
    source = """
        import pytest
        KEPT = []
        @pytest.mark.allow_gpu_leak(reason="a cache")
        def test_leaks():
            KEPT.append(Buffer(100))
        """
    found = run(source, OPTION, UPDATE)
    assert (found.verdicts, "[[leak]]" in file.read_text()) == ({"test_leaks": "allowed"}, False)


@pytest.mark.parametrize("config", ["tox.ini", "pyproject.toml"])
def test_the_path_in_the_ini_is_relative_to_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    head, quote = ("[pytest]", "") if config == "tox.ini" else ("[tool.pytest.ini_options]", '"')
    lines = [head, f"gpu_leak_baseline = {quote}known/leaks.toml{quote}", f"gpu_leak_fail_stale = {quote}true{quote}"]
    pytester.path.joinpath(config).write_text("\n".join(lines))
    pytester.mkdir("known").joinpath("leaks.toml").write_text("version = 1\n" + entry_of("test_it.py::test_gone"))
    pytester.makepyfile(test_it="def test_it(): pass")
    monkeypatch.chdir(pytester.mkdir("sub"))
    found = pytester.runpytest_inprocess(*PLAIN, "..")
    found.stdout.fnmatch_lines(["*FAILS the run: */known/leaks.toml", "  - test_it.py::test_gone*"])
    assert found.ret == 1


def test_a_file_that_cannot_be_written_is_told_and_left(
    run: Runner, file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    file.write_text("version = 1\n")
    monkeypatch.setattr(baseline_run, "write_text", fail)
    found = run("KEPT = []\ndef test_it():\n    KEPT.append(Buffer(100))\n", OPTION, UPDATE)
    found.result.stdout.fnmatch_lines(
        ["gpu-leak: the baseline *leaks.toml could not be written: Read-only file system"]
    )
    assert (found.result.ret, file.read_text(), found.verdicts) == (1, "version = 1\n", {"test_it": "leaked"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([OPTION], "--gpu-leak-baseline: *leaks.toml does not exist; --gpu-leak-update-baseline writes a first one"),
        (["--gpu-leak-baseline=missing/leaks.toml", UPDATE], "*missing/leaks.toml cannot be written: its folder is*"),
        (["--gpu-leak-baseline=."], "--gpu-leak-baseline: * cannot be read: Is a directory; accepted is a TOML file"),
        (["--gpu-leak-baseline="], "--gpu-leak-baseline: '' is not accepted, only 'off', or the path of a file"),
        (["--gpu-leak-baseline=bad.toml"], "--gpu-leak-baseline: *bad.toml: version = 2 is not accepted, only 1*"),
        (["--gpu-leak-baseline=bad.toml", UPDATE], "--gpu-leak-baseline: *bad.toml: version = 2 is not accepted*"),
        (["-o", "gpu_leak_baseline=bad.toml"], "*gpu_leak_baseline*: *bad.toml: version = 2 is not accepted*"),
        ([UPDATE], "--gpu-leak-update-baseline: there is no baseline; name its file with --gpu-leak-baseline=PATH"),
        (["--gpu-leak-fail-stale"], "--gpu-leak-fail-stale: there is no baseline; name its file with *"),
    ],
)
def test_usage_errors(pytester: pytest.Pytester, arguments: list[str], words: str) -> None:
    pytester.path.joinpath("bad.toml").write_text("version = 2\n")
    result = pytester.runpytest_inprocess(*PLAIN, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.stderr.lines if line]
    result.stderr.fnmatch_lines([f"ERROR: {words}"])
    assert "Traceback" not in line
    assert pytester.path.joinpath("bad.toml").read_text() == "version = 2\n"
