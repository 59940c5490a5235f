"""The vocabulary, sizes in bytes and times in seconds: plain data, so that a report keeps no user object alive."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pytest_gpuleak.model.source_files import Edit

if TYPE_CHECKING:
    from pytest_gpuleak.model.peak_parts import Peak
    from pytest_gpuleak.model.source_files import Origin

HolderKind = Literal["module", "class", "cache", "fixture", "frame", "thread", "traceback", "native", "unknown"]
FindingKind = Literal[
    "growing", "retained", "unconfirmed", "cycle", "unattributed", "host", "process", "budget", "tracer", "recompiled"
]

KIND_CODES: Final[dict[str, str]] = {
    "growing": "GL001",
    "retained": "GL002",
    "unconfirmed": "GL003",
    "cycle": "GL004",
    "unattributed": "GL005",
    "host": "GL006",
    "process": "GL007",
    "budget": "GL008",
    "recompiled": "GL009",
    "tracer": "GL010",
}
"""Codes of findings that no pattern of the hints explains; `codes` has their pages."""

_CODES_OF_KINDS: Final = frozenset({"", *KIND_CODES.values()})


@dataclasses.dataclass(frozen=True)
class ArrayInfo:
    """One leaked array, as metadata.

    Attributes:
        dtype: element type, without the framework's prefix (``float32``).
        bytes: bytes of the elements the array shows; `storage_bytes` of the storage, which a view keeps as a whole.
        framework: the framework's name where its arrays are not called tensors (``numpy``); else empty.
        file: the file that the memory is mapped from; empty for memory of the process.
    """

    shape: tuple[int, ...]
    dtype: str
    device: str
    bytes: int
    storage_bytes: int
    created: Origin | None = None
    framework: str = ""
    file: str = ""


@dataclasses.dataclass(frozen=True)
class PathStep:
    """One reference of a holder's path: how Python writes it (``[0]``, ``.loss``), and the type it leads from."""

    edge: str
    type: str


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who keeps an array alive.

    Attributes:
        root: the root, as one writes it in Python: ``app.metrics.HISTORY``.
        text: the whole chain from the root to the array: ``app.metrics.HISTORY[0]``; `path` has its references.
        file: source file that defines the root, where known; `line` counts from 1.
        deciding: index in `path` of the reference to edit; None where that is the root itself.
        edit_file: source file that sets the reference to edit, where it is known and not the root's.
        edit_code: line `edit_line` of that file, stripped and cut; empty where it cannot be read.
    """

    kind: HolderKind
    root: str
    text: str
    path: tuple[PathStep, ...] = ()
    file: str | None = None
    line: int | None = None
    deciding: int | None = None
    edit_file: str | None = None
    edit_line: int | None = None
    edit_code: str = ""

    @property
    def edit(self) -> Edit | None:
        """Return the line that sets the reference to edit, where it is known."""
        return None if self.edit_file is None else Edit(self.edit_file, self.edit_line, self.edit_code)

    @property
    def named(self) -> bool:
        """Tell whether the root has a name. Findings with the same named root have the same culprit."""
        return self.kind not in ("native", "unknown") and bool(self.root)


CYCLE_ROOT = "a reference cycle"
"""Root of the holder of what a cycle alone holds: the garbage collector frees it, or has freed it."""

WAITING = Holder("unknown", "", "unknown so far: searched for at the end of the run, with those of other findings")
"""Stands for the holder of a finding until a search for many findings at once has found it."""

NO_OBJECT = Holder("unknown", "", "unknown: nothing in Python refers to the memory any more, which C++ keeps")
"""The holder of living memory that a late search has found none for."""

FREED = Holder("unknown", "", "unknown: the memory was freed before the search, at the end of the run")
"""The holder of memory that was freed before a late search."""


@dataclasses.dataclass(frozen=True)
class Autograd:
    """What an autograd graph retains beyond the leaked arrays; where the count was `cut`, at least that much."""

    nodes: int
    saved_tensors: int
    saved_bytes: int
    cut: bool = False


NOT_READ: Final = Autograd(0, 0, 0, cut=True)
"""The size of a graph of which nothing could be read."""


@dataclasses.dataclass(frozen=True)
class Contribution:
    """A part of memory that no array explains: objects of a type, blocks of an allocation's line, or a process."""

    text: str
    bytes: int
    count: int = 1
    created: Origin | None = None
    holder: Holder | None = None


@dataclasses.dataclass(frozen=True)
class Judged:
    """How a finding was judged, and what was not done and why: what a user quotes in a bug report.

    Attributes:
        runs: runs whose results decided, the first one included; one made for its lines alone does not count.
        step: the step of docs/how-it-works.md that decided, as ``7 matched``.
        freed_by: what freed arrays of the first run: ``reference count``, ``collection``, ``settling``; empty if nothing.
        why_not_again: why the test was not run again, or why its re-run does not count; empty if one does.
        cut: what was not finished and so excuses; empty if nothing was cut.
        why_no_holder: why nobody is named who keeps the memory; empty where somebody is.
        why_no_line: why no line is known that created any of the memory; empty where one is.
        search_cut: where the search for holders stopped before its end; empty where it did not.
    """

    runs: int
    step: str
    freed_by: tuple[str, ...] = ()
    why_not_again: str = ""
    cut: str = ""
    why_no_holder: str = ""
    why_no_line: str = ""
    search_cut: str = ""


BaselineState = Literal["known", "grown", "new"]


@dataclasses.dataclass(frozen=True)
class BaselineStatus:
    """How a finding compares with the baseline, and why it passes or not. In JSON it is a line of the evidence."""

    state: BaselineState
    text: str

    @property
    def line(self) -> str:
        """Write it as a line of evidence."""
        return f"{self.state} (baseline): {self.text}"


@dataclasses.dataclass(frozen=True)
class HelperProcess:
    """The process that a finding was made in, if it is not pytest's.

    Attributes:
        name: its name in multiprocessing (``EngineCore``), else that of its program.
        command: how it was started, cut; empty where that is not known.
        fixture: the wider fixture whose setup has started it; None: a test has, or it is not known.
    """

    pid: int
    name: str
    command: str = ""
    fixture: str | None = None

    @property
    def text(self) -> str:
        """Name it as all reports do: ``EngineCore (pid 4711, fixture 'server')``."""
        fixture = "" if self.fixture is None else f", fixture '{self.fixture}'"
        return f"{self.name} (pid {self.pid}{fixture})"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One culprit: the arrays of one kind, on one device, under one holder root.

    Attributes:
        failed: whether it fails the test (or the run, for a fixture).
        count: live arrays that the first run left; arrays that share a storage count once, as in `bytes`.
        bytes_per_run: bytes that each further run adds; 0 where it does not grow or was not run again.
        fingerprint: hex digest of kind, names and edges alone; the same on another machine and in another order.
        known: whether a baseline lists it.
        tensors: a sample of the arrays, largest storage first (at most `MAX_ARRAYS_SHOWN`).
        holder: who keeps them, or None where no search was made; `other_holders` would if that let go, or keep the rest.
        metric: for a finding about a counter, its name (``heap``, ``reserved``, ``allocated``, ``pid 4711``).
        contributions: parts of the memory that no array explains, largest first.
        evidence: figures that support the verdict, a line each.
        hint: one sentence on the edit that frees them, about the pattern `code`, or None; `codes` has the code's page.
        baseline: how it compares with the baseline; None without one, or for a mere note.
        why_line_unknown: why no array has a creating line; None where one has, or for a finding about a counter.
        until_teardown: whether a wider fixture alone holds it, whose teardown judges it.
        provisional: whether its holder is what a short walk has told, and is still to be searched for.
        judged: how the verdict came about, and what was not done; None for budgets.
        peak: what filled the memory at its peak, for a budget, where the test was run again for it; else None.
        process: the helper process that it was made in; None: the test's own.
    """

    kind: FindingKind
    failed: bool
    device: str
    count: int
    bytes: int
    bytes_per_run: int
    fingerprint: str
    known: bool = False
    tensors: tuple[ArrayInfo, ...] = ()
    holder: Holder | None = None
    autograd: Autograd | None = None
    hint: str | None = None
    why_unconfirmed: str | None = None
    other_holders: tuple[Holder, ...] = ()
    metric: str | None = None
    contributions: tuple[Contribution, ...] = ()
    evidence: tuple[str, ...] = ()
    baseline: BaselineStatus | None = None
    why_line_unknown: str | None = None
    code: str = ""
    until_teardown: bool = False
    judged: Judged | None = None
    provisional: bool = False
    peak: Peak | None = None
    process: HelperProcess | None = None

    def __post_init__(self) -> None:
        # A finding made with `dataclasses.replace` may have another kind, and the code of the one before.
        if type(self.code) is str and self.code in _CODES_OF_KINDS and type(self.kind) is str:
            object.__setattr__(self, "code", KIND_CODES.get(self.kind, ""))

    @property
    def waits(self) -> bool:
        """Tell whether its holder is still to be searched for."""
        return self.provisional or self.holder == WAITING

    @property
    def edit(self) -> Edit | None:
        """Return the line to cut, of the holder or else of the first part that has one; None where none is known.

        Every report takes the line from here, and JSON writes it as the field `edit`.
        """
        holders = (self.holder, *(part.holder for part in self.contributions))
        return next((holder.edit for holder in holders if holder is not None and holder.edit is not None), None)

    @property
    def evidence_lines(self) -> tuple[str, ...]:
        """Return the evidence as reports list it, with the baseline's line first."""
        return self.evidence if self.baseline is None else (self.baseline.line, *self.evidence)


MAX_ARRAYS_SHOWN = 50
"""Number of arrays listed with a finding. Its `count` and `bytes` cover all."""


@dataclasses.dataclass(frozen=True)
class FixtureRecord:
    """One higher-scoped fixture, defined at nodeid `baseid`, that left memory behind when it was torn down.

    `name` is what the user wrote for xunit-style setup (``TestModel.setup_class``); `allowed` the marker's reason.
    """

    name: str
    scope: str
    baseid: str
    findings: tuple[Finding, ...]
    file: str | None = None
    line: int | None = None
    worker: str = "main"
    allowed: str | None = None


@dataclasses.dataclass(frozen=True)
class KnownLeak:
    """One entry of a baseline: a leak that is reported and passes until it grows.

    Attributes:
        test: pytest's id of the test function, without parameters; for a leaking `fixture` the place that defines it.
        device: the type of device (``cpu``, ``cuda``), without an index: which card a test gets is chance.
        bytes: the most bytes among the test's parameters; for retained memory, the sum over a process's tests.
    """

    test: str
    fixture: str | None
    kind: FindingKind
    device: str
    bytes: int
    fingerprint: str
    holder: str = ""
    reason: str = ""


class BaselineChange(NamedTuple):
    """Difference between two baselines. A changed entry is in `changed` as it is now, in `before` as it was."""

    added: tuple[KnownLeak, ...]
    removed: tuple[KnownLeak, ...]
    changed: tuple[KnownLeak, ...]
    kept: tuple[KnownLeak, ...]
    before: tuple[KnownLeak, ...] = ()
