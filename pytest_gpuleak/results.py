"""What the functions without pytest return: findings, holders and peaks, as text, as sequences, and in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from pytest_gpuleak.model.findings import Autograd, Finding, Holder
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.peak_parts import Peak, PeakMoment, PeakPart

NOT_ENDED = "the block has not ended"
"""Why an unfinished block is not judged."""


class LeakError(AssertionError):
    """Raised by `assert_no_leak`; its text explains each finding.

    Attributes:
        findings: the findings that failed, worst first.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__(render(self.findings))


class Leaks(Sequence[Finding]):
    """What a watched block left behind: empty until the block has ended, and if it left nothing.

    Use it as a sequence of findings, in a condition, or as text (``print(leaks)``). It holds plain data only.

    Attributes:
        why_unchecked: why the block was not judged: it raised, or has not ended. None once it was judged; an empty
            sequence then means that nothing was left behind.
        peak: what filled the memory at the block's peak, for a block watched with ``peak=True``; else None.
    """

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings
        self.why_unchecked: str | None = NOT_ENDED
        self.peak: PeakExplanation | None = None

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

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the findings, or why there is no verdict."""
        lines = [line for found in self._findings for line in _render_safely(found)]
        return _as_html(lines if lines and self.why_unchecked is None else [str(self)])

    @property
    def bytes(self) -> int:
        """Bytes left behind in all, each storage once, without what the collector freed."""
        return sum(found.bytes for found in self._findings if found.kind != "cycle")


class PeakExplanation:
    """What filled the memory while code ran. Use it as text (``print(found)``), or as a table in a notebook.

    It holds plain data only. Bytes are above what was there before, without what operators and libraries take inside.

    Attributes:
        peaks: the peak of each device on which tensors were made, by name, the highest first and ``cpu`` last.
        device: the first of them, whose `bytes` and `parts` are told; empty if no tensor was made.
    """

    def __init__(self, peaks: Sequence[Peak]) -> None:
        self.peaks = {peak.device: peak for peak in peaks if peak.device}
        self._first = peaks[0] if peaks else Peak("", 0)
        self.device = self._first.device

    @property
    def bytes(self) -> int:
        """Bytes of the device's peak."""
        return self._first.bytes

    @property
    def parts(self) -> tuple[PeakPart, ...]:
        """What the peak consisted of, largest first: the rows add up to `bytes`."""
        return self._first.parts

    @property
    def moment(self) -> PeakMoment | None:
        """When the peak was reached; None if no tensor was made."""
        return self._first.moment

    def __str__(self) -> str:
        from pytest_gpuleak.reports.terminal.peak import render_peak, title_of

        return "\n".join((title_of(self._first), *render_peak(self._first)))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the same as a table."""
        from pytest_gpuleak.reports.terminal.peak import render_html

        return render_html(self._first)


class Holders(Sequence[Holder]):
    """The holders of an object, most actionable first; freeing it takes an edit for each.

    Use it as a sequence of `Holder`, or as text (``print(holders(tensor))``). It holds plain data only.

    Attributes:
        autograd: the memory that the autograd graph behind the object retains; None without a graph.
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

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the same lines, with the reference to cut marked."""
        from pytest_gpuleak.reports.terminal.findings import render_holders

        return _as_html(render_holders(self._found, self.autograd))


def render(findings: Sequence[Finding]) -> str:
    """Return the findings as the terminal report explains them."""
    return "\n".join(line for found in findings for line in _render_safely(found))


def _as_html(lines: Sequence[str]) -> str:
    from pytest_gpuleak.reports.terminal.lines import as_html

    return as_html(lines)


def _render_safely(finding: Finding) -> list[str]:
    from pytest_gpuleak.reports.source_places import name_unshown
    from pytest_gpuleak.reports.terminal.findings import render_finding

    return isolated(lambda: render_finding(finding), lambda why: [f"  {name_unshown(finding, why)}"])
