"""How long it takes to explain who holds leaked tensors, beside objgraph and pympler on the same heap.

    python benchmarks/explain.py [--extra 2000000] [--alone]

Prints a table of seconds: the best of three runs, collector off. objgraph looks for a chain for each target; pympler's
`refbrowser` makes a tree of referrers for each, as deep as the path is long, which is done for one target and multiplied.
The last column is the peak of what an explanation allocates (`tracemalloc`), by objects on the heap. `--extra` adds that
many objects to the heap.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import sys
import time
import tracemalloc
import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.explain.explain import explain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GOALS = {
    "1 tensor": 0.2,
    "100 in one list": 0.5,
    "100 under 100 globals": 1.5,
    "100 in modules of one model": 1.5,
    "1 that is the base of a view": 1.5,
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
        "1 that is the base of a view": [base],
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


def trees_by_pympler(target: object, depth: int) -> None:
    """The tree of one target's referrers, as deep as the path to its root."""
    from pympler.refbrowser import RefBrowser

    with contextlib.redirect_stdout(io.StringIO()):
        RefBrowser(target, maxdepth=depth, str_func=lambda value: type(value).__name__, repeat=False).get_tree()


def peak_bytes(measured: Callable[[], object]) -> int:
    """The most that a call has allocated at one time."""
    tracemalloc.start()
    try:
        measured()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extra", type=int, default=0, help="objects to add to the heap")
    parser.add_argument("--alone", action="store_true", help="measure this package alone")
    options = parser.parse_args()
    import torch

    app = types.ModuleType("benchmark_app")
    sys.modules[app.__name__] = app
    app.EXTRA = [[number] for number in range(options.extra)]  # type: ignore[attr-defined]
    gc.collect()
    gc.disable()
    heap = len(gc.get_objects())
    print(f"{heap} objects on the heap, Python {sys.version.split()[0]}, torch {torch.__version__}")
    print(
        f"{'targets':32} {'explain':>9} {'goal':>6} {'objgraph':>9} {'ratio':>7} {'pympler':>9} {'ratio':>7}"
        f" {'B/object':>9}  first path"
    )
    cases = scenarios(torch, app)
    for name in list(cases):
        targets = cases.pop(name)
        ignored = {id(cases)}
        holder = explain(targets, ignore=ignored)[0].holder
        seconds = best_of(3, lambda targets=targets, ignored=ignored: explain(targets, ignore=ignored))  # type: ignore[misc]
        peak = peak_bytes(lambda targets=targets, ignored=ignored: explain(targets, ignore=ignored))  # type: ignore[misc]
        columns = ["", "", "", ""]
        if not options.alone and "base" not in name:
            other = best_of(1, lambda targets=targets: chains_by_objgraph(targets, app))  # type: ignore[misc]
            depth = len(holder.path) + 1
            tree = best_of(1, lambda targets=targets, depth=depth: trees_by_pympler(targets[0], depth)) * len(targets)  # type: ignore[misc]
            columns = [f"{other:.3f}", f"{other / seconds:.1f}", f"{tree:.1f}", f"{tree / seconds:.1f}"]
        print(
            f"{name:32} {seconds:9.3f} {GOALS[name]:6.1f} {columns[0]:>9} {columns[1]:>7} {columns[2]:>9} {columns[3]:>7}"
            f" {peak / heap:9.1f}  {holder.text}"
        )


if __name__ == "__main__":
    main()
