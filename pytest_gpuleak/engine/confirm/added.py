"""Collect what each run of a suspect adds that is counted or listed: open files, processes, programs."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pytest_gpuleak.adapters.registry import mapped_files, open_file_class
from pytest_gpuleak.engine.judge.arrays import judge_added
from pytest_gpuleak.engine.limits import INSTRUCTION_BYTES, OPEN_FILES_STEPS, PROGRAM_BYTES
from pytest_gpuleak.engine.stages import EXPLAIN
from pytest_gpuleak.engine.survivors import Survivors
from pytest_gpuleak.heap.collector import collect, collect_young
from pytest_gpuleak.model.findings import Contribution, Finding, Holder
from pytest_gpuleak.model.fingerprint import fingerprint
from pytest_gpuleak.model.readings import DISK, ArrayReading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpuleak.adapters.processes.facts import LeftProcess
    from pytest_gpuleak.engine.subject import Suspect
    from pytest_gpuleak.model.source_files import Origin


_Things = TypeVar("_Things")


class AddedByReruns(Generic[_Things]):
    """Collect what each re-run has added: of one kind, which is counted or listed."""

    def __init__(self) -> None:
        self._added: list[_Things] = []

    @property
    def grows(self) -> bool:
        """Whether each re-run so far has added something."""
        return bool(self._added) and all(self._added)

    def forget_reruns(self) -> None:
        """Forget all re-runs, because a re-run could not be recorded to its end."""
        self._added.clear()


_NOT_MET = Holder("unknown", "", "unknown: the search for the open file met its limit of objects")

MAX_FILES_NAMED: Final = 3
"""Files that a finding names, where it is not known which of them an object maps."""


class OpenFiles(AddedByReruns[list[tuple[str, int]]]):
    """Collect which maps of files the re-runs of a suspect have added, and which objects keep them."""

    def __init__(self, suspect: Suspect) -> None:
        super().__init__()
        self._suspect = suspect
        self._before: dict[int, tuple[str, int]] = {}
        self._survivors = Survivors()
        self.wanted = suspect.tracker.opened_files
        """Whether the first run has left a file open."""

    def expect_run(self) -> None:
        """Note before a re-run which files are mapped."""
        if self.wanted:
            self._before = mapped_files()

    def add_run(self) -> None:
        """Note what the re-run has added, less what a collection frees, and look for the objects."""
        if not self.wanted:
            return
        if len(mapped_files()) > len(self._before):
            with self._suspect.tracker.detector.whole_heap():
                collect(2)
        after = mapped_files()
        added = [file for start, file in after.items() if self._before.get(start) != file]
        self._added.append(added if len(after) > len(self._before) else [])
        self._survivors = Survivors()
        if self.grows:
            self._explain(added)

    def judge(self) -> tuple[Finding, ...]:
        """Return the findings on the files that the last re-run has left open."""
        survivors = self._survivors.all()
        if not (survivors and self.grows):
            return ()
        return judge_added(survivors, self._suspect.policy)

    def _explain(self, added: list[tuple[str, int]]) -> None:
        """Find the objects, of which the last in their container are the newest, and note who holds them."""
        from pytest_gpuleak.explain.untracked_arrays import explain_arrays
        from pytest_gpuleak.heap.budget import Budget
        from pytest_gpuleak.heap.collector import PausedCollector
        from pytest_gpuleak.heap.type_sieve import TypeSieve
        from pytest_gpuleak.heap.walk import HeapWalk

        kind = open_file_class()
        if kind is None:
            return
        found: dict[int, object] = {}
        with self._suspect.tracker.detector.whole_heap(), PausedCollector():
            sieve = TypeSieve(lambda one: one is kind)
            budget = Budget(OPEN_FILES_STEPS)
            for batch in HeapWalk(budget, ignore=(id(found),)).batches():
                found.update((id(value), value) for value in sieve.pick(batch.objects))
            objects = list(found.values())[-len(added) :]
            found.clear()
            why = explain_arrays(objects, (), self._suspect.tracker.frameworks.reference_finders())
            paths = list(dict.fromkeys(path for path, _ in added))[:MAX_FILES_NAMED]
            size = min(size for _, size in added)
            run = len(self._added)
            named = ((_reading(identity, " or ".join(paths), size), one) for identity, one in why.items())
            self._survivors = Survivors.of_run(run, named)
            if not why and budget.spent:
                # A large heap must not hide the leak: the list of maps has told it.
                left = [self._survivors.index_of(run, _reading(index, *file)) for index, file in enumerate(added)]
                self._survivors.note_unexplained(left, _NOT_MET)
            objects.clear()


def _reading(identity: int, path: str, size: int) -> ArrayReading:
    return ArrayReading(identity, (), "safetensors", DISK, size, identity, size, framework="safetensors", file=path)


class ProcessEvidence(AddedByReruns["list[LeftProcess]"]):
    """Collect what each run left running. Where the first run left nothing, re-runs are not examined."""

    def __init__(self, suspect: Suspect, first: Sequence[LeftProcess]) -> None:
        super().__init__()
        self._suspect = suspect
        self._first = list(first)
        self.wanted = bool(first)
        """Whether the first run left a process."""
        self._begins = self._is_anew = False
        """Whether the first run that counts is a re-run: what it has left goes with wider fixtures, as the first one's did."""
        self._running = list(first)
        self._pools: set[int] = {process.pool_id for process in first}
        self._holders: Mapping[int, Holder | None] = {}
        self._origins: dict[int, Origin] = {}

    def begin_anew(self) -> None:
        """Take this run for the first, unless that has left one: it has set up wider fixtures that stay."""
        self._begins = self._is_anew = not self.wanted

    def expect_run(self) -> None:
        """Note before a re-run which processes run, since they are not the re-run's."""
        if self.wanted or self._suspect.subject.rebuilds:
            self._suspect.tracker.processes.begin()

    def add_run(self, *, traced: bool = False) -> None:
        """Note what a re-run has left running, less what has ended meanwhile. One that is `traced` only tells lines."""
        processes = self._suspect.tracker.processes
        if self._begins:
            self._begins = False
            self._first = processes.left() if processes.suspects() else []
            self.wanted, self._running = bool(self._first), list(self._first)
            self._pools = {process.pool_id for process in self._first}
            return
        if not self.wanted:
            return
        from pytest_gpuleak.adapters.processes.facts import is_running

        left = processes.left()
        before, self._running = self._running, [process for process in self._running if is_running(process)]
        ended = [process for process in before if process not in self._running]
        # A pool starts workers when it needs them, up to its size: another worker of the same pool is no growth.
        new = [process for process in left if not process.pool_id or process.pool_id not in self._pools]
        self._running += left
        if not traced:
            replaced = _most_similar(new, ended)  # a pool replaces its workers
            self._added.append([process for process in new if process not in replaced])
        elif self._added:
            for process, like in _most_similar(new, self._added[0]).items():
                if process.pid in self._origins:
                    self._origins[like.pid] = self._origins[process.pid]

    @contextlib.contextmanager
    def noting_starts(self) -> Iterator[None]:
        """Note the lines that start processes, if the first run left any."""
        if not self.wanted:
            yield
            return
        from pytest_gpuleak.explain.process_handles import noting_starts

        with noting_starts(self._suspect.knowledge.is_user_file) as origins:
            try:
                yield
            finally:
                self._origins.update(origins)

    def explain(self) -> None:
        """Find who holds the processes."""
        if self.wanted:
            from pytest_gpuleak.explain.process_handles import holders_of

            with self._suspect.guard(EXPLAIN):
                self._holders = holders_of({process.pid for process in self._running})

    def judge(self, why: str) -> tuple[Finding, ...]:
        """Return one finding for each process; `why` tells why no re-run ended."""
        if not self.wanted:
            return ()
        from pytest_gpuleak.engine.judge.processes import LeftAgain, judge_processes, judge_unconfirmed

        readings = self._suspect.tracker.driver.read()
        if not self._added and self._is_anew:
            return ()
        if not self._added:
            return judge_unconfirmed(self._first, self._suspect.policy, readings, self._holders, why)
        grown = _most_similar(self._first, self._added[0]) if self.grows else {}
        more = {process.pid: another for process, another in grown.items()}
        staying = _staying([process for process in self._first if process.pid not in more], self._running)
        # The re-run left more than the first run had: judge what the re-run added.
        growing = [process for process in self._first if process.pid in more] or (self._added[0] if self.grows else [])
        return (
            *judge_processes(growing, readings, self._holders, again=LeftAgain(more, self._origins)),
            *judge_processes(staying, readings, self._holders, fails_from=self._suspect.policy.process_bytes),
        )


def _staying(first: Sequence[LeftProcess], running: Sequence[LeftProcess]) -> list[LeftProcess]:
    ended = [process for process in first if process not in running]
    others = [process for process in running if process not in first]
    heirs = _most_similar(others, ended)
    return [process for process in first if process in running] + list(heirs)


def _most_similar(processes: Sequence[LeftProcess], others: Sequence[LeftProcess]) -> dict[LeftProcess, LeftProcess]:
    """Pair each of `others` with the most similar process: the same command, else the same program, else any."""
    pairs: dict[LeftProcess, LeftProcess] = {}
    waiting = list(others)
    for alike in (_command, _program, _anything):
        left = []
        for other in waiting:
            like = next((one for one in processes if one not in pairs and alike(one) == alike(other)), None)
            if like is None:
                left.append(other)
            else:
                pairs[like] = other
        waiting = left
    return pairs


def _command(process: LeftProcess) -> str:
    return re.sub(r"\d+", "#", process.command)


def _program(process: LeftProcess) -> str:
    return process.program


def _anything(_process: LeftProcess) -> str:
    return ""


class ProgramEvidence(AddedByReruns[Counter[str]]):
    """Collect the programs that a suspect's re-runs have compiled: what the first run has compiled is found again."""

    def __init__(self, suspect: Suspect) -> None:
        super().__init__()
        self._suspect = suspect
        self._before: Counter[str] = Counter()
        self.first_run_bytes = 0
        """Host bytes of the programs that the first run has compiled and that are still there."""
        self.last_run_bytes = 0
        """Host bytes of the programs that the last re-run has compiled and that are still there."""

    @property
    def wanted(self) -> bool:
        """Whether the first run has compiled, so that a re-run tells whether each run does."""
        return bool(self.first_run_bytes)

    def end_first_run(self) -> None:
        """Compare the number of programs with the last one known."""
        count = self._suspect.tracker.frameworks.programs_alive()
        self.first_run_bytes = max(count - self._suspect.knowledge.programs, 0) * PROGRAM_BYTES
        self._suspect.knowledge.programs = count

    def expect_run(self) -> None:
        """Note before a re-run which programs there are."""
        self._before = Counter(self._names())

    def add_run(self) -> bool:
        """Note what the re-run has added, less garbage; return whether the whole heap was collected for that."""
        if self._new():
            collect_young()
        added = self._new()
        collected = bool(added)
        if collected:
            with self._suspect.tracker.detector.whole_heap():
                collect(2)
            added = self._new()
        frameworks = self._suspect.tracker.frameworks
        instructions = frameworks.program_instructions(added) if added else 0
        self.last_run_bytes = added.total() * PROGRAM_BYTES + instructions * INSTRUCTION_BYTES
        self._added.append(added)
        self._suspect.knowledge.programs = frameworks.programs_alive()
        return collected

    def judge(self) -> tuple[Finding, ...]:
        """Return a finding, which fails nothing, if every re-run has compiled more."""
        return (_finding(self._added[-1]),) if self.grows else ()

    def _new(self) -> Counter[str]:
        return Counter(self._names()) - self._before

    def _names(self) -> list[str]:
        return self._suspect.tracker.frameworks.program_names()


MAX_SHOWN = 20
"""Programs that are listed."""

HINT = (
    "Compile a function once, at module level, and call it with what compares equal from run to run: arrays in place of "
    "Python numbers, static arguments with `__eq__` and `__hash__` by value."
)


def _finding(added: Counter[str]) -> Finding:
    parts = (Contribution(name, 0, count) for name, count in added.most_common(MAX_SHOWN))
    return Finding(
        kind="recompiled",
        failed=False,
        device="cpu",
        count=sum(added.values()),
        bytes=0,
        bytes_per_run=0,
        fingerprint=fingerprint("recompiled", None),
        metric="programs",
        contributions=tuple(parts),
        hint=HINT,
    )
