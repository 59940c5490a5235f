"""What is recorded of a test or a fixture while it runs: the only record type that a run without leaks loads."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from pytest_gpuleak.model.devices import DeviceWait
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.helpers import HelperReading
    from pytest_gpuleak.model.peak_parts import Peak

# No postponed annotations, no dataclass: see docs/developing/performance.md, "Start-up".
Verdict = Literal["clean", "leaked", "noted", "allowed", "unchecked"]

Outcome = Literal["passed", "failed", "skipped", "xfailed", "xpassed", "error"]

CHECKED = frozenset({"passed", "xpassed"})
"""Outcomes of tests that are checked. After any other, a traceback may hold what the test made."""


class TestRecord(NamedTuple):
    """One attempt of one test.

    Attributes:
        outcome: the test's own outcome, the same as without the plugin.
        worker: the xdist worker that ran it (``gw0``), or ``main``.
        duration_s: seconds of setup, call and teardown, without the plugin's own work, which took `overhead_s`.
        memory: counters by device, before and after; empty where no probe ran.
        file: its source file, relative to the rootdir where it lies below it; None: unknown.
        faults: failures of the check itself, or of a user's hook, on this test: a sentence each.
        suspect_s: seconds of a suspect's check: ``check``, of which ``reruns`` and ``search``; else empty.
        rerun: whether a plugin ran the test again after this attempt, which pytest and the summary then do not count.
        device_wait: what `--gpu-leak-wait` has waited for and what stayed on the devices; None: nothing, or it is off.
        helpers: the memory of helper processes of higher-scoped fixtures, where a reading after the test differs from that before.
        peak: what filled the memory at its peak, where it was run again for that (`--gpu-leak-peaks` and its file).
    """

    nodeid: str
    verdict: Verdict
    why_unchecked: str | None
    outcome: Outcome
    worker: str
    duration_s: float
    overhead_s: float
    memory: dict[str, dict[str, int]] = {}  # noqa: RUF012 - a record's dict is never written to
    findings: "tuple[Finding, ...]" = ()
    allowed: str | None = None
    file: str | None = None
    line: int | None = None
    faults: tuple[str, ...] = ()
    suspect_s: dict[str, float] = {}  # noqa: RUF012 - as above
    rerun: bool = False
    device_wait: "DeviceWait | None" = None
    helpers: "tuple[HelperReading, ...]" = ()
    peak: "Peak | None" = None


TestRecord.__test__ = False  # type: ignore[attr-defined] # pytest would collect a class of this name from a test module


_PARTS = ("findings", "device_wait", "helpers", "peak")
"""Fields whose classes a run without leaks does not load."""


def encode_test(record: TestRecord) -> dict[str, Any]:
    """Encode a test's record as JSON-ready dicts, lists and scalars."""
    if not any(getattr(record, name) for name in _PARTS):
        return {**record._asdict(), "findings": [], "helpers": []}
    from pytest_gpuleak.model.finding_codec import encode

    fields: dict[str, Any] = encode(record)
    return fields


def decode_test(data: dict[str, Any]) -> TestRecord:
    """Decode what `encode_test` returned. Raises KeyError or TypeError for anything else."""
    if not (data["findings"] or any(data.get(name) for name in _PARTS)):
        return TestRecord(**{**data, "findings": (), "helpers": (), "faults": tuple(data.get("faults", ()))})
    from pytest_gpuleak.model.finding_codec import decode

    record: TestRecord = decode(TestRecord, data)
    return record


class FixturePlace(NamedTuple):
    """Identify a fixture, as plain data. The fields are those of `model.findings.FixtureRecord`."""

    name: str
    scope: str
    baseid: str
    file: str | None
    line: int | None
