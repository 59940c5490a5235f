"""Track what one run adds: arrays, counters, processes, and what higher-scoped fixtures made meanwhile. No verdict."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.arrays import array_types
from pytest_gpuleak.adapters.nvml.driver import LazyNvml
from pytest_gpuleak.adapters.registry import (
    mapped_files,
    may_have_untracked_arrays,
    opened_count,
)
from pytest_gpuleak.adapters.storages import are_shared_storages
from pytest_gpuleak.engine.detect.counters import CounterWatch
from pytest_gpuleak.engine.detect.epochs import EpochDetector
from pytest_gpuleak.engine.detect.fixture_ownership import FixtureOwnership, OwnedSetup
from pytest_gpuleak.engine.detect.processes import Children
from pytest_gpuleak.engine.detect.untracked_older import UntrackedOlder
from pytest_gpuleak.heap.collector import (
    collect_young,
    epochs_supported,
    full_collections,
    installed,
    why_no_epochs,
)
from pytest_gpuleak.heap.safe_access import instance_dict
from pytest_gpuleak.heap.threads import running_threads
from pytest_gpuleak.model.readings import HOST, OUTSIDE, OUTSIDE_FLOOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Literal

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.adapters.protocol import ArrayFramework, SetupLines
    from pytest_gpuleak.engine.detect.protocol import Detector, FixtureEvents, FixtureKey
    from pytest_gpuleak.engine.stages import Safeguards
    from pytest_gpuleak.model.outcomes import FixturePlace
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.model.readings import Growth

    AroundCleanUp = Callable[[Literal["gc.collect", "empty_cache"], Callable[[], Any]], Any]


class RunTracker:
    """Track the runs of this process, one after another. Follows fixtures as `FixtureEvents` does.

    `driver` tells who holds the devices; `epoch` is a detector that watches the collector already.
    """

    def __init__(
        self,
        frameworks: Frameworks,
        safeguards: Safeguards,
        counters: CounterWatch | None = None,
        driver: LazyNvml | None = None,
        epoch: EpochDetector | None = None,
    ) -> None:
        self.frameworks = frameworks
        self.counters = CounterWatch((), ()) if counters is None else counters
        self.driver = LazyNvml(self.counters.faults) if driver is None else driver
        self.driver.bound = lambda read: safeguards.bounded(
            read, "a call of the NVIDIA driver", "run without the GPU, or restart its driver"
        )
        self._safeguards = safeguards
        self._nested = epoch is None and installed()
        self._epoch = epoch if epoch is not None else EpochDetector(frameworks.arrays)
        self.detector: Detector = self._scan() if self._nested else self._epoch
        self.untracked = UntrackedOlder()
        self._epoch.watch_collections(self._note_collection)
        self.ownership = FixtureOwnership(self.detector, frameworks.arrays)
        self.processes = Children()
        # A setup or teardown begins in this order and ends in the reverse order.
        self._listeners: tuple[FixtureEvents, ...] = (self.ownership, self.processes, self.counters.apart)
        self._in_setup: set[FixtureKey] = set()
        self._noting: list[SetupLines] = []
        self._notes_lines = True
        self._used: Policy | None = None
        self._gave_up = False
        self._programs = 0
        self._opened = 0
        self._mapped = 0
        self.opened_files = False
        """Whether the last run left more files mapped."""
        self._node_counts: list[int | None] = [None]
        self._full_collections = 0
        self.threads: frozenset[int] = frozenset()
        """The threads that ran when the run began."""
        self.threaded = False
        """Whether another thread ran while `left_arrays` searched: what dies then may have been its argument."""

    @cached_property
    def guarded_arrays(self) -> list[ArrayFramework]:
        """Array readers behind guards, for suspects: an error of a reader must not cost the verdict on all arrays."""
        from pytest_gpuleak.engine.stages import guard_arrays

        return [guard_arrays(arrays, self._safeguards) for arrays in self.frameworks.arrays]

    def mode(self, scan: str) -> str:
        """Name the strategy that is used where `scan` is requested, as the header states it."""
        if scan == "epoch":
            if not epochs_supported():
                return f"scan (this interpreter's collector has no epochs: {why_no_epochs()})"
            if self._nested:
                return "scan (another run in this process has the epoch)"
        return scan

    def follow_memory_alone(self) -> None:
        """Follow what memory wider fixtures make, and neither their processes, nor the lines that make it."""
        self._listeners = (self.ownership, self.counters.apart)
        self._notes_lines = False

    def start(self, policy: Policy) -> None:
        """Begin to watch early, so that a conftest.py that binds a function of `gc` binds the watched one."""
        self.use(policy)
        self.counters.start()

    def stop(self) -> None:
        """Restore the process as it was found. May be called twice."""
        self._end_setup_lines()
        self._epoch.pass_collections(None)
        self._epoch.stop()
        self.detector.stop()
        self.counters.stop()
        self.driver.stop()

    def pass_clean_up(self, around: AroundCleanUp) -> None:
        """Call `around` with what it is and the call, for each full collection and emptied cache that user code asks for.

        A scan leaves `gc.collect` as it is.
        """
        self._epoch.pass_collections(lambda call: around("gc.collect", call))
        for probe in self.counters.device_probes:
            probe.pass_cache_calls(lambda call: around("empty_cache", call))

    def use(self, policy: Policy) -> None:
        """Switch to the policy's strategy."""
        if self._nested or policy is self._used:
            return
        self._used = policy
        if policy.scan == "epoch" and epochs_supported():
            self._epoch.start()
            self.detector = self._epoch
        elif self.detector is self._epoch:
            self._epoch.stop()
            self.detector = self._scan()
        self.ownership.detector = self.detector

    def _scan(self) -> Detector:
        from pytest_gpuleak.engine.detect.heap_scan import ScanDetector  # most runs have epochs

        scan = ScanDetector(self.frameworks.arrays)
        scan.watch_collections(self._note_collection)
        return scan

    def _note_collection(self, phase: str) -> None:
        self.untracked.note_collection(phase)
        self.counters.note_collection(phase)

    def begin_run(self, *, same_epoch: bool = False) -> None:
        """Begin a run: what is alive now is not its own.

        With `same_epoch`, a young collection still reaches what the run before left, where the detector allows it.
        """
        same_epoch = same_epoch and not self.ownership.has_own
        self.threads = running_threads()
        self.threaded = False
        self.untracked.begin_run()
        self._node_counts = self.frameworks.node_counts()
        self.ownership.begin()
        self.counters.begin()
        if not (same_epoch and self.detector.continue_epoch()):
            self.detector.open()
        self._full_collections = full_collections()

    @property
    def was_collected(self) -> bool:
        """Whether the whole heap has been collected since the run began: what has gone since may have been garbage."""
        return full_collections() != self._full_collections

    def end_test(self) -> None:
        """End the last run of a test: do what keeps the process's memory as it would be without the plugin."""
        self.detector.close()

    def left_arrays(self) -> list[object]:
        """Return the arrays that the run has made and that are alive, as strong references."""
        # Before and after: a thread may end during the search, or between the search and a look at the threads.
        threads = running_threads()
        arrays = self.detector.look()
        if arrays:
            threads |= running_threads()
        self.threaded = not threads <= self.threads
        if self.ownership.others:
            arrays = [array for array in arrays if id(array) not in self.ownership.others]
        if self.ownership.own:
            arrays += self._older_of_test({id(array) for array in arrays})
        return [] if arrays and are_shared_storages(arrays, self.frameworks.storages) else arrays

    def _older_of_test(self, found: set[int]) -> list[object]:
        """Return what the test made before a higher-scoped fixture, and that is not `found` yet."""
        older = {identity: one for identity, one in self.ownership.own.items() if identity not in found}
        arrays = [array for one in older.values() if one is not None and (array := one()) is not None]
        unknown = {identity for identity, one in older.items() if one is None}
        return arrays + self.detector.find(unknown) if unknown else arrays

    @property
    def may_have_made_gradients(self) -> bool:
        """Whether a backward pass may have made gradients: the run has made nodes of a graph, or another thread may have."""
        counts = self._node_counts
        threaded = self.threaded or not running_threads() <= self.threads
        return threaded or None in counts or counts != self.frameworks.node_counts()

    @property
    def may_have_added_arrays(self) -> bool:
        """Whether the run may have left more untracked arrays than there were; true where their number is unknown.

        Arrays that replace as many smaller ones add none.
        """
        return self.untracked.has_added is not False

    def least_host_growth(self, policy: Policy) -> int:
        """Return the smallest growth of the host's memory, in bytes, for which the last run is examined.

        Below the host's limit only what no look at the young objects finds matters: arrays that the collector does not
        track, what an autograd graph keeps, and compiled programs. Counts of objects tell whether there can be any.
        """
        if policy.confirm == 0:
            return 0  # the first run decides: its growth must be its own, to the byte
        least = policy.host_bytes
        with suppress(Exception):  # a framework that is half imported: the memory is read
            if may_have_untracked_arrays() and self.may_have_added_arrays:
                least = min(least, policy.array_bytes)
            if self.may_have_made_gradients or not self.frameworks.count_programs():
                least = min(least, policy.retained_bytes)
            return least
        return 0

    @property
    def may_hide_growth(self) -> bool:
        """Whether older arrays that the run let go may hide what no look at young objects finds; garbage is told apart."""
        return not self.was_collected and (self.may_have_added_arrays or self.may_have_made_gradients)

    def is_worth_a_check(self, growth: Growth, policy: Policy) -> bool:
        """Tell whether to check a test for its growth alone, as far as what was collected or let go may have hidden it.

        Growth of the host below its limit matters only as arrays that no look at the young objects finds: see
        `least_host_growth`.
        """
        for (device, metric), size in growth.at_most().plus({"cpu": self.untracked.let_go}).bytes.items():
            if device == HOST:
                grown = size - growth.excused(policy.confirm)
                if grown >= 1 and grown >= self.least_host_growth(policy._replace(confirm=1)):
                    return True
            elif metric == "reserved":
                if policy.reserved_bytes is not None and size >= max(policy.reserved_bytes, 1):
                    return True
            elif metric in (OUTSIDE, "allocated", "requested") and size >= (OUTSIDE_FLOOR if metric == OUTSIDE else 1):
                return True
        return False

    def without_workspaces(self, growth: Growth) -> Growth:
        """Return the growth of the run once libraries' workspaces on the devices are freed, which takes microseconds.

        The first product of matrices on a stream allocates cuBLAS's, so most tests on a device would be suspects.
        """
        if not any(device != HOST and size > 0 for (device, _), size in growth.bytes.items()):
            return growth
        self.frameworks.free_workspaces()
        return growth.lowest(self.counters.end())

    def without_pools(self, growth: Growth) -> Growth:
        """Return the growth of the run without what frameworks' pools have taken from the heap for the next operation."""
        grown, pooled = growth.host, 0
        with suppress(Exception):  # a framework that is half imported: the growth is judged as it is
            pooled = self.frameworks.pool_growth(grown) if grown > 0 else 0
        if not pooled:
            return growth
        sizes = {key: size - pooled if key[0] == HOST else size for key, size in growth.bytes.items()}
        return growth._replace(bytes=sizes)

    def own_growth(
        self, growth: Growth, policy: Policy, let_go: Mapping[str, int], *, suspected: bool
    ) -> tuple[Growth, bool]:
        """Return growth without what frameworks keep, and whether the run is suspected: it already was, or this is worth a check.

        `let_go` are bytes of older arrays that may have hidden as much of it, by device.
        """
        growth = self.without_pools(growth)
        if not suspected:
            growth = self.without_workspaces(growth)
            suspected = self.is_worth_a_check(growth.plus(let_go), policy)
        return growth, suspected

    def compiled(self) -> bool:
        """Return whether more compiled programs are kept than after the run before, its garbage collected."""
        try:
            before, count = self._programs, self.frameworks.program_count()
            if count > before:
                collect_young()
                count = self.frameworks.program_count()
            self._programs = count
        except Exception:  # noqa: BLE001 - programs are no memory: the test is judged without them
            return False
        return count > before

    def opens_files(self) -> bool:
        """Return whether more files are mapped than after the run before: those that the collector does not track."""
        self.opened_files = False
        count = opened_count()
        if count != self._opened:
            self._opened, before = count, self._mapped
            self._mapped = len(mapped_files())
            self.opened_files = self._mapped > before
        return self.opened_files

    def take_released(self) -> list[OwnedSetup]:
        """Return the setups of fixtures that were torn down since the last call."""
        return self.ownership.released()

    def setup_begins(self, fixture: FixtureKey, place: FixturePlace, policy: Policy) -> None:
        """Pass on the event, and note the lines of the outermost setup."""
        self.untracked.begin_apart()
        for listener in self._listeners:
            listener.setup_begins(fixture, place, policy)
        if not self._in_setup and self._notes_lines:
            with suppress(Exception):  # a framework that is half imported: no line is known
                self._noting = self.frameworks.setup_lines()
                for lines in self._noting:
                    lines.begin()
        self._in_setup.add(fixture)

    def setup_ends(self, fixture: FixtureKey, duration_s: float, *, failed: bool) -> None:
        """Note the untracked arrays that the setup has made, and pass on the event, which ends the epoch."""
        self._in_setup.discard(fixture)
        if not self._in_setup:
            self._end_setup_lines()
        self.untracked.end_apart()
        if self.detector.sees_only_young:
            self.untracked.note_setup(fixture)
        for listener in reversed(self._listeners):
            listener.setup_ends(fixture, duration_s, failed=failed)

    def _end_setup_lines(self) -> None:
        for lines in self._noting:
            lines.end()
        self._noting = []

    def teardown_begins(self, fixture: FixtureKey) -> None:
        """Pass on the event."""
        self.untracked.begin_apart()
        for listener in self._listeners:
            listener.teardown_begins(fixture)

    def teardown_ends(self, fixture: FixtureKey) -> None:
        """Pass on the event."""
        self.untracked.end_apart()
        self.untracked.forget(fixture)
        for listener in reversed(self._listeners):
            listener.teardown_ends(fixture)

    def left_in_released(self, policy: Policy) -> bool:
        """Tell whether the test may have left something in higher-scoped fixtures that were torn down since."""
        left = self.ownership.held_by_released or self.processes.ran_before_teardown
        return left or self.is_worth_a_check(self.counters.growth_in_fixtures(), policy)

    def before_teardown(self, definition: object) -> None:
        """Note whether the value of a higher-scoped fixture, pytest's `FixtureDef`, leads to what the test has left."""
        result = (instance_dict(definition) or {}).get("cached_result")
        if type(result) is tuple and result:
            self.ownership.note_held(result[0])

    @contextmanager
    def values_let_go(self) -> Iterator[None]:
        """Take what the body frees for values of fixtures that were torn down: the test's own reference is the last."""
        self.untracked.begin_apart()
        with self.counters.apart.values_let_go(), self.ownership.values_let_go():
            yield
        self.untracked.end_apart()

    def why_blind(self, nodeid: str, *, look: bool = False) -> str:
        """Tell why checking has ended (walking the heap could crash); `look` examines `sys.modules` now."""
        if look:
            array_types(self.frameworks.arrays)
        why = self.frameworks.broken
        if why and not self._gave_up:
            self._gave_up = True
            self._safeguards.tell(f"{why}: nothing was checked from {nodeid} on")
            if self.detector is self._epoch:
                self._epoch.keep_frozen()
        return why
