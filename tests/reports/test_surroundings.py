"""What is published where a run takes place, and that nothing is published anywhere else."""

from __future__ import annotations

import builtins
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.findings import Holder
from pytest_gpuleak.session.publishing import MAX_SUMMARY, locate, print_lines, publish
from pytest_gpuleak.session.surroundings import Surroundings, read_surroundings

if TYPE_CHECKING:
    from tests.conftest import Runner

NAMES = (
    "GITHUB_ACTIONS",
    "GITHUB_STEP_SUMMARY",
    "GITHUB_WORKSPACE",
    "GITLAB_CI",
    "CI_PROJECT_DIR",
    "RANK",
    "WORLD_SIZE",
)
LEAK = """
    KEPT = []
    def test_leaks():
        KEPT.append(Buffer(100))
"""


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the CI service that these tests themselves may run on."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_nowhere_in_particular() -> None:
    assert read_surroundings({}) is None
    assert read_surroundings({"GITHUB_ACTIONS": "false", "GITLAB_CI": "", "GITHUB_STEP_SUMMARY": ""}) is None


def test_github_and_gitlab() -> None:
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "/s", "GITHUB_WORKSPACE": "/w"}
    assert read_surroundings(github) == Surroundings(True, Path("/s"), False, Path("/w"))
    assert read_surroundings({"GITLAB_CI": "true", "CI_PROJECT_DIR": "/p"}) == Surroundings(
        gitlab=True, project=Path("/p")
    )


class TestLocate:
    @pytest.mark.parametrize("below", ["", "services/ml"])
    def test_the_checkout_is_the_repository(self, make: Any, tmp_path: Path, below: str) -> None:
        report = locate(make.report(environment={}), tmp_path / below, Surroundings(github=True, project=tmp_path))
        assert report.environment == {"root": below}

    def test_else_the_folder_with_a_git(self, make: Any, tmp_path: Path) -> None:
        (tmp_path / "repo" / ".git").mkdir(parents=True)
        report = locate(make.report(environment={}), tmp_path / "repo" / "ml", Surroundings())
        assert report.environment == {"root": "ml"}

    def test_a_rootdir_outside_of_the_checkout_says_nothing(self, make: Any, tmp_path: Path) -> None:
        surroundings = Surroundings(github=True, project=tmp_path / "checkout")
        assert locate(make.report(environment={}), tmp_path / "else", surroundings).environment == {}


def test_a_fault_of_ours_takes_a_line(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("one\n::error::two")

    monkeypatch.setattr("pytest_gpuleak.session.publishing.render_annotations", fail)
    (line,) = publish(make.report(), tmp_path, Surroundings(True, tmp_path / "summary.md", True, tmp_path))
    assert (tmp_path / "summary.md").read_text().startswith("### No GPU memory leaks found")
    assert (tmp_path / "gpuleak-codequality.json").read_text() == "[]\n"
    assert line.startswith("gpu-leak: publishing GitHub's annotations failed: KeyError: ")
    assert line.isprintable()


class TestSummary:
    def test_several_runs_of_a_step_follow_each_other(self, make: Any, tmp_path: Path) -> None:
        path = tmp_path / "summary.md"
        path.write_text("| a table of another tool |", encoding="utf-8")
        for _ in range(2):
            assert publish(make.report(), tmp_path, Surroundings(summary=path)) == []
        text = path.read_text(encoding="utf-8")
        assert text.startswith("| a table of another tool |\n\n### No GPU memory leaks found\n")
        assert text.count("\n\n### ") == 2

    def test_all_that_is_appended_stays_below_the_limit(self, make: Any, tmp_path: Path) -> None:
        path = tmp_path / "summary.md"
        path.write_bytes(b"x" * (MAX_SUMMARY - 10_000))
        held = [Holder("module", f"app.A{index}", "") for index in range(50)]
        tests = [make.test(f"t.py::test_{index}", make.finding(holder=one)) for index, one in enumerate(held)]
        assert publish(make.report(*tests), tmp_path, Surroundings(summary=path)) == []
        assert path.stat().st_size < MAX_SUMMARY
        assert "Cut to fit: " in path.read_text(encoding="utf-8")

    def test_a_full_one_is_left_as_it_is(self, make: Any, tmp_path: Path) -> None:
        path = tmp_path / "summary.md"
        path.write_bytes(b"x" * (MAX_SUMMARY - 100))
        (line,) = publish(make.report(), tmp_path, Surroundings(summary=path))
        assert line.startswith("gpu-leak: nothing was added to GITHUB_STEP_SUMMARY, which is full")
        assert path.stat().st_size == MAX_SUMMARY - 100

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
    def test_a_disk_that_is_full_leaves_nothing_half_written(self, make: Any, tmp_path: Path) -> None:
        (tmp_path / "summary.md").symlink_to("/dev/full")
        (line,) = publish(make.report(), tmp_path, Surroundings(summary=tmp_path / "summary.md"))
        assert line == "gpu-leak: GITHUB_STEP_SUMMARY could not be written: No space left on device"

    def test_a_write_that_breaks_off_is_taken_back(
        self, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "summary.md"
        path.write_text("of another tool", encoding="utf-8")
        whole = builtins.open

        class Breaking:
            def __init__(self, stream: Any) -> None:
                self.stream = stream

            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                self.stream.close()

            def write(self, text: str) -> None:
                self.stream.write(text[:100])
                raise OSError(28, "No space left on device")

        monkeypatch.setattr("builtins.open", lambda *args, **options: Breaking(whole(*args, **options)))
        (line,) = publish(make.report(), tmp_path, Surroundings(summary=path))
        monkeypatch.undo()
        assert "could not be written" in line
        assert path.read_text(encoding="utf-8") == "of another tool"

    @pytest.mark.parametrize("name", ["no/summary.md", ".", "a\0b"])
    def test_one_that_cannot_be_written_takes_a_line(self, make: Any, tmp_path: Path, name: str) -> None:
        (line,) = publish(make.report(), tmp_path, Surroundings(summary=tmp_path / name))
        assert line.startswith("gpu-leak: GITHUB_STEP_SUMMARY could not be written: ")
        assert "\n" not in line


class TestCodeQuality:
    def test_it_lies_in_the_projects_folder(self, make: Any, tmp_path: Path) -> None:
        report = make.report(make.test("t.py::test_a", make.finding()))
        (line,) = publish(report, tmp_path / "ml", Surroundings(gitlab=True, project=tmp_path))
        assert line == "gpu-leak: GitLab's code quality report is gpuleak-codequality.json, in the project's folder"
        assert len(json.loads((tmp_path / "gpuleak-codequality.json").read_bytes())) == 1

    def test_without_leaks_it_is_empty_and_not_announced(self, make: Any, tmp_path: Path) -> None:
        assert publish(make.report(), tmp_path, Surroundings(gitlab=True)) == []
        assert json.loads((tmp_path / "gpuleak-codequality.json").read_bytes()) == []

    def test_each_rank_writes_its_own(self, make: Any, tmp_path: Path) -> None:
        environ = {"GITLAB_CI": "true", "CI_PROJECT_DIR": str(tmp_path), "RANK": "1", "WORLD_SIZE": "2"}
        surroundings = read_surroundings(environ)
        assert surroundings is not None
        publish(make.report(), tmp_path, surroundings)
        assert [file.name for file in tmp_path.iterdir()] == ["gpuleak-codequality.rank1.json"]

    def test_one_that_cannot_be_written_takes_a_line(self, make: Any, tmp_path: Path) -> None:
        (line,) = publish(make.report(), tmp_path, Surroundings(gitlab=True, project=tmp_path / "no"))
        assert line.startswith("gpu-leak: gpuleak-codequality.json could not be written: No such file")


def test_what_the_output_cannot_encode_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(["größe \ud800"])
    assert capsys.readouterr().out in ("größe \\ud800\n", "gr\\xf6\\xdfe \\ud800\n")


def test_a_run_on_github(run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    (pytester.path / "summary.md").touch()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(pytester.path.parent))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    # With a worker: it publishes nothing of its own.
    found = run(LEAK, "-n1", "--gpu-leak-report=leaks.sarif")
    lines = [line for line in found.result.outlines if line.startswith("::")]
    place = f"{pytester.path.name}/test_it.py"
    assert [line.split("::")[1] for line in lines] == [
        f"error file={place},line=5,title=GPU leak%3A test_it.py%3A%3Atest_leaks"
    ]
    assert (pytester.path / "summary.md").read_text(encoding="utf-8").count("### 1 GPU memory leak") == 1
    (result,) = json.loads((pytester.path / "leaks.sarif").read_bytes())["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == place


def test_a_clean_run_on_github_without_a_terminal_reporter(
    run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "no" / "summary.md"))
    found = run("def test_it():\n    pass\n", "-p", "no:terminal")
    assert found.result.ret == 0
    printed = [line for line in found.result.outlines if line]
    assert printed == ["gpu-leak: GITHUB_STEP_SUMMARY could not be written: No such file or directory"]


def test_a_run_that_publishes_nothing_leaves_nothing(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(LEAK)
    assert not any(line.startswith("::") for line in found.result.outlines)
    assert not (pytester.path / "gpuleak-codequality.json").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_summary_that_is_a_pipe_without_a_reader_is_not_waited_for(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "summary"
    os.mkfifo(path)
    (line,) = publish(make.report(), tmp_path, Surroundings(summary=path))
    assert line.startswith("gpu-leak: GITHUB_STEP_SUMMARY could not be written: ")
