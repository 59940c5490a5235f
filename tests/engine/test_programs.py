"""What a test's runs have compiled: how much of the host's growth it explains, and when the heap is collected for it."""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.engine.confirm.program_evidence import ProgramEvidence
from pytest_gpuleak.engine.limits import PROGRAM_BYTES
from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
from pytest_gpuleak.engine.stages import Unguarded
from pytest_gpuleak.model.readings import HOST, Growth

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAP = HOST, "heap"


class Evidence:
    """The evidence of a test in a session that knows of one program."""

    def __init__(self) -> None:
        self.names = ["step"]
        self.knowledge = SessionKnowledge("/project", Unguarded())
        self.knowledge.programs = 1
        frameworks = types.SimpleNamespace(program_names=lambda: self.names, programs_alive=lambda: len(self.names))
        detector = types.SimpleNamespace(whole_heap=self._whole_heap)
        tracker: Any = types.SimpleNamespace(frameworks=frameworks, detector=detector)
        self.garbage: list[str] = []
        self.collected = 0
        self.evidence = ProgramEvidence(tracker, self.knowledge)

    @contextlib.contextmanager
    def _whole_heap(self) -> Iterator[None]:
        """Free what is garbage, as the collection would that is about to come."""
        self.collected += 1
        for name in self.garbage:
            self.names.remove(name)
        self.garbage.clear()
        yield

    def run_again(self, *added: str) -> None:
        self.evidence.expect_run()
        self.names += added
        self.evidence.add_run()


def test_what_a_test_compiled_is_a_reason_to_run_it_again() -> None:
    one, other = Evidence(), Evidence()
    one.names = ["step", "loss"]
    for evidence in (one, other):
        evidence.evidence.end_first_run()
    assert (one.evidence.wanted, one.evidence.first_run_bytes) == (True, PROGRAM_BYTES)
    assert (other.evidence.wanted, other.evidence.first_run_bytes) == (False, 0)


def test_the_heap_is_collected_once_where_somebody_asks_what_a_run_has_compiled() -> None:
    one = Evidence()
    one.run_again("loss")
    assert one.collected == 0
    assert one.evidence.grows
    assert [found.count for found in one.evidence.judge()] == [1]
    assert one.collected == 1
    one.run_again("loss", "eval")
    one.garbage = ["loss", "eval"]
    assert one.evidence.judge() == ()
    assert one.knowledge.programs == 2


def test_growth_beside_programs_is_read_again_without_those_that_are_garbage() -> None:
    one = Evidence()
    one.run_again("loss")
    small = one.evidence.explained(Growth({HEAP: PROGRAM_BYTES}), 0, lambda: Growth({}))
    assert (small.compiled, one.collected) == (PROGRAM_BYTES, 0)
    one.garbage = ["loss"]
    large = one.evidence.explained(Growth({HEAP: 3 * PROGRAM_BYTES}), 0, lambda: Growth({HEAP: 2 * PROGRAM_BYTES}))
    assert (large.compiled, large.bytes, one.collected) == (0, {HEAP: 2 * PROGRAM_BYTES}, 1)
