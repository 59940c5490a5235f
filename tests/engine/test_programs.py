"""How long programs are looked for: a suite in which nearly every test compiles is sampled."""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.engine.confirm.program_evidence import ProgramEvidence
from pytest_gpuleak.engine.program_growth import PROGRAM_BYTES
from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
from pytest_gpuleak.engine.stages import Unguarded
from pytest_gpuleak.model.readings import HOST, Growth

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAP = HOST, "heap"


class Evidence:
    """The evidence of a test that takes a tenth of a second, in a session that knows of one program."""

    def __init__(self, spent_s: float) -> None:
        self.names = ["step"]
        self.knowledge = SessionKnowledge("/project", Unguarded())
        self.knowledge.programs = 1
        self.knowledge.unexplained_growth_s = spent_s
        frameworks = types.SimpleNamespace(program_names=lambda: self.names, programs_alive=lambda: len(self.names))
        detector = types.SimpleNamespace(whole_heap=self._whole_heap)
        tracker: Any = types.SimpleNamespace(frameworks=frameworks, detector=detector)
        self.garbage: list[str] = []
        self.collected = 0
        subject: Any = types.SimpleNamespace(expected_s=0.1)
        self.evidence = ProgramEvidence(tracker, self.knowledge, subject)

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


@pytest.mark.parametrize(
    ("growth", "explained"),
    [
        (Growth({HEAP: 2 * PROGRAM_BYTES}), True),
        (Growth({HEAP: 2 * PROGRAM_BYTES + 1}), False),
        (Growth({HEAP: 2 * PROGRAM_BYTES + 1}, imported=1), True),
        (Growth({HEAP: PROGRAM_BYTES, ("cuda:0", "allocated"): 512}), False),
    ],
)
def test_programs_explain_the_hosts_growth_once_the_time_is_spent(growth: Growth, explained: bool) -> None:
    one = Evidence(spent_s=1e6)
    one.names = ["step", "loss", "loss"]
    assert one.evidence.explain(growth) is explained
    assert one.knowledge.programs == (3 if explained else 1)


def test_nothing_is_explained_without_a_new_program_or_while_there_is_time() -> None:
    assert not Evidence(spent_s=1e6).evidence.explain(Growth({HEAP: PROGRAM_BYTES}))
    early = Evidence(spent_s=0.0)
    early.names = ["step", "loss"]
    assert not early.evidence.explain(Growth({HEAP: PROGRAM_BYTES}))


def test_a_slow_tests_programs_are_not_looked_for_again_once_the_time_is_spent() -> None:
    early, late = Evidence(spent_s=0.0), Evidence(spent_s=1e6)
    for one in (early, late):
        one.names = ["step", "loss"]
        one.evidence.end_first_run()
    assert (early.evidence.wanted, late.evidence.wanted) == (True, False)
    assert early.evidence.first_run_bytes == late.evidence.first_run_bytes == PROGRAM_BYTES


def test_the_heap_is_collected_once_where_somebody_asks_what_a_run_has_compiled() -> None:
    one = Evidence(spent_s=0.0)
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
    one = Evidence(spent_s=0.0)
    one.run_again("loss")
    small = one.evidence.explained(Growth({HEAP: PROGRAM_BYTES}), 0, lambda: Growth({}))
    assert (small.compiled, one.collected) == (PROGRAM_BYTES, 0)
    one.garbage = ["loss"]
    large = one.evidence.explained(Growth({HEAP: 3 * PROGRAM_BYTES}), 0, lambda: Growth({HEAP: 2 * PROGRAM_BYTES}))
    assert (large.compiled, large.bytes, one.collected) == (0, {HEAP: 2 * PROGRAM_BYTES}, 1)
