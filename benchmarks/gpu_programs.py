"""Programs of gpu_figures.py, each run in a process of its own: they print one JSON object in their last line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 600

CLEAN_WORK = """
import torch

def clean_work(number, device):
    kind = number % 6
    data = torch.ones(1024, 64, device=device)
    if kind == 1:
        data = torch.nn.Linear(64, 64, device=device)(data)
        data.sum().backward()
    elif kind == 2:
        data = torch.fft.fft(data)
    elif kind == 3:
        data.record_stream(torch.cuda.Stream(device=device))
    elif kind == 4:
        data = torch.ones(1024, 64).pin_memory().to(device, non_blocking=True)
    elif kind == 5:
        data = torch.nn.Conv2d(1, 4, 3, device=device)(data.view(1, 1, 1024, 64))
"""
"""What tests that leave nothing do on a device."""

SMALL_TESTS = """
import pytest
import torch

DEVICES = {devices}

@pytest.mark.parametrize("number", range({count}))
def test_small(number):
    for device in DEVICES:
        torch.ones(16, device=device)
"""

CLEAN_TESTS = (
    CLEAN_WORK
    + SMALL_TESTS
    + """
@pytest.mark.parametrize("number", range({count}))
def test_clean(number):
    for device in DEVICES:
        clean_work(number, device)
"""
)

MACHINE = """
import json

found = {"count": 0, "why": "torch was built without CUDA"}
try:
    import torch
    if torch.version.cuda or torch.version.hip:
        torch.ones(1, device="cuda")
        found = {"count": torch.cuda.device_count(), "why": "", "torch": torch.__version__,
                 "name": torch.cuda.get_device_name(), "total": torch.cuda.get_device_properties(0).total_memory}
except Exception as error:
    found["why"] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
print(json.dumps(found))
"""

MOMENTS = """
import json
import time
import torch
from pytest_gpuleak.adapters.nvml.readings import Nvml

nvml = Nvml()
try:
    nvml.start()
    why = ""
except Exception as error:
    why = f"{type(error).__name__}: {error}"
moments = []

def note(name, work=int):
    began = time.perf_counter()
    try:
        kept = work()
        torch.cuda.synchronize()
    except RuntimeError as error:  # a library that does not run here: the other moments stand without it
        kept, name = None, f"{name}: failed, {type(error).__name__}"
    taken = time.perf_counter() - began
    free, total = torch.cuda.mem_get_info()
    driver = nvml.read().get("cuda:0") if not why else None
    moments.append({
        "moment": name, "ms": taken * 1e3, "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(), "in use": total - free,
        "NVML, all": driver and driver.used, "NVML, this process": driver and driver.own,
    })
    return kept

note("context", torch.cuda.init)
data = note("tensor of 1 MiB", lambda: torch.ones(512, 512, device="cuda"))
note("first product (cuBLAS)", lambda: (data @ data).sum().item())
note("second product", lambda: (data @ data).sum().item())
with torch.cuda.stream(torch.cuda.Stream()):
    note("product on another stream", lambda: (data @ data).sum().item())
note("first transform (cuFFT)", lambda: torch.fft.fft(data).abs().sum().item())
image, layer = note("images and a convolution", lambda: (torch.ones(8, 3, 64, 64, device="cuda"), torch.nn.Conv2d(3, 8, 3, device="cuda")))
note("first convolution (cuDNN)", lambda: layer(image).sum().item())
note("solved equations (cuSOLVER)", lambda: torch.linalg.solve(data + torch.eye(512, device="cuda"), data).sum().item())
large = note("tensor of 256 MiB", lambda: torch.ones(64 << 20, device="cuda"))
del large
note("its release")
torch._C._cuda_clearCublasWorkspaces()
torch.backends.cuda.cufft_plan_cache.clear()
note("workspaces and plans cleared, cache emptied", torch.cuda.empty_cache)
print(json.dumps({"moments": moments, "nvml": why or (nvml.read()["cuda:0"].why_absent if "cuda:0" in nvml.read() else "no reading")}))
"""

NOISE = (
    CLEAN_WORK
    + """
import collections
import json
import time
import timeit
from pytest_gpuleak.adapters.host.modes import host_probes
from pytest_gpuleak.adapters.nvml.readings import Nvml
from pytest_gpuleak.adapters.torch.devices import TorchDevices
from pytest_gpuleak.engine.detect.counters import CounterWatch

DEVICES = [f"cuda:{index}" for index in range(min(torch.cuda.device_count(), 2))]
probe = TorchDevices()
watch = CounterWatch([probe], host_probes(("heap", "rss")))
watch.start()
nvml = Nvml()
try:
    nvml.start()
except Exception:
    nvml = None

def read():
    found = {f"{device} {metric}": size for (device, metric), size in watch.read().items()}
    for device, reading in (nvml.read() if nvml else {}).items():
        if reading.own is not None:
            found[f"{device} NVML, this process"] = reading.own
        if reading.used is not None:
            found[f"{device} NVML, all"] = reading.used
    return found

for number in range(60):  # the first uses of the libraries
    for device in DEVICES:
        clean_work(number, device)
moved = collections.defaultdict(list)
for number in range(1000):
    before = read()
    for device in DEVICES:
        clean_work(number, device)
    after = read()
    for key in before.keys() & after.keys():
        moved[key].append(after[key] - before[key])


def once(work):
    return min(timeit.repeat(work, number=200, repeat=5, timer=time.process_time)) / 200 * 1e6

reading_us = {"counters": once(probe.read)}
probe.begin_peaks()
reading_us |= {"restart of the peaks": once(probe.begin_peaks), "counters with peaks": once(probe.read)}
probe.stop()
print(json.dumps({"moved": moved, "reading_us": reading_us, "devices": len(DEVICES)}))
"""
)


def run_program(source: str) -> dict[str, Any]:
    """Run a program in a process of its own, and return what it printed. Ends this program where it fails."""
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        sys.exit(f"a program on the device failed (exit status {done.returncode}):\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
