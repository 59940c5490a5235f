"""The engine without pytest: for a notebook, a debugger, a training script, or a test of one function."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, overload

from pytest_gpuleak.adapters.registry import builtin_frameworks
from pytest_gpuleak.engine.confirm.array_evidence import Investigation
from pytest_gpuleak.engine.confirm.tracing import traced
from pytest_gpuleak.engine.detect.epochs import EpochDetector
from pytest_gpuleak.engine.detect.heap_scan import ScanDetector
from pytest_gpuleak.engine.judge.arrays import judge
from pytest_gpuleak.engine.settle.steps import Collection, Waits
from pytest_gpuleak.explain.annotate import for_the_reader
from pytest_gpuleak.explain.edge_to_edit import deciding_edge
from pytest_gpuleak.heap.collector import epochs_supported, installed, whole_heap
from pytest_gpuleak.heap.frames import belongs_to_plugin
from pytest_gpuleak.heap.threads import running_threads
from pytest_gpuleak.model.findings import Autograd, Finding, Holder
from pytest_gpuleak.model.policy import Policy
from pytest_gpuleak.model.sizes import parse_size
from pytest_gpuleak.model.source_files import is_user_file

if TYPE_CHECKING:
    import types

    from pytest_gpuleak.adapters.protocol import ArrayFramework, OriginLog, Rung
    from pytest_gpuleak.engine.detect.detector import Detector


_RUNS = "the block has not ended"
"""Why nothing is said of a block yet."""


class LeakError(AssertionError):
    """Raised by `assert_no_leak`; its text explains each finding.

    Attributes:
        findings: the findings that failed, worst first.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__(render(self.findings))


class Leaks(Sequence[Finding]):
    """What a watched block left behind: empty until the block has ended, and where it left nothing.

    Use it as a sequence of findings, in a condition, or as text (``print(leaks)``). It holds plain data alone.

    Attributes:
        why_unchecked: why the block was not judged: it raised, or has not ended. None once it has been judged; then an
            empty sequence means that nothing was left behind.
    """

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings
        self.why_unchecked: str | None = _RUNS

    @overload
    def __getitem__(self, index: int) -> Finding: ...

    @overload
    def __getitem__(self, index: slice) -> list[Finding]: ...

    def __getitem__(self, index: int | slice) -> Finding | list[Finding]:
        return self._findings[index]

    def __len__(self) -> int:
        return len(self._findings)

    def __str__(self) -> str:
        if self.why_unchecked is not None:
            return f"not judged: {self.why_unchecked}"
        return render(self._findings) or "nothing was left behind"

    def __repr__(self) -> str:
        return f"<Leaks: {len(self)} findings>" if self.why_unchecked is None else f"<Leaks: {self}>"

    @property
    def bytes(self) -> int:
        """Bytes left behind in all, each storage once; what the collector freed is not among them."""
        return sum(found.bytes for found in self._findings if found.kind != "cycle")


@contextlib.contextmanager
def watch() -> Iterator[Leaks]:
    """Tell which arrays a block of code leaves behind, and who holds them.

    ::

        with watch() as leaks:
            train_step()
        print(leaks)

    A block runs once, so its findings are ``unconfirmed``: what a cache filled once holds is among them; so is what a
    local variable of the caller still holds. Use `assert_no_leak` to tell growth from caches. A block that raises is
    not judged, since the traceback holds its locals: `Leaks.why_unchecked` and ``print(leaks)`` say so.
    """
    findings: list[Finding] = []
    leaks = Leaks(findings)
    with _detector() as (detector, frameworks):
        threads = running_threads()
        detector.open()
        try:
            yield leaks
        except BaseException as error:
            leaks.why_unchecked = f"the block raised {type(error).__name__}"
            raise
        investigation = Investigation(detector, frameworks)
        if investigation.add_run(detector.look(), _rungs(threads), threads):
            investigation.look()
        findings.extend(for_the_reader(found, "", _shorten) for found in judge(investigation.evidence(), Policy()))
    leaks.why_unchecked = None


def assert_no_leak(
    function: Callable[[], object],
    repeat: int = 3,
    *,
    tensors: int = 0,
    mb: float | str = 0,
    retained_mb: float | str = 1,
) -> None:
    """Assert that calling a function does not leave more arrays behind each time.

    ::

        assert_no_leak(lambda: train_step(model, batch))

    The function is called once, which fills its caches, and then `repeat` times more. What is left behind in addition
    by every one of these is a leak, however small; what the first call left and no other adds to fails from
    `retained_mb` up. What the function returns is dropped.

    Args:
        function: called without arguments.
        repeat: further calls, 1 or more.
        tensors: arrays a call may leave behind growing.
        mb: MiB (or a size such as ``"512KiB"``) per device that a call may leave behind growing.
        retained_mb: MiB (or a size) per device from which residue that does not grow fails.

    Raises:
        LeakError: the function leaks.
        ValueError: `repeat`, `tensors` or a size is out of range.
    """
    if type(repeat) is not int or repeat < 1:
        raise ValueError(f"repeat={repeat!r}: a number of further calls, 1 or more, is accepted")
    if type(tensors) is not int or tensors < 0:
        raise ValueError(f"tensors={tensors!r}: a number of arrays, 0 or more, is accepted")
    policy = Policy(
        growing_tensors=tensors,
        growing_bytes=_size("mb", mb),
        retained_bytes=_size("retained_mb", retained_mb),
        confirm=repeat,
    )
    findings = _repeat(function, policy)
    failed = [found for found in findings if found.failed]
    if failed:
        raise LeakError(failed)


def _size(name: str, given: float | str) -> int:
    try:
        return parse_size(given)
    except ValueError as error:
        message = f"{name}={given!r}: {error}; a number of MiB or a size such as '512KiB' is accepted"
        raise ValueError(message) from None


def _repeat(function: Callable[[], object], policy: Policy) -> tuple[Finding, ...]:
    with _detector() as (detector, frameworks):
        investigation = Investigation(detector, frameworks)
        threads = running_threads()
        rungs = _rungs(threads)
        detector.open()
        function()
        stays = investigation.add_run(detector.look(), rungs, threads)
        findings = judge(investigation.evidence(), policy)
        for _ in range(policy.confirm if stays else 0):
            logs: list[OriginLog] = []
            detector.open()
            with traced(frameworks, functools.partial(is_user_file, root=os.getcwd()), logs):  # noqa: PTH109 - as text
                function()
            investigation.add_run(detector.look(), rungs, threads)
            investigation.look({key: origin for log in logs for key, origin in log.items()})
            findings = judge(investigation.evidence(), policy)
            if not any(found.kind == "growing" for found in findings):
                break
        return tuple(for_the_reader(found, "", _shorten) for found in findings)


def _shorten(path: str) -> str:
    return path.removeprefix(os.getcwd() + os.sep)  # noqa: PTH109 - as text


def render(findings: Sequence[Finding]) -> str:
    """The findings as the terminal report explains them."""
    return "\n".join(line for found in findings for line in _render_safely(found))


def _render_safely(finding: Finding) -> list[str]:
    from pytest_gpuleak.model.isolation import isolated
    from pytest_gpuleak.reports.terminal.findings import render_finding
    from pytest_gpuleak.reports.unshown import name_unshown

    return isolated(lambda: render_finding(finding), lambda why: [f"  {name_unshown(finding, why)}"])


def _rungs(threads: frozenset[int]) -> list[Rung]:
    return [Collection(1), Collection(2), Waits(threads)]


@contextlib.contextmanager
def _detector() -> Iterator[tuple[Detector, list[ArrayFramework]]]:
    """A detector for this process: by epochs, or by a scan within another's epoch (a test that the plugin checks)."""
    frameworks = builtin_frameworks()
    detector: Detector = (
        EpochDetector(frameworks) if epochs_supported() and not installed() else ScanDetector(frameworks)
    )
    detector.start()
    try:
        yield detector, frameworks
    finally:
        detector.stop()


BUDGET_S = 5.0
"""Seconds that a search may take unless the caller says otherwise."""


class Holders(Sequence[Holder]):
    """The holders of an object, most actionable first; to free it takes an edit for each.

    Use it as a sequence of `Holder`, or as text (``print(holders(tensor))``). It holds plain data alone.

    Attributes:
        autograd: what the autograd graph behind the object retains; None for anything without one.
    """

    def __init__(self, found: Sequence[Holder], autograd: Autograd | None) -> None:
        self._found = tuple(found)
        self.autograd = autograd

    @overload
    def __getitem__(self, index: int) -> Holder: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Holder, ...]: ...

    def __getitem__(self, index: int | slice) -> Holder | tuple[Holder, ...]:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __str__(self) -> str:
        from pytest_gpuleak.reports.terminal.findings import render_holders

        return "\n".join(render_holders(self._found, self.autograd))

    __repr__ = __str__


def holders(value: object, *, budget_s: float = BUDGET_S) -> Holders:
    """Tell who keeps `value` alive.

    ::

        >>> pytest_gpuleak.holders(loss)
        held by  app.metrics.HISTORY[0]['loss']  (module global, app/metrics.py:3)

    The variable of the caller's that was passed does not count where it is a global of the caller's module, as in a
    notebook: that one is known. A local variable does, where nothing else holds the object.

    Args:
        value: any live object; a number, a string and the like are shared by too many to tell anything.
        budget_s: seconds after which the search stops with what it has.

    Returns:
        One holder at least: of kind ``native`` or ``unknown`` where no root leads to the object.
    """
    from pytest_gpuleak.adapters.torch.graph_size import retained_by_graph
    from pytest_gpuleak.explain.explain import explain

    targets = [value]
    namespace = _namespace_of_caller()
    known = set() if namespace is None else {(namespace, id(value))}
    with whole_heap():
        (found,) = explain(targets, budget_s=budget_s, known=known)
        if known and not found.holder.path and found.holder.kind in ("native", "unknown"):  # nothing but that variable
            (found,) = explain(targets, budget_s=budget_s)
    graph = retained_by_graph(targets)
    return Holders([_marked(holder) for holder in (found.holder, *found.others)], graph)


def _namespace_of_caller() -> int | None:
    """The id of the caller's globals, where it is code of a module and not of a function."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and belongs_to_plugin(frame.f_globals):
        frame = frame.f_back
    return id(frame.f_globals) if frame is not None and frame.f_locals is frame.f_globals else None


def _marked(holder: Holder) -> Holder:
    return dataclasses.replace(holder, deciding=deciding_edge(holder))
