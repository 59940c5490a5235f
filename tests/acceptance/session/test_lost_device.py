"""A device that answers no call any more ends the check, with one line that names the last test after which it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from pytest_gpuleak.cli import main
from pytest_gpuleak.cli.merge import merge_reports
from pytest_gpuleak.reports.json.read import read_report

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("forked")]

SUITE = """
    import pytest
    import torch
    from tests.support import simgpu
    simgpu.install()
    KEPT = []

    def test_leaks():
        KEPT.append(torch.ones(4, device="simgpu:0"))

    def test_healthy():
        torch.ones(4, device="simgpu:0")

    def test_loses_it():
        simgpu.lose_device(0)
        torch.ones(4, device="simgpu:0")

    def test_uses_it():
        torch.ones(4, device="simgpu:0")

    @pytest.fixture(scope="module")
    def cache():
        yield
        KEPT.append(Buffer(2**21))

    def test_leaks_on_the_host(cache):
        KEPT.append(Buffer(100))

    @pytest.mark.skip
    def test_skipped():
        pass
"""
REASON = "simgpu:0 stopped answering during test_it.py::test_loses_it (CUDA error: device-side assert triggered)"


def lines_on(found: Run) -> list[str]:
    return [line for line in found.result.outlines if "stopped answering" in line]


def test_later_tests_are_unchecked_and_one_line_and_the_reports_say_why(run: Runner, pytester: pytest.Pytester) -> None:
    pytest.importorskip("torch")
    lost = run(SUITE, "-rA", apart=True)
    lost.result.assert_outcomes(passed=3, failed=2, skipped=1)
    assert {name: (test["verdict"], test["why_unchecked"]) for name, test in lost.tests.items()} == {
        "test_leaks": ("leaked", None),
        "test_healthy": ("clean", None),
        "test_loses_it": ("unchecked", "it failed in call: its traceback may hold its locals"),
        "test_uses_it": ("unchecked", REASON),
        "test_leaks_on_the_host": ("unchecked", REASON),
        "test_skipped": ("unchecked", REASON),
    }
    assert lost.holder("test_leaks") == "test_it.KEPT[0]"

    last = "last test after which it answered: test_it.py::test_healthy"
    assert lines_on(lost) == [f"gpu-leak: {REASON}; {last}; later tests are not checked"]
    assert "failed:" not in "".join(line for line in lost.result.outlines if line.startswith("gpu-leak:"))
    assert lost.report["faults"] == []
    assert lost.report["fixtures"] == []
    assert lost.report["summary"]["faults"] == 0
    assert lost.report["summary"]["lost_devices"] == [
        {
            "device": "simgpu:0",
            "error": "CUDA error: device-side assert triggered",
            "nodeid": "test_it.py::test_loses_it",
            "moment": "during",
            "last_answered": "test_it.py::test_healthy",
            "worker": "main",
        }
    ]

    path = pytester.path / "report.json"
    shown = CliRunner().invoke(main, ["show", str(path)])
    assert [line for line in shown.output.splitlines() if "stopped answering" in line] == lines_on(lost)
    report = read_report(path)
    assert len(merge_reports([report, report]).summary["lost_devices"]) == 2


@pytest.mark.parametrize(
    ("loses", "moment", "test"),
    [
        ("def test_loses_it(): simgpu.lose_device(0)", "during", "test_loses_it"),
        ("def test_loses_it(request): request.addfinalizer(lambda: simgpu.lose_device(0))", "during", "test_loses_it"),
        (
            "@pytest.fixture(scope='module')\n    def lose(): simgpu.lose_device(0)\n\n    def test_it(lose): pass",
            "during",
            "test_it",
        ),
        ("def test_asks(): pass", "before", "test_last"),
    ],
    ids=["caught", "finalizer", "fixture", "between"],
)
def test_the_moment_is_told(run: Runner, pytester: pytest.Pytester, loses: str, moment: str, test: str) -> None:
    pytest.importorskip("torch")
    conftest = pytester.path / "conftest.py"
    conftest.write_text(
        conftest.read_text()
        + "\ndef pytest_runtest_logfinish(nodeid):\n"
        + "    if nodeid.endswith('test_asks'):\n"
        + "        __import__('tests.support.simgpu').support.simgpu.lose_device(0)\n"
    )
    # A test that failed: the counters are read again before the next one.
    loses = loses.replace("test_asks(): pass", "test_asks(): assert False")
    found = run(
        f"""
    import pytest
    import torch
    from tests.support import simgpu
    simgpu.install()

    def test_healthy(): torch.ones(4, device="simgpu:0")

    {loses}

    def test_last(): pass
    """,
        apart=True,
    )
    (lost,) = found.report["summary"]["lost_devices"]
    assert (lost["moment"], lost["nodeid"]) == (moment, f"test_it.py::{test}")
    last = "test_asks" if moment == "before" else "test_healthy"
    assert lost["last_answered"] == f"test_it.py::{last}"
    (line,) = lines_on(found)
    assert line.startswith(f"gpu-leak: simgpu:0 stopped answering {moment} test_it.py::{test} (CUDA error: ")
    assert found.tests["test_last"]["why_unchecked"] in line


def test_a_device_that_is_lost_by_its_first_use(run: Runner) -> None:
    pytest.importorskip("torch")
    found = run(
        """
        import torch
        from tests.support import simgpu
        simgpu.install()

        def test_loses_it():
            torch.ones(4, device="simgpu:0")
            simgpu.lose_device(0, "an illegal memory access was encountered")
        """,
        apart=True,
    )
    (line,) = lines_on(found)
    assert "(CUDA error: an illegal memory access was encountered); no earlier test had used it; later tests" in line
    assert found.verdicts == {"test_loses_it": "unchecked"}


def test_an_error_that_passes_does_not_end_the_check(run: Runner) -> None:
    pytest.importorskip("torch")
    found = run(
        SUITE.replace("lose_device(0)", 'lose_device(0, "out of memory")'),
        "-k",
        "not skipped",
        apart=True,
    )
    assert lines_on(found) == []
    assert "lost_devices" not in found.report["summary"]
    assert found.verdicts["test_leaks_on_the_host"] == "leaked"


def test_under_xdist_each_worker_has_its_line(run: Runner) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("xdist")
    found = run(SUITE, "-p", "xdist", "-n1", apart=True)
    (line,) = lines_on(found)
    assert line.endswith("test_it.py::test_healthy; later tests of gw0 are not checked")
    assert found.report["summary"]["lost_devices"][0]["worker"] == "gw0"
    assert found.tests["test_uses_it"]["why_unchecked"] == REASON


def test_clean_up_after_failed_tests_does_not_ask_the_device(run: Runner) -> None:
    pytest.importorskip("torch")
    found = run(SUITE, "--gpu-leak-clean", apart=True)
    assert len(lines_on(found)) == 1
    found.result.stdout.no_fnmatch_line("*could not clean up*")
