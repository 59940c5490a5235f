"""What a test may leave behind: one immutable `Policy` per test, and the run's `Settings`."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pytest_gpuleak.model.text import MIB

# No postponed annotations: see docs/developing/performance.md, "Start-up".


class Policy(NamedTuple):
    """Limits on what one test may leave behind, and how it is checked. None: no limit.

    Attributes:
        growing_tensors: arrays by which it may grow each run; `growing_bytes` the bytes per device.
        retained_bytes: bytes per device that fail when left behind, even if they do not grow.
        reserved_bytes: growth of a device's reserved memory that fails.
        host: names of the probes that read the host's memory (empty: none); each run may add `host_bytes`.
        array_bytes: the same for arrays whose objects are known, such as NumPy's.
        confirm: re-runs of a suspect, unless it took longer than `confirm_limit_s` (seconds); 0: the first run decides.
        cycles: how memory that only the cyclic collector freed is judged; `scan` how arrays are found.
        process_bytes: memory of a helper process that fails although no run adds another process.
        allowed: the reason given to `allow_gpu_leak`; None: findings fail.
    """

    growing_tensors: int | None = 0
    growing_bytes: int | None = 0
    retained_bytes: int = MIB
    reserved_bytes: int | None = None
    host: tuple[str, ...] = ("heap",)
    host_bytes: int = 10 * MIB
    array_bytes: int = MIB // 4
    confirm: int = 1
    confirm_limit_s: float = 60.0
    cycles: Literal["ignore", "note", "fail"] = "note"
    scan: Literal["epoch", "scan"] = "epoch"
    process_bytes: int | None = None
    allowed: str | None = None


class Settings(NamedTuple):
    """Options of one run. Paths are absolute.

    Attributes:
        report_paths: the reports to write; empty in an xdist worker, which writes none.
        named: values given on the command line or in the ini, by the option's name, which a marker adds to.
        budget_bytes: peak GPU memory that a test without a marker may add; None: any.
        estimate: whether budgets are held to an estimate where no device is.
        top: how many of the heaviest tests are listed at the end.
        snapshots: folder for the allocator's history of leaking tests; None: none is written.
        strict: whether the run fails where the check itself or a user's hook failed.
        no_init_at_collection: whether the run fails where a device was initialised during import or collection.
        warn: whether leaks are shown and reported, and fail nothing: the other options that fail a run are off then.
        peaks: the peaks of how many of the heaviest tests are explained.
        peaks_baseline: the file of peaks; `peaks_tolerance` is the share by which one may grow; None: as the file says.
        wait_s: longest wait for a device after a test, in seconds; None: none.
        children: how helper processes that wider fixtures start are watched; ``agent`` includes what ``memory`` does.
    """

    enabled: bool
    policy: Policy
    report_paths: tuple[Path, ...] = ()
    named: Mapping[str, Any] = MappingProxyType({})
    budget_bytes: int | None = None
    estimate: bool = False
    clean: bool = False
    top: int = 0
    snapshots: Path | None = None
    baseline: Path | None = None
    update_baseline: bool = False
    fail_stale: bool = False
    strict: bool = False
    no_init_at_collection: bool = False
    warn: bool = False
    wait_s: float | None = None
    children: Literal["memory", "agent", "off"] = "memory"
    peaks: int = 0
    peaks_baseline: Path | None = None
    peaks_tolerance: float | None = None
    update_peaks: bool = False


def describe(settings: Settings) -> dict[str, Any]:
    """Return the policy of tests without a marker as plain JSON values: all fields of `Policy` but `allowed`."""
    values = settings.policy._asdict()
    del values["allowed"]
    return values
