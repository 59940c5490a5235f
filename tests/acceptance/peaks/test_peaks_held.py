"""The heaviest tests are explained, and peaks are held to a file: each change to a model is named as the cause."""

from __future__ import annotations

import importlib.util
import json
import pathlib
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_gpuleak.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

# Not `pytest.mark.torch`: that imports it into this process too, which takes seconds.
no_torch = importlib.util.find_spec("torch") is None
pytestmark = [
    pytest.mark.skipif(no_torch, reason="torch is not installed for this Python"),
    pytest.mark.slow,
    pytest.mark.usefixtures("forked"),
]

MODEL = """
from torch import nn

LAYERS, BATCH, GRAD, KEEP = {values}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 2048)
        self.body = nn.Sequential(*[nn.Tanh() for _ in range(LAYERS)])

    def forward(self, x):
        return self.body(self.first(x))
"""
SUITE = """
import model, os, pytest, torch

RUNS = []

@pytest.fixture(scope="module")
def weights():
    return torch.zeros(8 << 20, dtype=torch.uint8)

def test_train(weights):
    RUNS.append("train")
    net, losses = model.Net(), []
    for _ in range(4):
        loss = net(torch.zeros(model.BATCH, 64)).square().sum()
        losses.append(loss if model.KEEP else loss.item())
        del loss

def test_evaluate(weights):
    RUNS.append("evaluate")
    with torch.set_grad_enabled(model.GRAD):
        assert model.Net()(torch.zeros(model.BATCH, 64)).shape

def test_small():
    torch.zeros(3)

def test_fails():
    torch.zeros(1 << 20)
    assert RUNS.append("fails")

@pytest.mark.gpu_leak(confirm=0)
def test_not_again():
    torch.zeros(1 << 20)

def test_runs():
    if "RUNS" in os.environ:
        assert {name: RUNS.count(name) for name in RUNS} == {"train": 2, "evaluate": 2, "fails": 1}
"""
AS_IT_WAS = "4, 512, False, False"
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:hypothesispytest")
HELD = "--gpu-leak-peaks-baseline=gpu-peaks.toml"


class Ran(NamedTuple):
    out: pytest.LineMatcher
    outcomes: dict[str, int]
    ret: int


@pytest.fixture
def run_suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[3]))
    pytester.makepyfile(test_it=SUITE)

    def run(*options: str, values: str = AS_IT_WAS) -> Ran:
        pytester.makepyfile(model=MODEL.format(values=values))
        result = pytester.runpytest_subprocess(*PLUGINS, *options)
        return Ran(result.stdout, result.parseoutcomes(), int(result.ret))

    return run


def report_of(pytester: pytest.Pytester, name: str = "report.json") -> dict[str, Any]:
    tests = json.loads((pytester.path / name).read_text(encoding="utf-8"))["tests"]
    return {test["nodeid"].partition("::")[2]: test for test in tests}


@pytest.mark.parametrize("options", [(), ("--gpu-leak", "--gpu-leak-report=report.json")], ids=["off", "on"])
def test_the_heaviest_are_explained(
    run_suite: Callable[..., Ran], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    if not options:  # the leak check may run a suspect again itself
        monkeypatch.setenv("RUNS", "1")
    pytester.makeini("[pytest]\ngpu_leak_peaks = 2\n")
    ran = run_suite(*options)
    assert ran.outcomes == {"failed": 1, "passed": 5}
    ran.out.fnmatch_lines(
        [
            "*= PEAKS =*",
            "gpu-leak: the peaks of the 2 heaviest tests (CPU tensors: no device was used)",
            "test_it.py::test_train",
            "  peak of 20.? MiB on cpu, above what was there before",
            "  when *",
            "   16.0 MiB  4 x float32 [[]512, 2048]  activation  model.py:12  *Net.body.*",
            "test_it.py::test_evaluate",
            "  peak of 12.6 MiB on cpu, above what was there before",
            "gpu-leak: the peak of 1 test was not measured: the test was not run again, since confirm is 0",
        ]
    )
    if options:
        tests = report_of(pytester)
        peak = tests["test_train"]["peak"]
        assert sum(part["bytes"] for part in peak["parts"]) + peak["unexplained_bytes"] == peak["bytes"]
        assert tests["test_train"]["verdict"] == "clean"
        assert tests["test_small"]["peak"] is None or tests["test_small"]["peak"]["bytes"] < 4096
        assert tests["test_fails"]["peak"] is None


CAUSES = {
    "a layer more": (
        "5, 512, False, False",
        "test_train",
        "* +4.0 MiB  activation  model.py:12 in forward  Net.body.[*]  4 x * -> 5 x",
    ),
    "the batch doubled": (
        "4, 1024, False, False",
        "test_train",
        "* +16.0 MiB  activation  model.py:12 in forward  Net.body.[*]  4 x float32 [[]512, 2048] -> 4 x float32 [[]1024, 2048]",
    ),
    "no_grad dropped": (
        "4, 512, True, False",
        "test_evaluate",
        "* +16.0 MiB  activation  model.py:12 in forward  Net.body.[*]  new: 4 x float32 [[]512, 2048]",
    ),
    "losses kept": (
        "4, 512, False, True",
        "test_train",
        "* activation  model.py:12 in forward  Net.body.[*]  4 x * -> 16 x",
    ),
}


def test_each_change_is_named_as_the_cause(
    run_suite: Callable[..., Ran], pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--gpu-leak", "--gpu-leak-peaks=2", "-k", "train or evaluate")
    written = run_suite(*options, HELD, "--gpu-leak-update-peaks", "--gpu-leak-report=old.json")
    assert written.outcomes == {"passed": 2, "deselected": 4}
    written.out.fnmatch_lines(["gpu-leak: peaks gpu-peaks.toml: 2 added, 0 removed, 0 changed, 0 kept"])
    before = (pytester.path / "gpu-peaks.toml").read_text(encoding="utf-8")
    for name, (values, grown, cause) in CAUSES.items():
        file = f"{name.replace(' ', '-')}.json"
        ran = run_suite(*options, HELD, f"--gpu-leak-report={file}", values=values)
        assert ran.outcomes["failed"] >= 1, name
        ran.out.fnmatch_lines(
            [f"*__ {grown} __*", "PEAK GROWN: * of CPU tensors, * over the * of gpu-peaks.toml (tolerance 2 %)"]
        )
        ran.out.fnmatch_lines([cause])
        record = report_of(pytester, file)[grown]
        assert [(one["kind"], one["failed"]) for one in record["findings"]] == [("budget", True)]
        assert (record["verdict"], record["outcome"]) == ("noted", "passed")
        with pytest.raises(SystemExit, match="1"):
            main(["diff", "old.json", file], standalone_mode=False)
        told = pytest.LineMatcher(capsys.readouterr().out.splitlines())
        told.fnmatch_lines([f"PEAK GROWN test_it.py::{grown}", cause])
    assert (pytester.path / "gpu-peaks.toml").read_text(encoding="utf-8") == before


def test_shrunk_peaks_are_told_and_a_part_of_a_run_updates_its_part(
    run_suite: Callable[..., Ran], pytester: pytest.Pytester
) -> None:
    file = pytester.path / "gpu-peaks.toml"
    run_suite(HELD, "--gpu-leak-update-peaks", values="8, 512, False, False")
    entries = file.read_text(encoding="utf-8").count("[[peak]]")
    ran = run_suite(HELD)
    assert ran.outcomes == {"failed": 1, "passed": 5}
    ran.out.fnmatch_lines(
        [
            "gpu-leak: peaks held to gpu-peaks.toml: 0 grown, 1 shrunk, 1 kept (tolerance 2 %)",
            "  - test_it.py::test_train: 3[67].? MiB -> 20.? MiB",
        ]
    )
    ran = run_suite(HELD, "--gpu-leak-update-peaks", "test_it.py::test_train")
    ran.out.fnmatch_lines([f"gpu-leak: peaks gpu-peaks.toml: 0 added, 0 removed, 1 changed, {entries - 1} kept"])
    # test_fails, and test_train has grown: without gradients a layer more keeps nothing more
    assert run_suite(HELD, "-n1", values="5, 512, False, False").outcomes["failed"] == 2
    ran = run_suite(HELD, "--gpu-leak-peaks-tolerance=50%", values="5, 512, False, False")
    assert ran.outcomes["failed"] == 1
    ran = run_suite(HELD, "--gpu-leak", "--gpu-leak-warn", values="5, 512, False, False")
    assert ran.outcomes["failed"] == 1
    ran.out.fnmatch_lines(["gpu-leak: peaks held to gpu-peaks.toml: 1 grown, *"])


def test_a_file_of_another_torch_is_not_compared(run_suite: Callable[..., Ran], pytester: pytest.Pytester) -> None:
    file = pytester.path / "gpu-peaks.toml"
    entry = '[[peak]]\ntest = "test_it.py::test_train"\ndevice = "cpu"\nbytes = 5\n'
    file.write_text(f'version = 1\ntorch = "1.0"\n\n{entry}', encoding="utf-8")
    ran = run_suite(HELD)
    assert ran.outcomes == {"failed": 1, "passed": 5}
    ran.out.fnmatch_lines(["gpu-leak: the peak of 1 test was not compared: made with torch 1.0, this is 2*"])
    file.write_text(f"version = 1\n\n{entry}".replace('"cpu"', '"cuda"'), encoding="utf-8")
    run_suite(HELD).out.fnmatch_lines(["*not compared: the file has it on cuda, and it was measured on cpu"])


LEAKS = """
import pytest, torch

KEPT = []
ONCE = {}

@pytest.fixture(scope="module")
def weights():
    KEPT.append(torch.zeros(3 << 18))
    yield KEPT[-1]

def test_grows():
    KEPT.append(torch.zeros(1 << 16))

def test_fills_once():
    ONCE.setdefault("cache", torch.zeros(200 << 10))

def test_clean():
    torch.zeros(1 << 20)

def test_cycle():
    ring = [torch.zeros(1 << 16)]
    ring.append(ring)

def test_uses(weights):
    weights.sum()

def test_last(weights):
    weights.sum()
"""


def test_no_verdict_depends_on_it(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[3]))
    pytester.makepyfile(test_it=LEAKS)
    found = []
    for options in ([], ["--gpu-leak-peaks=9"]):
        result = pytester.runpytest_subprocess(*PLUGINS, "--gpu-leak", "--gpu-leak-report=report.json", *options)
        report = json.loads((pytester.path / "report.json").read_text(encoding="utf-8"))
        fields = ("nodeid", "name", "verdict", "outcome")
        told = [
            (
                [one.get(field) for field in fields],
                bool(one.get("suspect_s")),
                [(leak["kind"], leak["count"], leak["bytes"], leak["failed"]) for leak in one["findings"]],
            )
            for one in (*report["tests"], *report["fixtures"])
        ]
        found.append((told, result.parseoutcomes(), report["faults"], report["summary"]["suspects"]["tests"]))
    assert found[0] == found[1]
    assert {"growing", "retained", "cycle"} <= {kind for _, _, leaks in found[0][0] for kind, *_ in leaks}
    assert all(test["peak"] for test in report["tests"])


ON_DEVICE = """
import os, pytest, torch
from tests.support import simgpu
simgpu.install()
RUNS = []
SIZE = float(os.environ["SIZE"])

def block(size):
    return torch.empty(int(size * 2**20), dtype=torch.uint8, device="simgpu:0")

def test_light():
    RUNS.append("light")
    assert block(2) is not None

def test_cpu():
    RUNS.append("cpu")
    assert torch.empty(64 << 20, dtype=torch.uint8) is not None

def test_heavy():
    RUNS.append("heavy")
    kept = [block(SIZE), block(SIZE)]
    assert kept

@pytest.mark.gpu_leak(confirm=0)
def test_not_again():
    RUNS.append("again")
    assert block(SIZE) is not None

def test_runs():
    print("RUNS", {name: RUNS.count(name) for name in RUNS})
"""
NOT_MEASURED = '\n[[peak]]\ntest = "test_it.py::test_not_again"\ndevice = "simgpu"\nbytes = 4194304\n'


def test_on_a_device_its_counters_decide(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[3]))
    pytester.makepyfile(test_it=ON_DEVICE)

    def run(size: str, *options: str) -> Ran:
        monkeypatch.setenv("SIZE", size)
        result = pytester.runpytest_subprocess(*PLUGINS, "-s", *options)
        return Ran(result.stdout, result.parseoutcomes(), int(result.ret))

    ran = run("4", "--gpu-leak-peaks=1")
    ran.out.fnmatch_lines(
        [
            "*RUNS {'light': 2, 'cpu': 1, 'heavy': 2, 'again': 1}*",
            "gpu-leak: the peaks of the 1 heaviest test (on devices)",
            "test_it.py::test_heavy",
            "  peak of 8.0 MiB on simgpu:0, above what was there before",
        ]
    )
    ran = run("4", HELD, "--gpu-leak-update-peaks")
    ran.out.fnmatch_lines(
        ["*gpu-leak: the peak of 1 test was not measured: *confirm is 0", "gpu-leak: peaks gpu-peaks.toml: 2 added, *"]
    )
    file = pytester.path / "gpu-peaks.toml"
    file.write_text(file.read_text(encoding="utf-8") + NOT_MEASURED, encoding="utf-8")
    ran = run("4", HELD)
    assert ran.outcomes == {"passed": 5}
    ran.out.fnmatch_lines(
        [
            "*RUNS {'light': 1, 'cpu': 1, 'heavy': 1, 'again': 1}*",
            "*held to gpu-peaks.toml: 0 grown, 0 shrunk, 3 kept *",
        ]
    )
    ran = run("16", HELD)
    assert ran.outcomes["failed"] == 2
    ran.out.fnmatch_lines(
        [
            "*RUNS {'light': 1, 'cpu': 1, 'heavy': 2, 'again': 1}*",
            "PEAK GROWN: 32.0 MiB of simgpu, 24.0 MiB over the 8.0 MiB of gpu-peaks.toml (tolerance 2 %)",
            "*+24.0 MiB  held  test_it.py:8 in block  2 x uint8 [[]4194304] -> 2 x uint8 [[]16777216]",
            "PEAK GROWN: 16.0 MiB of simgpu, 12.0 MiB over the 4.0 MiB of gpu-peaks.toml (tolerance 2 %)",
            "  not told: the test was not run again, since confirm is 0",
        ]
    )
