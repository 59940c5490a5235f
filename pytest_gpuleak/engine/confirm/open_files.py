"""Find the files of safetensors that each run of a suspect opens and keeps open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.registry import mapped_files, open_file_class
from pytest_gpuleak.engine.confirm.reruns import AddedByReruns
from pytest_gpuleak.engine.judge.arrays import judge_added
from pytest_gpuleak.engine.limits import OPEN_FILES_STEPS
from pytest_gpuleak.engine.survivors import Survivors
from pytest_gpuleak.heap.collector import collect
from pytest_gpuleak.model.findings import Holder
from pytest_gpuleak.model.readings import DISK, ArrayReading

if TYPE_CHECKING:
    from pytest_gpuleak.engine.subject import Suspect
    from pytest_gpuleak.model.findings import Finding

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
