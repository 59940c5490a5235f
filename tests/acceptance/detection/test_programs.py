"""Programs that a test compiles in each run are noted, where the framework counts them."""

from __future__ import annotations

import functools
import textwrap
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.adapters.registry import untracked_array_counts

if TYPE_CHECKING:
    from tests.conftest import Runner

FRAMEWORK = """
    import compiler
    from pytest_gpuleak.adapters.protocol import Framework
    from tests.support.standin import StandInArrays

    class Compiler(Framework):
        name = package = "compiler"
        arrays = StandInArrays()

        def program_names(self):
            return [program.name for program in compiler.programs]

        def program_count(self):
            if compiler.broken:
                raise RuntimeError("no count")
            return len(compiler.programs)

    def pytest_gpuleak_arrays(config):
        return [Compiler()]
"""
COMPILER = """
    import weakref

    programs = weakref.WeakSet()
    broken = False

    class Program:
        def __init__(self, name, size=0):
            self.name = name
            self.code = bytearray(size)
            programs.add(self)
"""
SUITE = """
    import compiler

    KEPT, ONCE = [], {}

    def test_compiles_in_each_run():
        KEPT.append(compiler.Program("step"))

    def test_compiles_once():
        ONCE.setdefault("program", None) or ONCE.update(program=compiler.Program("once"))

    def test_drops_what_it_compiles():
        compiler.Program("dropped")

    def test_drops_a_program_in_a_cycle():
        program = compiler.Program("dropped")
        program.itself = program

    def test_compiles_nothing():
        pass

    def test_compiles_more():
        KEPT.append(compiler.Program("step"))
        KEPT.append(compiler.Program("loss"))
"""


@pytest.fixture
def start(run: Runner, pytester: pytest.Pytester) -> Runner:
    """As `run`, with the framework, in a process of its own: a small heap, which is walked several times."""
    pytester.makepyfile(compiler=textwrap.dedent(COMPILER))
    pytester.makeconftest(textwrap.dedent(FRAMEWORK))
    return functools.partial(run, apart=True)


def test_a_program_more_in_each_run_is_noted(start: Runner) -> None:
    found = start(SUITE)
    assert found.result.ret == 0
    assert found.verdicts == {
        "test_compiles_in_each_run": "noted",
        "test_compiles_once": "clean",
        "test_drops_what_it_compiles": "clean",
        "test_drops_a_program_in_a_cycle": "clean",
        "test_compiles_nothing": "clean",
        "test_compiles_more": "noted",
    }
    finding = found.finding("test_compiles_more")
    assert (finding["kind"], finding["failed"], finding["count"]) == ("recompiled", False, 2)
    assert {part["text"] for part in finding["contributions"]} == {"step", "loss"}
    assert found.tests["test_drops_a_program_in_a_cycle"]["suspect_s"] == {}  # a young collection has freed it


def test_a_framework_that_cannot_count_costs_nothing(start: Runner) -> None:
    found = start("import compiler\ncompiler.broken = True\ndef test_it(): compiler.Program('x')\n")
    assert (found.verdicts, found.result.ret) == ({"test_it": "clean"}, 0)


MEMORY = """
    import compiler, numpy

    KEPT, ARRAYS, MIB = [], [], 2**20

    def test_code_of_usual_size():
        KEPT.extend(compiler.Program("step", 3 * MIB // 2) for _ in range(10))

    def test_code_that_is_too_large():
        KEPT.append(compiler.Program("step", 16 * MIB))

    def test_an_array_beside_a_first_compilation():
        if len(KEPT) < 100:
            KEPT.extend(compiler.Program("once", MIB) for _ in range(100 - len(KEPT)))
        ARRAYS.append(numpy.ones(MIB // 8))
"""


@pytest.mark.usefixtures("cold")
def test_memory_of_programs_is_no_growth_of_the_host(start: Runner) -> None:
    pytest.importorskip("numpy")
    tests = start(MEMORY).tests
    found = {name: {finding["kind"] for finding in test["findings"]} for name, test in tests.items()}
    assert found == {
        "test_code_of_usual_size": {"recompiled"},
        "test_code_that_is_too_large": {"host"},
        "test_an_array_beside_a_first_compilation": {"growing"},
    }
    assert tests["test_code_of_usual_size"]["verdict"] == "noted"
    assert tests["test_an_array_beside_a_first_compilation"]["findings"][0]["bytes_per_run"] == 2**20


CONSTANTS = """
    import compiler, numpy

    KEPT = []

    def test_programs_over_arrays():
        for _ in range(2):
            program = compiler.Program("branch", 400_000)
            program.constant = numpy.full((256, 256), 2.0)
            KEPT.append(program)
"""


@pytest.mark.usefixtures("cold")
def test_arrays_that_each_program_keeps_are_no_part_of_its_code(start: Runner) -> None:
    """Two programs are taken to need 2 MiB: in that the leak of jax 0.4.30's conditionals was lost."""
    pytest.importorskip("numpy")
    found = start(CONSTANTS)
    if not untracked_array_counts():
        pytest.skip("this Python makes NumPy's dtypes immortal: how many arrays there are is unknown")
    (finding,) = found.tests["test_programs_over_arrays"]["findings"]
    assert (finding["kind"], finding["bytes_per_run"]) == ("growing", 2**20)
    assert finding["holder"]["root"] == "test_it.KEPT"


AGAIN = """
    import compiler, pytest
    from tests.support.standin import Buffer

    KEPT, RUNS = [], []

    def leave_a_cycle():
        buffer = Buffer(100)
        buffer.itself = buffer

    @pytest.mark.parametrize("left", [int, leave_a_cycle])
    @pytest.mark.parametrize("number", range(3))
    def test_compiles(number, left):
        RUNS.append(left)
        KEPT.append(compiler.Program("step", 3 * 2**19))
        left()

    def test_was_run_again():
        assert RUNS.count(int) == RUNS.count(leave_a_cycle) == 6
"""


def test_what_programs_explain_is_run_again_and_noted_each_time(start: Runner) -> None:
    found = start(AGAIN)
    found.result.assert_outcomes(passed=7)
    for name in set(found.tests) - {"test_was_run_again"}:
        left = {"cycle"} if "leave_a_cycle" in name else set()
        assert {finding["kind"] for finding in found.tests[name]["findings"]} == {"recompiled", *left}, name
