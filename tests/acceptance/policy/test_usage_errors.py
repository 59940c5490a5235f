"""A value that is not accepted ends the run with one line. Which are not: tests/session/test_values.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.reports.formats import WRITERS

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.slow

RunPolicy = Callable[..., Any]
native_toml = pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest 9 brought [tool.pytest]")

COUNTS = "only a whole number from 0 to 9223372036854775807"


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [("tensors", "few", COUNTS), ("scan", "Epoch", "only one of 'epoch', 'scan'")],
)
def test_command_line_and_ini(
    run_policy: RunPolicy, pytester: pytest.Pytester, name: str, value: str, accepted: str
) -> None:
    said = f"{value!r} is not accepted, {accepted}"
    assert run_policy(f"--gpu-leak-{name}={value}").error == f"--gpu-leak-{name}: {said}"

    ini_name = f"gpu_leak_{name.replace('-', '_')}"
    ini = pytester.makeini(f"[pytest]\n{ini_name} = {value}\n")
    assert run_policy().error == f"ini value {ini_name} in {ini}: {said}"


def test_an_ini_value_that_is_given_on_the_command_line(run_policy: RunPolicy) -> None:
    said = f"'few' is not accepted, {COUNTS}"
    run = run_policy("-o", "gpu_leak_tensors=few")
    assert run.error == f"ini value gpu_leak_tensors, given with -o: {said}"


def test_a_switch_of_the_run_is_true_or_false(run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
    ini = pytester.makeini("[pytest]\ngpu_leak_clean = after\n")
    assert run_policy().error == f"ini value gpu_leak_clean in {ini}: 'after' is not accepted, only true or false"


def test_a_bad_switch(run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
    ini = pytester.makeini("[pytest]\ngpu_leak = maybe\n")
    # In a process of its own, since pytest 7.4 itself warns of an error that early, and warnings are errors here.
    run = run_policy(subprocess=True)
    assert run.error == f"ini value gpu_leak in {ini}: 'maybe' is not accepted, only true or false"


@native_toml
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("gpu_leak_mb = nan", "nan is not accepted"),
        ("gpu_leak_confirm = [[1]]", "a list is not accepted"),
        ("gpu_leak_report = [3]", "[3] is not accepted, only a path, or a list of paths"),
        ("gpu_leak = 2", "2 is not accepted"),
    ],
)
def test_native_toml(run_policy: RunPolicy, pytester: pytest.Pytester, line: str, said: str) -> None:
    switch = "" if line.startswith("gpu_leak =") else "gpu_leak = true\n"
    file = pytester.makepyprojecttoml(f"[tool.pytest]\n{switch}{line}\n")
    assert run_policy().error.startswith(f"ini value {line.split(' =', maxsplit=1)[0]} in {file}: {said}")


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("gpu_leak(3)", "positional argument 3 is not accepted, only keyword arguments: tensors, mb, retained_mb, "),
        ("gpu_leak(scan=Hostile())", "scan=a Hostile is not accepted, only one of 'epoch', 'scan'"),
        ("allow_gpu_leak", "reason=None is not accepted"),
    ],
)
def test_markers(run_policy: RunPolicy, pytester: pytest.Pytester, mark: str, said: str) -> None:
    pytester.makepyfile(
        test_marked=f"""
        import pytest

        class Hostile:
            @property
            def __class__(self): raise RuntimeError
            def __repr__(self): raise RuntimeError
            def __eq__(self, other): raise RuntimeError

        def test_before(): raise RuntimeError("no test may run")

        @pytest.mark.{mark}
        def test_one(): pass
        """
    )
    run = run_policy("--gpu-leak")
    assert run.error.startswith(f"pytest.mark.{mark.split('(', maxsplit=1)[0]}: {said}")
    assert run.error.endswith("; on test_marked.py::test_one (test_marked.py:11)")
    run.result.stdout.no_fnmatch_line("*RuntimeError*")


def test_a_module_s_marker_is_named_with_its_first_test(run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_marked="import pytest\npytestmark = pytest.mark.gpu_leak(MB=1)\ndef test_one(): pass\ndef test_two(): pass"
    )
    assert run_policy("--gpu-leak").error.endswith("on test_marked.py::test_one (test_marked.py:3)")


def test_markers_are_not_judged_while_off(run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\ndef test_one(): pass")
    run_policy().result.assert_outcomes(passed=1)


class TestReportPaths:
    ACCEPTED = (
        f"accepted is a file ({', '.join([*WRITERS][:-1])} or {[*WRITERS][-1]}) in a folder that may be written to"
    )

    def error(self, run: RunPolicy, path: str) -> str:
        text: str = run("--gpu-leak", f"--gpu-leak-report={path}").error
        assert text.endswith(self.ACCEPTED)
        return text

    def test_unknown_suffix(self, run_policy: RunPolicy) -> None:
        assert self.error(run_policy, "leaks.xml").startswith("--gpu-leak-report: 'leaks.xml' names no known format;")
        assert self.error(run_policy, "leaks").startswith("--gpu-leak-report: 'leaks' names no known format;")

    def test_a_missing_folder_is_made_as_for_junit(self, run: Runner, pytester: pytest.Pytester) -> None:
        found = run("def test_one(): pass", "--gpu-leak-report=no/such/leaks.md", "--gpu-leak-report=other/leaks.html")
        assert found.result.ret == 0
        assert (pytester.path / "no" / "such" / "leaks.md").is_file()
        assert (pytester.path / "other" / "leaks.html").is_file()

    def test_a_file_in_the_place_of_a_folder(self, run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
        pytester.path.joinpath("no").write_text("", encoding="utf-8")
        for path in ("no/leaks.json", "no/such/leaks.json"):
            assert f"'{path}' lies in a folder that is a file;" in self.error(run_policy, path)

    def test_folder(self, run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
        pytester.mkdir("leaks.json")
        assert "'leaks.json' is a folder;" in self.error(run_policy, "leaks.json")
        assert "'' is a folder;" in self.error(run_policy, "")
        assert "'.' is a folder;" in self.error(run_policy, ".")

    def test_name_too_long(self, run_policy: RunPolicy) -> None:
        assert "cannot be used (" in self.error(run_policy, "x" * 5000 + ".json")

    @pytest.mark.parametrize("denied", ["folder", "file"])
    def test_no_permission(
        self, run_policy: RunPolicy, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, denied: str
    ) -> None:
        # Not by chmod: root may write everywhere.
        pytester.path.joinpath("leaks.json").write_text("{}", encoding="utf-8")
        path = pytester.path if denied == "folder" else pytester.path / "leaks.json"
        access = os.access
        monkeypatch.setattr(os, "access", lambda asked, mode: asked != path and access(asked, mode))
        assert "'leaks.json' may not be written (permission denied);" in self.error(run_policy, "leaks.json")

    def test_ini_names_its_file(self, run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
        ini = pytester.makeini("[pytest]\ngpu_leak = true\ngpu_leak_report = leaks.txt\n")
        assert run_policy().error.startswith(f"ini value gpu_leak_report in {ini}: 'leaks.txt' names no known format;")

    def test_not_checked_while_off(self, run_policy: RunPolicy) -> None:
        assert run_policy("--gpu-leak-report=no/leaks.json").settings["reports"] == []

    def test_relative_to_where_it_is_said(
        self, run_policy: RunPolicy, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytester.makeini("[pytest]\ngpu_leak = true\ngpu_leak_report =\n    a.json\n    my reports/b.json\n")
        pytester.mkdir("my reports")
        below = pytester.mkdir("below")
        monkeypatch.chdir(below)
        by_ini = run_policy().settings["reports"]
        assert by_ini == [str(pytester.path / "a.json"), str(pytester.path / "my reports" / "b.json")]
        by_command_line = run_policy("--gpu-leak-report", "c.json", "--gpu-leak-report=d.JSON").settings["reports"]
        assert by_command_line == [str(below / "c.json"), str(below / "d.JSON")]

    def test_toml_list(self, run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
        pytester.makepyprojecttoml('[tool.pytest.ini_options]\ngpu_leak = true\ngpu_leak_report = ["a.json"]\n')
        assert run_policy().settings["reports"] == [str(pytester.path / "a.json")]


def test_a_report_of_a_run_that_is_off(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    for options, told in (((), True), (("--gpu-leak",), False), (("--no-gpu-leak",), False)):
        text = pytester.runpytest("--gpu-leak-report=r.json", *options).stdout.str()
        assert ("\ngpu-leak: no report is written: --gpu-leak-report needs --gpu-leak\n" in text) is told
