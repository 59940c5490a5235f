"""What a test's runs have compiled: how much of the host's growth it explains."""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.engine.confirm.added import ProgramEvidence
from pytest_gpuleak.engine.limits import INSTRUCTION_BYTES, PROGRAM_BYTES
from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
from pytest_gpuleak.engine.stages import Unguarded
from pytest_gpuleak.engine.subject import FunctionSubject, Suspect
from pytest_gpuleak.model.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Iterator


class Evidence:
    """The evidence of a test in a session that knows of one program."""

    def __init__(self) -> None:
        self.names = ["step"]
        self.knowledge = SessionKnowledge("/project", Unguarded())
        self.knowledge.programs = 1
        self.instructions = {"model": 1000}
        frameworks = types.SimpleNamespace(
            program_names=lambda: self.names,
            programs_alive=lambda: len(self.names),
            program_instructions=lambda newest: sum(self.instructions.get(name, 0) * newest[name] for name in newest),
        )
        detector = types.SimpleNamespace(whole_heap=self._whole_heap)
        tracker: Any = types.SimpleNamespace(frameworks=frameworks, detector=detector)
        self.garbage: list[str] = []
        self.collected = 0
        self.evidence = ProgramEvidence(Suspect(tracker, self.knowledge, FunctionSubject(), Policy()))

    @contextlib.contextmanager
    def _whole_heap(self) -> Iterator[None]:
        """Free what is garbage, as the collection would that is about to come."""
        self.collected += 1
        for name in self.garbage:
            self.names.remove(name)
        self.garbage.clear()
        yield

    def run_again(self, *added: str) -> bool:
        self.evidence.expect_run()
        self.names += added
        return self.evidence.add_run()


def test_what_a_test_compiled_is_a_reason_to_run_it_again() -> None:
    one, other = Evidence(), Evidence()
    one.names = ["step", "loss"]
    for evidence in (one, other):
        evidence.evidence.end_first_run()
    assert (one.evidence.wanted, one.evidence.first_run_bytes) == (True, PROGRAM_BYTES)
    assert (other.evidence.wanted, other.evidence.first_run_bytes) == (False, 0)


def test_a_re_run_that_compiles_is_told_without_what_is_garbage_then() -> None:
    one = Evidence()
    assert not one.run_again()
    assert one.collected == 0
    assert one.run_again("loss")
    assert (one.evidence.last_run_bytes, one.collected) == (PROGRAM_BYTES, 1)
    one.garbage = ["eval"]
    assert one.run_again("loss", "eval")
    assert (one.evidence.last_run_bytes, one.knowledge.programs) == (PROGRAM_BYTES, 3)
    assert not one.evidence.grows, "the first re-run has added nothing"
    assert one.evidence.judge() == ()


def test_what_each_re_run_compiles_is_a_note() -> None:
    one = Evidence()
    for number in range(2):
        one.run_again(f"loss {number}")
    assert one.evidence.grows
    assert [found.count for found in one.evidence.judge()] == [1]


def test_a_program_explains_more_growth_the_more_instructions_it_has() -> None:
    one = Evidence()
    for _ in range(2):
        one.run_again("loss", "model", "model")
        assert one.evidence.last_run_bytes == 3 * PROGRAM_BYTES + 2 * 1000 * INSTRUCTION_BYTES
    one.run_again()
    assert one.evidence.last_run_bytes == 0


def test_what_only_the_re_run_compiles_that_sets_fixtures_up_does_not_grow() -> None:
    setup = Evidence()
    setup.run_again("of the class")
    setup.run_again()
    assert not setup.evidence.grows
