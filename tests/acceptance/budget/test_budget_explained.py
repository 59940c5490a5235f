"""A failed budget says what filled the memory at its peak: the test is run once more, under a recorder."""

from __future__ import annotations

import importlib.util
import json
import pathlib

import pytest

# Not `pytest.mark.torch`: that imports it into this process too, which takes seconds.
no_torch = importlib.util.find_spec("torch") is None
pytestmark = [
    pytest.mark.skipif(no_torch, reason="torch is not installed for this Python"),
    pytest.mark.slow,
    pytest.mark.usefixtures("forked"),
]

SECTION = "what filled the memory at its peak, recorded in a re-run after teardown"
SOURCE = """
    import pytest, torch
    from types import SimpleNamespace
    from tests.support import simgpu
    simgpu.install()
    MIB = 1 << 20
    RUNS = []
    max_gpu_mb = pytest.mark.max_gpu_mb

    def block(size):
        return torch.empty(int(size * MIB), dtype=torch.uint8, device="simgpu:0")

    @pytest.fixture(scope="module")
    def weights():
        return SimpleNamespace(parts={"first": [block(40)]})

    @pytest.fixture
    def batch():
        return torch.empty(2 * MIB, dtype=torch.uint8, device="simgpu:0")

    @max_gpu_mb(4)
    def test_list(weights, batch):
        RUNS.append("list")
        kept = [torch.empty(2 * MIB, dtype=torch.uint8, device="simgpu:0") for _ in range(4)]
        assert kept

    @max_gpu_mb(40)
    def test_within_its_budget(weights):
        RUNS.append("within")
        assert block(2) is not None

    @max_gpu_mb(4)
    def test_only_the_first_run(weights):
        RUNS.append("first")
        assert block(16 // RUNS.count("first")) is not None

    @max_gpu_mb(4)
    def test_fails_in_its_re_run(weights):
        RUNS.append("fails")
        assert block(16) is not None
        assert RUNS.count("fails") == 1

    @max_gpu_mb(4)
    @pytest.mark.gpu_leak(confirm=0)
    def test_is_not_run_again(weights):
        RUNS.append("confirm")
        assert block(16) is not None

    @max_gpu_mb(4, metric="reserved")
    def test_reserved(weights):
        RUNS.append("reserved")
        assert block(400) is not None

    @pytest.mark.xfail(strict=True)
    @max_gpu_mb(4)
    def test_expected_to_fail(weights):
        RUNS.append("xfail")
        assert block(16) is not None

    def test_runs():
        each = {name: RUNS.count(name) for name in RUNS}
        assert each == {"list": 2, "within": 1, "first": 2, "fails": 2, "confirm": 1, "reserved": 1, "xfail": 1}

    @max_gpu_mb(4, total=True)
    def test_last_with_its_fixture_set_up_again(weights):
        assert block(8) is not None
"""
SAID = [
    "  when    call, test_it.py:23 in *(empty.memory_format)",
    "    8.0 MiB  4 x uint8 [[]2097152]  held  test_it.py:23",
    "    2.0 MiB  1 x uint8 [[]2097152]  held  test_it.py:18",
    "  without the 4 x uint8 [[]2097152]: 2.0 MiB, within the budget",
]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[3]))
    pytester.makepyfile(test_it=SOURCE)
    return pytester


PLUGINS = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:hypothesispytest")


@pytest.mark.parametrize("options", [(), ("--gpu-leak", "--gpu-leak-report=report.json")], ids=["off", "on"])
def test_the_failure_tells_what_filled_the_memory(suite: pytest.Pytester, options: tuple[str, ...]) -> None:
    result = suite.runpytest_subprocess(*PLUGINS, *options)
    assert result.parseoutcomes() == {"failed": 6, "passed": 2, "xfailed": 1}
    parts = result.stdout.str().partition("short test summary")[0].split("\n____")[1:]
    texts = {part.split()[1]: part for part in parts}
    listed = pytest.LineMatcher(texts["test_list"].splitlines())
    listed.fnmatch_lines(
        [
            "max_gpu_mb: peak of 10.0 MiB on simgpu:0 is 6.0 MiB over the budget of 4 MiB *",
            "there before the test: fixture weights 40.0 MiB",
            f"*- {SECTION} -*",
        ]
    )
    listed.fnmatch_lines(SAID, consecutive=True)
    assert "not recorded: the re-run failed in call" in texts["test_fails_in_its_re_run"]
    assert "not recorded: the test was not run again, since confirm is 0" in texts["test_is_not_run_again"]
    assert SECTION not in texts["test_reserved"]
    first = texts["test_only_the_first_run"]
    assert "not told: the first run peaked at 16.0 MiB, its re-run, of which the parts are, at 8.0 MiB" in first
    last = texts["test_last_with_its_fixture_set_up_again"]
    assert "8.0 MiB  1 x uint8 [8388608]" in last
    assert "41943040" not in last.partition(SECTION)[2]
    if options:
        check_report(suite.path / "report.json")


def check_report(path: pathlib.Path) -> None:
    tests = {test["nodeid"].partition("::test_")[2]: test for test in json.loads(path.read_text("utf-8"))["tests"]}
    peaks = {name: test["findings"][0]["peak"] for name, test in tests.items() if test["findings"]}
    assert {name for name, peak in peaks.items() if peak is not None} == {
        "list",
        "only_the_first_run",
        "last_with_its_fixture_set_up_again",
    }
    found = peaks["list"]
    assert found["bytes"] == 10 * 2**20 == sum(part["bytes"] for part in found["parts"]) + found["unexplained_bytes"]
    assert (found["device"], found["estimated"], found["moment"]["phase"]) == ("simgpu:0", False, "call")
    assert [(part["count"], part["category"], part["created"]["file"]) for part in found["parts"]] == [
        (4, "held", "test_it.py"),
        (1, "held", "test_it.py"),
    ]


def test_in_workers_of_xdist(suite: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = suite.runpytest_subprocess(*PLUGINS, "-p", "xdist", "-n1", "-k", "list or within")
    assert result.parseoutcomes() == {"failed": 1, "passed": 1}
    result.stdout.fnmatch_lines([f"*- {SECTION} -*", *SAID])


@pytest.mark.usefixtures("cold")
def test_a_budget_that_holds_loads_no_recorder(suite: pytest.Pytester) -> None:
    suite.makeconftest(
        """
        import sys

        def pytest_unconfigure():
            print("LOADED", [name for name in sys.modules if name.endswith(("explaining", "peak_mode", "peak_parts"))])
        """
    )
    result = suite.runpytest_subprocess(*PLUGINS, "-s", "-k", "within")
    result.stdout.fnmatch_lines(["LOADED []"])
