"""What is done about a suspect: settle, run again, explain, judge. Loaded when the first one turns up."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.arrays import framework_of
from pytest_gpuleak.adapters.torch.lookup import torch_module
from pytest_gpuleak.engine.confirm.counter_evidence import CounterTrail
from pytest_gpuleak.engine.judge.arrays import conclude, judge
from pytest_gpuleak.engine.left_behind import owner_of
from pytest_gpuleak.engine.settle.steps import Collection, YoungCollection
from pytest_gpuleak.engine.stages import ACCOUNT, CONFIRM, COUNTERS, DESCRIBE, FIXTURES, PROCESSES, READ, VERDICT
from pytest_gpuleak.heap.threads import running_threads
from pytest_gpuleak.model.evidence import Evidence, Survivor
from pytest_gpuleak.model.findings import FixtureRecord
from pytest_gpuleak.session.pytest_internals import release_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from pytest_gpuleak.adapters.processes.facts import LeftProcess
    from pytest_gpuleak.adapters.protocol import OriginLog, StorageHandle
    from pytest_gpuleak.engine.confirm.array_evidence import Investigation
    from pytest_gpuleak.engine.detect.fixture_ownership import FixtureSetup
    from pytest_gpuleak.engine.run_tracker import Monitor
    from pytest_gpuleak.engine.stages import Guard, Stage
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.outcomes import FixturePlace
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.model.readings import Growth

YOUNG_RUNGS = (Collection(1), YoungCollection())
"""What is tried before anything that walks the whole heap."""

RERUN_ADVICE = "mark the test with @pytest.mark.gpu_leak(confirm=0), and it is not run again"
"""What the user can do about a re-run that hangs."""


class Suspicion:
    """A test that has left arrays behind.

    Args:
        monitor: watches the process.
        item: the test.
        nextitem: what its teardown was given.
        policy: what it may leave behind.
        expected_s: seconds that a re-run will take: its own, and those of the wider fixtures to be built again.
    """

    def __init__(
        self,
        monitor: Monitor,
        item: pytest.Item,
        nextitem: pytest.Item | None,
        policy: Policy,
        expected_s: float,
    ) -> None:
        self._monitor = monitor
        self._item = item
        self._nextitem = nextitem
        self._policy = policy
        self._expected_s = expected_s
        self._judged: tuple[Evidence, tuple[Finding, ...]] | None = None

    def investigate(
        self, arrays: list[object], growth: Growth, processes: list[LeftProcess], *, threaded: bool = False
    ) -> tuple[Finding, ...]:
        """The findings. A stage that fails is left out, and those after it go on with what is known.

        Args:
            arrays: strong references to what the test left; emptied here, before anything of the user's runs.
            growth: what it has added to the counters.
            processes: those that it has started and that still run.
            threaded: whether a thread that the test has started ran when the arrays were looked for.
        """
        from pytest_gpuleak.engine.confirm.array_evidence import Investigation
        from pytest_gpuleak.engine.confirm.process_evidence import ProcessTrail

        monitor = self._monitor
        investigation = Investigation(monitor.detector, monitor.guarded_frameworks, monitor.culprits, self._guard)
        counters = CounterTrail(monitor, self._policy, self._item.nodeid)
        self._processes = ProcessTrail(monitor.children, self._policy, processes, monitor.is_user_file)
        stays = False
        with self._guard(READ):
            stays = self._take_in(investigation, counters, arrays, growth, threaded=threaded)
        arrays.clear()  # what raised may have kept them
        why = ""
        with contextlib.ExitStack() as afterwards:
            if stays or processes:
                with self._guard(CONFIRM) as stage:
                    why = self._why_not()
                    if not why:
                        from pytest_gpuleak.session.rerun.unseen.lists import keep_lists

                        # Not before the verdict: what the re-run has added may hold what leaked.
                        afterwards.callback(keep_lists())
                        why = self._confirm(investigation, counters)
                if stage.fault:
                    why = f"the check failed while the test ran again: {stage.fault}"
                    investigation.forget_reruns()
                    counters.forget_reruns()
                    self._processes.forget_reruns()
                if stays and not investigation.confirmed:
                    investigation.look()
            with self._guard(ACCOUNT):
                for left in investigation.leftovers():
                    monitor.account.note(self._item.nodeid, *left)
            with self._guard(PROCESSES):
                self._processes.explain(self._guard)
            return tuple(self._describe(found, why) for found in self._judge(investigation, counters, why))

    def _guard(self, stage: Stage) -> Guard:
        return self._monitor.faults.guard(stage, self._item.nodeid)

    def _describe(self, found: Finding, why: str) -> Finding:
        return described(found, why, self._monitor, self._item.nodeid)

    def _take_in(
        self,
        investigation: Investigation,
        counters: CounterTrail,
        arrays: list[object],
        growth: Growth,
        *,
        threaded: bool,
    ) -> bool:
        """Settle what a run left and note what stays; whether anything does."""
        monitor = self._monitor
        stays = investigation.add_run(
            arrays, monitor.rungs(self._item.nodeid), monitor.threads, YOUNG_RUNGS, threaded=threaded
        )
        grown = False
        with self._guard(COUNTERS):
            grown = counters.add_run(investigation, growth)
        if stays or grown:
            monitor.scopes.disown(investigation.identities)
        return stays or grown

    def _judge(self, investigation: Investigation, counters: CounterTrail, why: str = "") -> tuple[Finding, ...]:
        found: tuple[Finding, ...] | None = None
        with self._guard(VERDICT):
            found = self._judge_arrays(investigation)
        if found is None:
            # The runs cannot be compared: the first one alone is judged.
            investigation.forget_reruns()
            with self._guard(READ):
                found = self._judge_arrays(investigation)
        with self._guard(COUNTERS):
            evidence = without_running_frames(investigation.evidence())
            found = (*(found or ()), *counters.judge(evidence))
        with self._guard(PROCESSES):
            found = (*self._processes.judge(why), *(found or ()))
        return found or ()

    def _judge_arrays(self, investigation: Investigation) -> tuple[Finding, ...]:
        """Judge what is known of the arrays; the same evidence once, since 100,000 arrays take a second."""
        evidence = investigation.evidence()
        if self._judged is None or self._judged[0] is not evidence:
            self._judged = evidence, judge(without_running_frames(evidence), self._policy)
        return self._judged[1]

    def _why_not(self) -> str:
        """Why the test is not run again; empty if it is."""
        if self._policy.confirm == 0:
            return "no re-run was asked for"
        if self._expected_s > self._policy.confirm_limit_s:
            return f"a re-run would take {self._expected_s:.0f} s, over the limit of {self._policy.confirm_limit_s:g} s"
        if is_one_of_several_ranks():
            return "it is one rank of several, which would wait for each other"
        from pytest_gpuleak.session.rerun.unseen.unseen import why_not_again

        return why_not_again(self._item)

    def _confirm(self, investigation: Investigation, counters: CounterTrail) -> str:
        """Run the test again until it is seen not to grow, or as often as asked; why that ended early, if it did."""
        left, recorded = self._policy.confirm, False
        while left > 0:
            left -= 1
            investigation.expect_run()
            self._processes.expect_run()
            with counters.recording():
                # Lines are noted for arrays: where a counter alone has grown, tracing would double the time for nothing.
                self._traces_arrays = investigation.left_arrays
                tracing_on = self._traces_arrays or self._processes.watched
                result, origins = self._run_again(investigation, tracing_on=tracing_on)
                if tracing_on and not (result.passed or result.timed_out):
                    # It may be the tracing that it does not bear (torch.compile's fullgraph, a mode of its own).
                    result, origins = self._run_again(investigation, tracing_on=False)
                if not result.passed:
                    return str(result.why)
                monitor = self._monitor
                growth = monitor.memory.end()
                self._processes.add_run()
                arrays = monitor.born()
                threaded = bool(arrays) and not running_threads() <= monitor.threads
                self._take_in(investigation, counters, arrays, growth, threaded=threaded)
            investigation.look(origins)
            if not (
                self._processes.grows or any(found.bytes_per_run for found in self._judge(investigation, counters))
            ):
                break
            if left == 0 and counters.wants_record and not recorded:
                left, recorded = 1, True
        return ""

    @contextlib.contextmanager
    def _traced(self, logs: list[OriginLog]) -> Iterator[None]:
        """Within it the lines are noted that create storages and start processes."""
        from pytest_gpuleak.engine.confirm.tracing import traced

        monitor = self._monitor
        frameworks = monitor.guarded_frameworks if self._traces_arrays else []
        with self._processes.noting_starts(), traced(frameworks, monitor.is_user_file, logs):
            yield

    def _findings_by_size(self, investigation: Investigation, why: str) -> tuple[Finding, ...]:
        """What is known before it is known who holds the arrays."""
        return tuple(self._describe(found, why) for found in judge(investigation.evidence(), self._policy))

    def _run_again(self, investigation: Investigation, *, tracing_on: bool) -> tuple[Any, OriginLog]:
        from pytest_gpuleak.adapters.torch.in_place import torch_in_place
        from pytest_gpuleak.session.rerun.hanging import Hang
        from pytest_gpuleak.session.rerun.rerun import limit_of, run_again

        monitor = self._monitor
        limit = limit_of(self._expected_s, self._policy.confirm_limit_s)
        hang = Hang(monitor, "its re-run", RERUN_ADVICE, self._item, partial(self._findings_by_size, investigation))
        if monitor.note_rerun is not None:
            monitor.note_rerun(hang.record("the process died while the test was run again"))
        logs: list[OriginLog] = []
        tracing = self._traced(logs) if tracing_on else contextlib.nullcontext()
        with torch_in_place():
            monitor.open()
            monitor.rerunning = True
            try:
                result = run_again(self._item, self._nextitem, limit, tracing, hang)
            finally:
                monitor.rerunning = False
        origins = {key: origin for log in logs for key, origin in log.items()}
        release_values(self._item, self._monitor.log_handlers)
        monitor.check_fixtures(monitor.scopes.released())
        return result, origins


class FixtureJudge:
    """Judges wider fixtures by what is left of each set-up once it has been finalised.

    Args:
        monitor: watches the process.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._histories: dict[FixturePlace, _History] = {}
        self.records: dict[FixturePlace, FixtureRecord] = {}

    def check(self, setups: list[FixtureSetup]) -> None:
        """Look at the set-ups that have been finalised; those whose memory is gone cost no look at the heap."""
        for setup in setups:
            with self._monitor.faults.guard(FIXTURES, _nodeid_of(setup)):
                history = self._histories.get(setup.place)
                if setup.holds_memory():
                    self._investigate(setup)
                elif history is not None:
                    history.add_run([], [])
                    self._record(setup, history)

    def _investigate(self, setup: FixtureSetup) -> None:
        from pytest_gpuleak.adapters.torch.reading import find_storages
        from pytest_gpuleak.engine.confirm.array_evidence import Investigation

        monitor = self._monitor
        kept = {handle.storage: handle for handle in setup.handles if handle.alive()}
        arrays = [
            array
            for array in monitor.detector.find(setup.identities)
            if framework_of(array, monitor.frameworks).storage(array) in kept
        ]
        outlived = kept.keys() - {framework_of(array, monitor.frameworks).storage(array) for array in arrays}
        if outlived:
            arrays += find_storages(outlived)
        nodeid = _nodeid_of(setup)
        investigation = Investigation(
            monitor.detector, monitor.guarded_frameworks, guard=lambda stage: monitor.faults.guard(stage, nodeid)
        )
        stays = investigation.add_run(arrays, monitor.rungs(nodeid), monitor.threads)
        if stays:
            investigation.look()
        evidence = investigation.evidence()
        survivors = [
            evidence.survivors[index]
            for index in sorted(evidence.alive[0])
            if not _is_held_by_traceback(evidence.survivors[index])
        ]
        with monitor.faults.guard(ACCOUNT, nodeid):
            for survivor in survivors:
                reading, holder = survivor.reading, survivor.holder
                text = "" if holder is None else holder.text
                monitor.account.note(
                    owner_of(setup.place), reading.device, reading.storage_bytes, kept[reading.storage], text
                )
        history = self._histories.setdefault(setup.place, _History())
        history.add_run(survivors, [kept[survivor.reading.storage] for survivor in survivors])
        # An error and the frames of its traceback are a cycle, which may have held what was here.
        history.cycles = () if setup.failed or setup.outlived_failure else evidence.cycles
        self._record(setup, history)

    def _record(self, setup: FixtureSetup, history: _History) -> None:
        place, monitor = setup.place, self._monitor
        findings = judge(history.evidence(), setup.policy)
        # A fixture is never run again on purpose: what it leaves once is judged as retained.
        named = [
            dataclasses.replace(found, kind="retained") if found.kind == "unconfirmed" else found for found in findings
        ]
        verdict, reported = conclude(
            [described(found, "", monitor, _nodeid_of(setup)) for found in named], setup.policy
        )
        if reported:
            self.records[place] = FixtureRecord(
                name=place.name,
                scope=place.scope,
                baseid=place.baseid,
                findings=reported,
                file=place.file,
                line=place.line,
                worker=monitor.worker,
                allowed=setup.policy.allowed if verdict == "allowed" else None,
            )


class _History:
    """The set-ups of one fixture that have been finalised, as the runs of a test would be."""

    def __init__(self) -> None:
        self._survivors: list[Survivor] = []
        self._handles: list[StorageHandle] = []
        self._alive: list[frozenset[int]] = []
        self.cycles: tuple[Any, ...] = ()

    def add_run(self, survivors: list[Survivor], handles: list[StorageHandle]) -> None:
        run = len(self._alive)
        self._survivors += [survivor._replace(run=run) for survivor in survivors]
        self._handles += handles
        self._alive.append(frozenset(index for index, handle in enumerate(self._handles) if handle.alive()))

    def evidence(self) -> Evidence:
        return Evidence(tuple(self._survivors), tuple(self._alive), self.cycles)


def described(found: Finding, why: str, monitor: Monitor, nodeid: str) -> Finding:
    """The finding as it is reported; as the verdict left it where it cannot be described.

    Args:
        found: what was found.
        why: why the test was not run again to the end; empty where it was.
        monitor: shortens paths, and takes what goes wrong.
        nodeid: the test, or for a fixture ``baseid::name``.
    """
    from pytest_gpuleak.explain.annotate import for_the_reader

    with monitor.faults.guard(DESCRIBE, nodeid):
        return for_the_reader(found, why, monitor.shorten)
    return dataclasses.replace(found, why_unconfirmed=why or None) if found.kind == "unconfirmed" else found


def _nodeid_of(setup: FixtureSetup) -> str:
    return f"{setup.place.baseid}::{setup.place.name}"


def without_running_frames(evidence: Evidence) -> Evidence:
    """The evidence without what a frame that is running holds.

    The test is over: the frames that run are pytest's and its plugins', and what they hold (pytest-flaky the instance
    of a TestCase) goes when they return.
    """
    gone = {
        index
        for index, survivor in enumerate(evidence.survivors)
        if survivor.holder is not None and survivor.holder.kind == "frame"
    }
    return dataclasses.replace(evidence, alive=tuple(alive - gone for alive in evidence.alive)) if gone else evidence


def is_one_of_several_ranks() -> bool:
    """Whether this process is one rank of a distributed job: ranks run in step, and one alone would hang them."""
    world = os.environ.get("WORLD_SIZE", "")
    if world.isdigit() and int(world) > 1:
        return True
    distributed = torch_module("torch.distributed")
    return bool(distributed is not None and distributed.is_available() and distributed.is_initialized())


def _is_held_by_traceback(survivor: Survivor) -> bool:
    """A failed test's traceback may hold a fixture's value until pytest drops it: no fault of the fixture's."""
    return survivor.holder is not None and survivor.holder.kind == "traceback"
