"""Judge higher-scoped fixtures by what is left of each setup after its teardown. Loaded with the first suspect."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.bulk import storages_of
from pytest_gpuleak.adapters.storages import find_storages
from pytest_gpuleak.engine.describe import FIXTURE_ALONE, described, with_reasons
from pytest_gpuleak.engine.holders import Holders
from pytest_gpuleak.engine.judge.arrays import conclude, judge
from pytest_gpuleak.engine.judge.processes import KEPT_BY, judge_processes
from pytest_gpuleak.engine.left_behind import owner_of
from pytest_gpuleak.engine.runs import Runs
from pytest_gpuleak.engine.settle.steps import settle_steps_of
from pytest_gpuleak.engine.stages import ACCOUNT, EXPLAIN, FIXTURES
from pytest_gpuleak.model.evidence import Evidence, Survivor
from pytest_gpuleak.model.findings import FixtureRecord, Judged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuleak.adapters.protocol import SettleStep, StorageHandle
    from pytest_gpuleak.engine.detect.fixture_ownership import OwnedSetup
    from pytest_gpuleak.engine.detect.processes import LeftByFixture
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.engine.stages import Guard, Stage
    from pytest_gpuleak.model.findings import Finding, Holder
    from pytest_gpuleak.model.outcomes import FixturePlace
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.model.source_files import Origin


class FixtureCheck:
    """Check fixtures, without running any again. `settle_steps` gives the user's steps for ``baseid::name``."""

    def __init__(
        self, tracker: RunTracker, knowledge: SessionKnowledge, settle_steps: Callable[[str], Sequence[SettleStep]]
    ) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._settle_steps = settle_steps
        self._histories: dict[FixturePlace, _History] = {}
        self._policies: dict[FixturePlace, Policy] = {}
        self._of_arrays: dict[FixturePlace, list[Finding]] = {}
        self._of_processes: dict[FixturePlace, list[Finding]] = defaultdict(list)
        self._of_helpers: dict[FixturePlace, list[Finding]] = {}
        self._left_before: set[tuple[FixturePlace, str]] = set()

    @property
    def records(self) -> list[FixtureRecord]:
        """Return the fixtures that left something, each once."""
        return [self._record(place) for place in {**self._of_arrays, **self._of_processes, **self._of_helpers}]

    def check(self, setups: list[OwnedSetup]) -> None:
        """Judge setups that were torn down; where the memory is gone, without walking the heap."""
        for setup in setups:
            with self._guard(FIXTURES, setup.place):
                history = self._histories.get(setup.place)
                if setup.holds_memory():
                    self._check_arrays(setup)
                elif history is not None:
                    history.add_run([], [])
                    self._judge_arrays(setup, history)

    def check_processes(self, left: LeftByFixture) -> None:
        """Judge the processes that a fixture has left. Call it at once: pytest drops the fixture's value soon."""
        with self._guard(FIXTURES, left.place):
            self._judge_processes(*left)

    def take_findings(self, place: FixturePlace, policy: Policy, findings: list[Finding]) -> None:
        """Take what a fixture has left in helper processes, as their agents have judged it, in place of what was taken before."""
        self._policies[place] = policy
        self._of_helpers[place] = findings

    def _guard(self, stage: Stage, place: FixturePlace) -> Guard:
        return self._knowledge.safeguards.guard(stage, _nodeid_of(place))

    def _check_arrays(self, setup: OwnedSetup) -> None:
        tracker, place = self._tracker, setup.place
        nodeid = _nodeid_of(place)
        kept = {held.handle.storage: held for held in setup.held if held.handle.alive()}
        arrays = tracker.detector.find(setup.identities)
        keys = storages_of(arrays, tracker.frameworks.arrays)
        arrays = [array for array in arrays if keys[id(array)] in kept]
        outlived = kept.keys() - keys.values()
        if outlived:
            arrays += find_storages(outlived, tracker.frameworks.storages)

        def guard(stage: Stage) -> Guard:
            return self._guard(stage, place)

        lines: dict[int, Origin] = {}
        with guard(EXPLAIN):
            for setup_lines in tracker.frameworks.setup_lines():
                lines |= setup_lines.lines(arrays, self._knowledge.is_user_file)
        runs = Runs(tracker, guard)
        runs.end_run(arrays, self._knowledge.is_user_file, ())
        steps = settle_steps_of(
            self._knowledge.safeguards, tracker.frameworks, self._settle_steps(nodeid), tracker.threads, lambda _: True
        )
        runs.settle(steps)
        holders = Holders(tracker, self._knowledge, runs, guard)
        if runs.living():
            holders.search()
        evidence = runs.evidence(graphs=holders.graphs)
        alive = [evidence.survivors[index] for index in sorted(evidence.alive[0])]
        survivors = [
            survivor._replace(created=survivor.created or lines.get(survivor.reading.identity))
            for survivor in alive
            if not _is_held_by_traceback(survivor)
        ]
        with self._guard(ACCOUNT, place):
            for survivor in survivors:
                text = "" if survivor.holder is None else survivor.holder.text
                self._knowledge.left_behind.note(owner_of(place), kept[survivor.reading.storage], text)
        history = self._histories.setdefault(place, _History())
        history.add_run(survivors, [kept[survivor.reading.storage].handle for survivor in survivors])
        # An error and the frames of its traceback form a cycle, which may have held these arrays.
        history.cycles = () if setup.failed or setup.outlived_failure else evidence.cycles
        self._judge_arrays(setup, history)

    def _judge_arrays(self, setup: OwnedSetup, history: _History) -> None:
        findings = judge(history.evidence(), setup.policy)
        # A fixture is never run again on purpose: what it leaves once is judged as retained.
        named = [dataclasses.replace(one, kind="retained") if one.kind == "unconfirmed" else one for one in findings]
        nodeid = _nodeid_of(setup.place)
        how = Judged(history.count, "", why_not_again=FIXTURE_ALONE)
        if named:
            self._policies[setup.place] = setup.policy
            self._of_arrays[setup.place] = [described(one, how, self._knowledge, nodeid) for one in named]

    def _judge_processes(self, place: FixturePlace, policy: Policy, left: Sequence[Any]) -> None:
        """Judge what a setup has left running: one helper that a module keeps may stay, a second one is growth."""
        from pytest_gpuleak.explain.process_handles import holders_of

        holders: Mapping[int, Holder | None] = {}
        with self._guard(EXPLAIN, place):
            holders = holders_of({process.pid for process in left}, but=("fixture",))
        how = Judged(1, "", why_not_again=FIXTURE_ALONE)
        self._policies[place] = policy
        for process in left:
            holder, key = holders.get(process.pid), (place, process.program)
            kept = holder is not None and holder.kind in KEPT_BY and key not in self._left_before
            self._left_before.add(key)
            fails_from = policy.process_bytes if kept else 0
            found = judge_processes([process], self._tracker.driver.read(), holders, fails_from=fails_from)
            self._of_processes[place] += [with_reasons(one, how) for one in found]

    def _record(self, place: FixturePlace) -> FixtureRecord:
        policy = self._policies[place]
        found = (*self._of_arrays.get(place, ()), *self._of_processes.get(place, ()), *self._of_helpers.get(place, ()))
        verdict, reported = conclude(found, policy)
        return FixtureRecord(
            name=place.name,
            scope=place.scope,
            baseid=place.baseid,
            findings=reported,
            file=place.file,
            line=place.line,
            worker=self._knowledge.worker,
            allowed=policy.allowed if verdict == "allowed" else None,
        )


class _History:
    """Collect a fixture's finished setups, as if they were the runs of a test."""

    def __init__(self) -> None:
        self._survivors: list[Survivor] = []
        self._handles: list[StorageHandle] = []
        self._alive: list[frozenset[int]] = []
        self.cycles: tuple[Any, ...] = ()

    @property
    def count(self) -> int:
        return len(self._alive)

    def add_run(self, survivors: list[Survivor], handles: list[StorageHandle]) -> None:
        run = len(self._alive)
        self._survivors += [survivor._replace(run=run) for survivor in survivors]
        self._handles += handles
        self._alive.append(frozenset(index for index, handle in enumerate(self._handles) if handle.alive()))

    def evidence(self) -> Evidence:
        return Evidence(tuple(self._survivors), tuple(self._alive), self.cycles)


def _nodeid_of(place: FixturePlace) -> str:
    return f"{place.baseid}::{place.name}"


def _is_held_by_traceback(survivor: Survivor) -> bool:
    """Tell whether a failed test's traceback holds it, until pytest drops that: not the fixture's fault."""
    return survivor.holder is not None and survivor.holder.kind == "traceback"
