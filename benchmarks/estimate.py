"""Hold the estimate of CUDA's peak to CUDA's allocator: measure on a machine with CUDA, then compare.

Usage, from the repository:
    python benchmarks/estimate.py measure measured.json    (a build of torch with CUDA, or the stand-in of tests/cuda_standin)
    python benchmarks/estimate.py compare measured.json [--table docs/estimate.md | NAME]    (any build; no device is used)

`measure` takes the workspaces of cuBLAS out by using them before. Recurrent layers run without cuDNN on the stand-in,
which has none, and are not estimated. `--table` writes the rows between two marks of a page.
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
from pytest_gpuleak.engine.peaks.allocator import MIB, peak_of

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


def compare(path: str, page: str | None, only: str = "") -> None:
    """Print each model's error in percent, or those whose names have `only`; write a table if a page is given."""
    measured = json.loads(pathlib.Path(path).read_text())
    rows = []
    for name, start in MODELS.items():
        if name not in measured["models"] or (only and only not in name):
            continue
        torch.manual_seed(0)
        recorder = BlockRecorder(torch)
        recorder.begin()
        began = time.perf_counter()
        start("cpu")
        recorder.end()
        seconds = time.perf_counter() - began
        taken = recorder.taken()
        least, most = peak_of(taken.least), peak_of(taken.most)
        true, reserved = measured["models"][name]
        error, of_reserved = (
            100 * (one / other - 1) for one, other in ((least.allocated, true), (least.reserved, reserved))
        )
        doubt = most.allocated - least.allocated
        print(
            f"{name:40} {true / MIB:8.2f} {error:+6.1f}% reserved {of_reserved:+6.1f}% doubt {doubt / MIB:.2f} {seconds:.1f}s {taken.lacks}"
        )
        said = f"{least.allocated / MIB:.1f} MiB | {error:+.1f} %"
        if taken.lacks:
            said = f"not checked: {taken.lacks[0]} |"
        rows.append((name, f"| {name} | {true / MIB:.1f} MiB | {said} |"))
    if page is not None:
        _write(pathlib.Path(page), measured, rows)


def _write(page: pathlib.Path, measured: dict[str, str], rows: list[tuple[str, str]]) -> None:
    head = "| model | measured | estimated | error |\n| --- | --- | --- | --- |"
    first = "\n".join(row for name, row in rows if name in FIRST)
    later = "\n".join(row for name, row in rows if name in LATER)
    said = (
        f"Measured by torch {measured['torch']} on {measured['device']}, estimated by torch {torch.__version__}, "
        f"on {time.strftime('%Y-%m-%d')}.\n\nThe models by which the rules were found:\n\n{head}\n{first}\n\n"
        f"Models written afterwards:\n\n{head}\n{later}"
    )
    text = page.read_text()
    marks = r"(<!-- estimate: begin -->\n).*?(\n<!-- estimate: end -->)"
    page.write_text(re.sub(marks, lambda found: f"{found[1]}{said}{found[2]}", text, flags=re.DOTALL))


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"] and len(sys.argv) == 3:
        measure(sys.argv[2])
    elif sys.argv[1:2] == ["compare"] and len(sys.argv) in (3, 4, 5):
        compare(sys.argv[2], sys.argv[4] if len(sys.argv) == 5 else None, sys.argv[3] if len(sys.argv) == 4 else "")
    else:
        sys.exit(__doc__)
