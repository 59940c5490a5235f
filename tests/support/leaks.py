"""Findings made by hand, in the words that `holders` uses for paths."""

from __future__ import annotations

from pytest_gpuleak.explain.hints.order import advice_for
from pytest_gpuleak.explain.hints.trail import Trail
from pytest_gpuleak.model.findings import ArrayInfo, Autograd, Finding, FindingKind, Holder, HolderKind, PathStep
from pytest_gpuleak.model.source_files import Origin

Step = tuple[str, str]
CLOSURE = (".__closure__[0].cell_contents", "closure variable 'x' of test_it.<locals>.<lambda>")


def leak(
    root: str,
    *steps: Step,
    kind: HolderKind = "module",
    found: FindingKind = "growing",
    count: int = 1,
    text: str | None = None,
    shape: tuple[int, ...] = (64, 64),
    storage: int | None = None,
    nodes: int | None = None,
    function: str | None = None,
) -> Finding:
    """A finding: one float32 array, or several, below `root`.

    Args:
        root: the holder's root.
        steps: edges and the types that they lead from.
        kind: the holder's kind.
        found: the finding's kind.
        count: arrays.
        text: the holder's text, where it is not the root and the edges.
        shape: the array's.
        storage: bytes of the array's storage; the array's own if None.
        nodes: nodes of the autograd graph; no graph was walked if None.
        function: the function that made the array; unknown if None.
    """
    size = 4
    for length in shape:
        size *= length
    created = None if function is None else Origin("test_it.py", 1, function, "torch.ones(64, 64)")
    array = ArrayInfo(shape, "float32", "cpu", size, size if storage is None else storage, created)
    holder = Holder(
        kind,
        root,
        root + "".join(edge for edge, _ in steps) if text is None else text,
        tuple(PathStep(edge, label) for edge, label in steps),
    )
    return Finding(
        kind=found,
        failed=True,
        device="cpu",
        count=count,
        bytes=array.storage_bytes,
        bytes_per_run=array.storage_bytes if found == "growing" else 0,
        fingerprint="0",
        tensors=(array,),
        holder=holder,
        autograd=None if nodes is None else Autograd(nodes, nodes, 1024 * nodes),
    )


def trail(finding: Finding) -> Trail:
    """What an inspector is given for a finding."""
    assert finding.holder is not None
    return Trail(finding, finding.holder)


def hint_for(finding: Finding) -> str | None:
    """The hint that the finding gets."""
    advice = advice_for(finding)
    return None if advice is None else advice.hint
