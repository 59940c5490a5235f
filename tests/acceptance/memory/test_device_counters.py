"""Counters of devices, end to end on the simulated accelerator: one run of pytest, many tests in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

pytestmark = pytest.mark.usefixtures("cold")

MIB = 2**20

SUITE = """
import pytest
import torch
import pytest_gpuleak.engine.detect.outside_torch
from pytest_gpuleak.adapters.nvml.readings import NvmlReading
from tests.support import simgpu

simgpu.install()
pytest_gpuleak.engine.detect.outside_torch.KINDS = ("simgpu",)

class Nvml:
    fault = ""

    def start(self):
        pass

    def stop(self):
        pass

    def read(self):
        return {
            f"simgpu:{index}": NvmlReading(
                uuid=str(index), model="", total=2**30, used=0, own=simgpu.process_use(index), children=(), others=(),
                why_absent=None,
            )
            for index in range(2)
        }

pytest_gpuleak.adapters.nvml.readings.Nvml = Nvml
KEPT = []
CACHE = {}
MODEL = torch.nn.Linear(512, 512)
PARAMETER = torch.nn.Parameter(torch.ones(512, 512, device="simgpu:1"))

def test_first_linear_with_its_workspace():
    layer = torch.nn.Linear(8, 8).to("simgpu:0")
    layer(torch.ones(2, 8, device="simgpu:0"))

def test_128_floats_kept():
    KEPT.append(torch.ones(128, device="simgpu:0"))

def test_512_bytes_that_no_tensor_holds():
    simgpu.raw_allocate(0, 512)

def test_cache_filled_once():
    if not CACHE:
        CACHE["weights"] = torch.ones(4 * 2**20, device="simgpu:0")

def test_cache_is_there_already():
    if not CACHE:
        CACHE["weights"] = torch.ones(4 * 2**20, device="simgpu:0")

def test_loss_kept_with_its_graph():
    x = torch.ones(256, 512, device="simgpu:0")
    weight = torch.ones(512, 512, device="simgpu:0", requires_grad=True)
    KEPT.append((x @ weight).relu().exp().sum())

def test_gradient_that_nobody_reads():
    PARAMETER.grad = None
    (PARAMETER * 2).sum().backward()

def test_gradient_added_up():
    (PARAMETER * 3).sum().backward()

def test_layer_kept_with_unread_gradients():
    layer = torch.nn.Linear(64, 64).to("simgpu:0")
    layer(torch.ones(2, 64, device="simgpu:0")).sum().backward()
    KEPT.append(layer)

def test_outside_of_torch():
    simgpu.raw_allocate(0, 4 * 2**20, counted=False)

def test_other_processes_come_and_go():
    simgpu.set_other_use(0, 64 * 2**20)

def test_frees_that_arrive_late():
    simgpu.set_free_delay(0.005)
    torch.ones(2**20, device="simgpu:0")

@pytest.fixture(scope="module")
def model():
    simgpu.set_free_delay(0)
    block = simgpu.raw_allocate(1, 2**20)
    yield block
    simgpu.raw_free(1, block)

def test_uses_a_fixture_with_raw_memory(model):
    pass

def test_shares_it(model):
    torch.ones(4, device="simgpu:1")

@pytest.mark.gpu_leak(tensors=1)
def test_bytes_are_not_judged():
    simgpu.raw_allocate(1, 512)

def test_last():
    pass
"""


@pytest.fixture
def simulated(run: Runner) -> Run:
    pytest.importorskip("torch")
    return run(SUITE, "--gpu-leak-top=2", apart=True)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_suite_on_a_simulated_accelerator(simulated: Run) -> None:
    simulated.result.assert_outcomes(passed=16)
    kinds = {
        name: [(found["kind"], found["failed"], found["bytes"], found["bytes_per_run"]) for found in test["findings"]]
        for name, test in simulated.tests.items()
    }
    (raw,) = simulated.tests["test_512_bytes_that_no_tensor_holds"]["findings"]
    assert raw["judged"]["why_no_line"].startswith("torch records the allocator's history for CUDA devices alone")
    graph = simulated.tests["test_loss_kept_with_its_graph"]["findings"][0]
    kept = graph["bytes"]
    layer = 2 * (64 * 64 + 64) * 4  # weight and bias, and a gradient of each
    assert kinds == {
        "test_first_linear_with_its_workspace": [],
        "test_128_floats_kept": [("growing", True, 512, 512)],
        "test_512_bytes_that_no_tensor_holds": [("unattributed", True, 512, 512)],
        "test_cache_filled_once": [("retained", True, 16 * MIB, 0)],
        "test_cache_is_there_already": [],
        "test_loss_kept_with_its_graph": [("growing", True, kept, kept)],
        "test_gradient_that_nobody_reads": [("retained", True, MIB, 0)],
        "test_gradient_added_up": [],
        # The second run keeps `KEPT` as a known holder: recognising it reads the gradients before they are counted.
        "test_layer_kept_with_unread_gradients": [("growing", True, layer, layer)],
        "test_outside_of_torch": [("unattributed", True, 4 * MIB, 4 * MIB)],
        "test_other_processes_come_and_go": [],
        "test_frees_that_arrive_late": [],
        "test_uses_a_fixture_with_raw_memory": [],
        "test_shares_it": [],
        "test_bytes_are_not_judged": [("unattributed", False, 512, 512)],
        "test_last": [],
    }
    assert simulated.tests["test_first_linear_with_its_workspace"]["suspect_s"] == {}
    # The product, its relu and exp, each of 512 KiB, beside the tensors that are found on their own.
    assert kept + graph["autograd"]["saved_bytes"] >= 2 * MIB
    assert simulated.holder("test_gradient_that_nobody_reads") == "test_it.PARAMETER.grad"
    (outside,) = simulated.tests["test_outside_of_torch"]["findings"]
    assert outside["metric"] == "outside torch"
    memory = simulated.tests["test_cache_filled_once"]["memory"]["simgpu:0"]
    assert memory["allocated_after"] - memory["allocated_before"] == 16 * MIB
    assert memory["peak"] >= memory["allocated_after"] > 0
    assert memory["reserved_after"] >= memory["allocated_after"]
    usage = simulated.report["summary"]["memory"]
    assert usage["heaviest"][0]["nodeid"] == "test_it.py::test_cache_filled_once"
    assert usage["drift"]["simgpu:0"]["allocated"] >= 16 * MIB
    simulated.result.stdout.fnmatch_lines(
        ["*16.0 MiB peak on simgpu:0  test_it.py::test_cache_filled_once", "*session, simgpu:0: allocated +*; peak *"]
    )


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_device_that_is_lost_in_mid_run(run: Runner) -> None:
    pytest.importorskip("torch")
    found = run(
        """
        import torch
        from tests.support import simgpu
        simgpu.install()
        KEPT = []

        def test_uses_the_device():
            torch.ones(4, device="simgpu:0")

        def test_breaks_it():
            simgpu.break_device(0)

        def test_goes_on():
            KEPT.append(Buffer(100))
        """,
        apart=True,
    )
    found.result.assert_outcomes(passed=3)
    assert found.verdicts == {"test_uses_the_device": "clean", "test_breaks_it": "clean", "test_goes_on": "leaked"}
    found.result.stdout.fnmatch_lines(["gpu-leak: torch failed: RuntimeError: simgpu error*"])
