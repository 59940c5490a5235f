"""What a test may leave behind: one immutable `Policy` per test, and the run's `Settings`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import pytest

from pytest_gpuleak.session.config.options import ALLOW_MARKER, MIB, POLICY_MARKER

# Without postponed annotations a NamedTuple takes half the time to make: none of them has to be compiled.


class Policy(NamedTuple):
    """What one test may leave behind, and how that is found out.

    Attributes:
        growing_tensors: arrays it may leave behind growing; None: growth is judged by bytes alone.
        growing_bytes: bytes per device it may leave behind growing; None: growth is judged by tensors alone.
        retained_bytes: residue that does not grow fails from here up, in bytes per device.
        reserved_bytes: growth of a device's reserved memory that fails, from here up; None: none does.
        host: how the host's memory is watched, by the names of the probes; empty: not at all.
        host_bytes: bytes of the host's memory it may leave behind growing.
        confirm: re-runs of a suspect; 0: the first run alone decides.
        confirm_limit_s: seconds; a suspect that took longer is not run again.
        cycles: what becomes of memory that only the cyclic collector freed.
        scan: how arrays left behind are found: by epochs of the collector, or by a scan of the heap.
        process_bytes: memory from which a helper process fails that stays but does not grow in number; None: none does.
        allowed: the reason given to `allow_gpu_leak`; None: findings fail.
    """

    growing_tensors: int | None = 0
    growing_bytes: int | None = 0
    retained_bytes: int = MIB
    reserved_bytes: int | None = None
    host: tuple[str, ...] = ("heap",)
    host_bytes: int = 10 * MIB
    confirm: int = 1
    confirm_limit_s: float = 60.0
    cycles: Literal["ignore", "note", "fail"] = "note"
    scan: Literal["epoch", "scan"] = "epoch"
    process_bytes: int | None = None
    allowed: str | None = None


class Settings(NamedTuple):
    """What one run was asked for.

    Attributes:
        enabled: whether tests are checked.
        policy: the policy of tests without a marker.
        report_paths: absolute paths of the reports to write; empty in an xdist worker, which writes none.
        named: values given on the command line or in the ini, by the option's name, which a marker adds to.
        budget_bytes: peak GPU memory that a test without a marker may add; None: any.
        clean: whether a failed test's frames and the device's cache are freed after it.
        top: how many of the heaviest tests are listed at the end.
        snapshots: folder for the allocator's history of leaking tests, absolute; None: none is written.
        baseline: the file of known leaks, absolute; None: none is known.
        update_baseline: whether the leaks of this run are written into the baseline, and do not fail.
        fail_stale: whether an entry of the baseline whose leak is gone fails the run.
        strict: whether the run fails where the check itself or a user's hook failed.
    """

    enabled: bool
    policy: Policy
    report_paths: tuple[Path, ...] = ()
    named: Mapping[str, Any] = MappingProxyType({})
    budget_bytes: int | None = None
    clean: bool = False
    top: int = 0
    snapshots: Path | None = None
    baseline: Path | None = None
    update_baseline: bool = False
    fail_stale: bool = False
    strict: bool = False


def build_policy(named: Mapping[str, Any]) -> Policy:
    """The policy of the values given, by the options' names."""
    if not named:
        return Policy()
    from pytest_gpuleak.session.config.option_table import OPTIONS

    policy = Policy(**{option.target: named[option.name] for option in OPTIONS if option.name in named})
    # The pair: where one of the two alone is named, growth is judged by that one alone.
    if "mb" in named and "tensors" not in named:
        return policy._replace(growing_tensors=None)
    if "tensors" in named and "mb" not in named:
        return policy._replace(growing_bytes=None)
    return policy


def policy_of(node: pytest.Item | pytest.Collector, settings: Settings) -> Policy:
    """Find the policy of a test, or of what was set up for a class or module.

    Raises ValueError for a marker that is not accepted, which only one added after `check_markers` can be.
    """
    named: dict[str, Any] = {}
    allowed: str | None = None
    marks = closest_first(node, POLICY_MARKER, ALLOW_MARKER)
    if not marks:
        return settings.policy
    from pytest_gpuleak.session.config.option_table import MARKER_ARGUMENTS, complaint_about

    for mark in marks:
        complaint = complaint_about(mark)
        if complaint is not None:
            raise ValueError(f"pytest.mark.{mark.name}: {complaint}")
        if mark.name == ALLOW_MARKER:
            allowed = allowed or mark.kwargs["reason"]
        else:
            for name, given in mark.kwargs.items():
                named.setdefault(name, MARKER_ARGUMENTS[mark.name][name].parse(given))
    if named:
        return build_policy({**settings.named, **named})._replace(allowed=allowed)
    return settings.policy if allowed is None else settings.policy._replace(allowed=allowed)


def check_markers(items: Iterable[pytest.Item], settings: Settings) -> None:
    """Check every marker of ours on the collected tests, where tests are to be checked.

    Raises pytest.UsageError for the first that is not accepted: it names the marker, its argument and value, what is
    accepted, and the test (for a marker of a class or module, the first test in it).
    """
    if not settings.enabled:
        return
    seen: set[int] = set()
    for item in items:
        for mark in closest_first(item, POLICY_MARKER, ALLOW_MARKER):
            # One marker of a module is the same object for all its tests. The nodes keep it alive, so ids are unique.
            if id(mark) not in seen:
                seen.add(id(mark))
                from pytest_gpuleak.session.config.option_table import complaint_about

                complaint = complaint_about(mark)
                if complaint is not None:
                    raise pytest.UsageError(f"pytest.mark.{mark.name}: {complaint}; on {place_of(item)}")


def place_of(item: pytest.Item) -> str:
    """Where a test stands, for a usage error: its id, and file and line."""
    file, line, _ = item.location
    return f"{item.nodeid} ({file}:{(line or 0) + 1})"


def describe(settings: Settings) -> dict[str, Any]:
    """Tell the policy of tests without a marker as plain JSON values: the fields of `Policy` but `allowed`."""
    values = settings.policy._asdict()
    del values["allowed"]
    return values


def closest_first(node: pytest.Item | pytest.Collector, *names: str) -> list[pytest.Mark]:
    """List the markers of these names on a node: its parameter's, its own, its class's, its module's."""
    if not _has_any(node, names):
        return []
    ours = [mark for mark in node.iter_markers() if mark.name in names]
    # pytest lists what `pytest.param(..., marks=...)` adds behind the function's own, though it is closer.
    of_parameter = {id(mark) for mark in getattr(getattr(node, "callspec", None), "marks", ())} if ours else ()
    return sorted(ours, key=lambda mark: id(mark) not in of_parameter)


def _has_any(node: pytest.Item | pytest.Collector, names: tuple[str, ...]) -> bool:
    """Whether a marker of these names is on a node: asked for each test, in a third of what `iter_markers` takes."""
    above: Any = node
    while above is not None:
        if above.own_markers:
            for mark in above.own_markers:
                if mark.name in names:
                    return True
        above = above.parent
    return False
