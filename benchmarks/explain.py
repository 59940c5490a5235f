"""How long it takes to explain who holds leaked tensors, beside objgraph on the same heap.

    python benchmarks/explain.py [--extra 2000000] [--without-objgraph]

Prints a table of seconds: the best of three runs, collector off. `--extra` adds that many objects to the heap.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.holders.search import explain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GOALS = {
    "1 tensor": 0.2,
    "100 in one list": 0.5,
    "100 under 100 globals": 1.5,
    "100 in modules of one model": 1.5,
    "1 held by nothing": 5.0,
}


def best_of(runs: int, measured: Callable[[], object]) -> float:
    """Seconds of the fastest run."""
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        measured()
        best = min(best, time.perf_counter() - start)
    return best


def scenarios(torch: Any, app: types.ModuleType) -> dict[str, list[Any]]:
    """Targets by the name of what holds them; all of it hangs from the module `app`."""
    tensors = [torch.empty(2) for _ in range(100)]
    app.HISTORY = list(tensors)  # type: ignore[attr-defined]
    spread = [torch.empty(2) for _ in range(100)]
    for number, tensor in enumerate(spread):
        setattr(app, f"CULPRIT_{number}", [{"loss": tensor}])
    layers = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)) for _ in range(25)]
    app.MODEL = torch.nn.Sequential(*layers)  # type: ignore[attr-defined]
    base = torch.empty(2)
    app.VIEW = base[:1]  # type: ignore[attr-defined]
    return {
        "1 tensor": tensors[:1],
        "100 in one list": tensors,
        "100 under 100 globals": spread,
        "100 in modules of one model": list(app.MODEL.parameters()),
        "1 held by nothing": [base],
    }


def chains_by_objgraph(targets: Sequence[Any], app: types.ModuleType) -> int:
    """Length of all chains that objgraph finds, one search a target."""
    import objgraph

    length = 0
    ignored = [id(targets)]
    for target in targets:
        chain = objgraph.find_backref_chain(target, lambda value: value is app.__dict__, extra_ignore=ignored)
        length += len(chain)
    return length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extra", type=int, default=0, help="objects to add to the heap")
    parser.add_argument("--without-objgraph", action="store_true", help="measure this package alone")
    options = parser.parse_args()
    import torch

    app = types.ModuleType("benchmark_app")
    sys.modules[app.__name__] = app
    app.EXTRA = [[number] for number in range(options.extra)]  # type: ignore[attr-defined]
    gc.collect()
    gc.disable()
    print(f"{len(gc.get_objects())} objects on the heap, Python {sys.version.split()[0]}, torch {torch.__version__}")
    print(f"{'targets':32} {'explain':>9} {'goal':>6} {'objgraph':>9} {'ratio':>7}  first path")
    cases = scenarios(torch, app)
    for name in list(cases):
        targets = cases.pop(name)
        ignored = {id(cases)}
        path = explain(targets, ignore=ignored)[0].holder.text
        seconds = best_of(3, lambda targets=targets, ignored=ignored: explain(targets, ignore=ignored))  # type: ignore[misc]
        theirs, ratio = "", ""
        if not options.without_objgraph and "nothing" not in name:
            other = best_of(1, lambda targets=targets: chains_by_objgraph(targets, app))  # type: ignore[misc]
            theirs, ratio = f"{other:.3f}", f"{other / seconds:.1f}"
        print(f"{name:32} {seconds:9.3f} {GOALS[name]:6.1f} {theirs:>9} {ratio:>7}  {path}")


if __name__ == "__main__":
    main()
