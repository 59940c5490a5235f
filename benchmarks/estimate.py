"""Hold the estimate of CUDA's peak to CUDA's allocator: measure on a machine with CUDA, then estimate anywhere.

Usage, from the repository:
    python benchmarks/estimate.py measure FILE      (a build of torch with CUDA, or the stand-in of tests/cuda_standin)
    python benchmarks/estimate.py estimate FILE [NAME]    (any build; no device is used; models whose names have NAME)
    python benchmarks/estimate.py table FILE docs/estimate.md

FILE is JSON, to which `estimate` adds. `measure` takes the workspaces of cuBLAS out by using them before, and runs each model
twice more: once counted, once counted and recorded, so that the rows of its peak can be held to the counters. Its exit status
is 1 where they differ by more than 1 %, and that of `estimate` where an estimate is off by more than 12 %. Recurrent layers run without
cuDNN on the stand-in, which has none for them, and are not estimated.
"""

from __future__ import annotations

import gc
import json
import pathlib
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import estimate_models
import torch
from estimate_models import FIRST, LATER

from pytest_gpuleak.adapters.registry import own_frameworks
from pytest_gpuleak.adapters.torch.cuda_estimate import BlockRecorder
from pytest_gpuleak.adapters.torch.settle_steps import free_workspaces_now
from pytest_gpuleak.engine.peaks import peak_of
from pytest_gpuleak.model.text import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

MODELS = {**FIRST, **LATER}
NEAR, FAR = 5, 12
"""Percent by which an estimate may be off: most by no more than the first, none by more than the second."""


def measure(path: str) -> int:
    """Write each model's peaks by CUDA's allocator, in bytes above what was there, and what a record of it tells."""
    on_device = "stand-in" not in torch.cuda.get_device_name()
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "models": {},
        "rows": {},
    }
    off = 0
    for name, start in MODELS.items():
        torch.backends.cudnn.enabled = on_device or not name.startswith(("LSTM", "GRU"))
        try:
            start("cuda")  # what libraries make once
            _make_ready()
            allocated, reserved, requested = _count(start)
            _make_ready()
            told = _record(start)
        except RuntimeError as error:
            print(f"{name}: not measured: {str(error)[:120]}", file=sys.stderr)
            continue
        found["models"][name] = allocated, reserved
        found["rows"][name] = told
        wrong = max(abs(told["blocks"] - allocated), told["unexplained"]) * 100 > allocated
        off += wrong
        gaps = (told["blocks"] - allocated, told["rows"] - requested, told["allocated"] - allocated)
        said = "replayed {:+d} B, rows {:+d} B, by the record {:+d} B".format(*gaps)
        print(f"{name:40} {allocated / MIB:9.2f} MiB, {said}{' OFF' * wrong}", flush=True)
        pathlib.Path(path).write_text(json.dumps(found, indent=1) + "\n")
    print(f"models: {len(found['models'])} of {len(MODELS)} measured, {off} off by more than 1 %")
    return 1 if off or len(found["models"]) < len(MODELS) else 0


def _make_ready() -> None:
    """Leave cuBLAS its workspaces alone: whether a free block is split that is used again follows from its size."""
    gc.collect()
    torch.cuda.synchronize()
    free_workspaces_now()
    torch.cuda.empty_cache()
    small = torch.ones(8, 8, device="cuda", requires_grad=True)
    torch.nn.functional.linear(small @ small, small, small[0]).sum().backward()


def _count(start: Callable[[str], None]) -> list[int]:
    """Return how far a model raises the bytes allocated, reserved and requested."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    start("cuda")
    after = torch.cuda.memory_stats()
    metrics = ("allocated_bytes", "reserved_bytes", "requested_bytes")
    return [after[f"{metric}.all.peak"] - before[f"{metric}.all.current"] for metric in metrics]


def _record(start: Callable[[str], None]) -> dict[str, Any]:
    """Return the peak of a model by the allocator's history, what its rows add up to, and what was counted meanwhile."""
    record: Any = own_frameworks().peak_recorder(lambda file: file == estimate_models.__file__, "cuda:0")
    with record:
        allocated, _, requested = _count(start)
    peak = record.peak("cuda:0")
    return {
        "allocated": allocated,
        "requested": requested,
        "blocks": peak.bytes,
        "rows": sum(part.bytes for part in peak.parts),
        "unsplit": peak.unsplit_bytes,
        "unexplained": peak.unexplained_bytes,
        "lacks": peak.lacks,
    }


def estimate(path: str, only: str) -> int:
    """Estimate each model, or those whose names have `only`, and print the errors in percent."""
    file = pathlib.Path(path)
    off = []
    measured = json.loads(file.read_text())["models"]
    for name, start in MODELS.items():
        if name not in measured or only not in name:
            continue
        torch.manual_seed(0)
        recorder = BlockRecorder(torch)
        recorder.begin()
        start("cpu")
        recorder.end()
        taken = recorder.taken()
        least, most = peak_of(taken.least), peak_of(taken.most)
        errors = [100 * (one / other - 1) for one, other in zip(least, measured[name], strict=True)]
        off += [] if taken.lacks else [abs(errors[0])]
        doubt = (most.allocated - least.allocated) / MIB
        print(
            f"{name:40} {errors[0]:+6.1f} % reserved {errors[1]:+6.1f} % doubt {doubt:.1f} MiB {taken.lacks}",
            flush=True,
        )
        found = json.loads(file.read_text())
        found.setdefault("estimated", {})[name] = [*least, most.allocated, *taken.lacks]
        file.write_text(json.dumps(found, indent=1) + "\n")
    near, worst = sum(one <= NEAR for one in off), max(off, default=0)
    print(f"models: {len(off)} estimated, {near} within {NEAR} %, the worst off by {worst:.1f} %")
    return int(worst > FAR)


def table(path: str, page: str) -> None:
    """Write the tables between two marks of a page."""
    found = json.loads(pathlib.Path(path).read_text())
    head = "| model | measured | estimated | error |\n| --- | --- | --- | --- |\n"
    first, later = (
        "\n".join(_row(name, found) for name in part if name in found["estimated"]) for part in (FIRST, LATER)
    )
    said = (
        f"Measured by torch {found['torch']} on {found['device']}, estimated by torch {torch.__version__}, "
        f"on {time.strftime('%Y-%m-%d')}.\n\nThe models by which the rules were found:\n\n{head}{first}\n\n"
        f"Models written afterwards:\n\n{head}{later}"
    )
    file = pathlib.Path(page)
    marks = r"(<!-- estimate: begin -->\n).*?(<!-- estimate: end -->)"
    file.write_text(re.sub(marks, lambda mark: f"{mark[1]}{said}\n{mark[2]}", file.read_text(), flags=re.DOTALL))


def _row(name: str, found: dict[str, dict[str, list[int]]]) -> str:
    true = found["models"][name][0]
    least, _, most, *lacks = found["estimated"][name]
    if lacks:
        return f"| {name} | {true / MIB:.1f} MiB | not checked: {lacks[0]} | |"
    upper = f" to {most / MIB:.1f}" if most > least else ""
    return f"| {name} | {true / MIB:.1f} MiB | {least / MIB:.1f}{upper} MiB | {100 * (least / true - 1):+.1f} % |"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["measure", path]:
            sys.exit(measure(path))
        case ["estimate", path, *only] if len(only) < 2:
            sys.exit(estimate(path, *(only or [""])))
        case ["table", path, page]:
            table(path, page)
        case _:
            sys.exit(__doc__)
