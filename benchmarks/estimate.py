"""Hold the estimate of CUDA's peak to CUDA's allocator: measure on a machine with CUDA, then estimate anywhere.

Usage, from the repository:
    python benchmarks/estimate.py measure FILE      (a build of torch with CUDA, or the stand-in of tests/cuda_standin)
    python benchmarks/estimate.py estimate FILE [NAME]    (any build; no device is used; models whose names have NAME)
    python benchmarks/estimate.py table FILE docs/estimate.md

FILE is JSON, to which `estimate` adds. `measure` takes the workspaces of cuBLAS out by using them before. Recurrent layers
run without cuDNN there, which the stand-in has not, and are not estimated.
"""

from __future__ import annotations

import gc
import json
import pathlib
import re
import sys
import time

import torch
from estimate_models import FIRST, LATER

from pytest_gpuleak.adapters.torch.cuda_estimate import BlockRecorder
from pytest_gpuleak.engine.peaks.allocator import peak_of
from pytest_gpuleak.model.sizes import MIB

MODELS = {**FIRST, **LATER}


def measure(path: str) -> None:
    """Write each model's peaks by CUDA's allocator, in bytes above what was there."""
    small = torch.ones(8, 8, device="cuda", requires_grad=True)
    torch.nn.functional.linear(small @ small, small, small[0]).sum().backward()
    found = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "models": {}}
    for name, start in MODELS.items():
        torch.backends.cudnn.enabled = not name.startswith(("LSTM", "GRU"))
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        try:
            start("cuda")
        except RuntimeError as error:
            print(f"{name}: not measured: {str(error)[:120]}", file=sys.stderr)
            continue
        peaks = torch.cuda.max_memory_allocated() - before[0], torch.cuda.max_memory_reserved() - before[1]
        found["models"][name] = peaks
        print(f"{name:40} {peaks[0] / MIB:9.2f} MiB", file=sys.stderr)
    pathlib.Path(path).write_text(json.dumps(found, indent=1) + "\n")


def estimate(path: str, only: str) -> None:
    """Estimate each model, or those whose names have `only`, and print the errors in percent."""
    file = pathlib.Path(path)
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
        doubt = (most.allocated - least.allocated) / MIB
        print(
            f"{name:40} {errors[0]:+6.1f} % reserved {errors[1]:+6.1f} % doubt {doubt:.1f} MiB {taken.lacks}",
            flush=True,
        )
        found = json.loads(file.read_text())
        found.setdefault("estimated", {})[name] = [*least, most.allocated, *taken.lacks]
        file.write_text(json.dumps(found, indent=1) + "\n")


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
            measure(path)
        case ["estimate", path, *only] if len(only) < 2:
            estimate(path, *(only or [""]))
        case ["table", path, page]:
            table(path, page)
        case _:
            sys.exit(__doc__)
