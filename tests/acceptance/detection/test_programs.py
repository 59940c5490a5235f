"""Programs that a test compiles in each run are noted, where the framework counts them."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.adapters.registry import untracked_array_counts

if TYPE_CHECKING:
    from tests.conftest import Json, Runner

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


def start(run: Runner, pytester: pytest.Pytester, suite: str) -> dict[str, Json]:
    pytester.makepyfile(compiler=textwrap.dedent(COMPILER))
    pytester.makeconftest(textwrap.dedent(FRAMEWORK))
    found = run(suite, apart=True)
    assert found.result.ret == 0
    return found.tests


def test_a_program_more_in_each_run_is_noted(run: Runner, pytester: pytest.Pytester) -> None:
    tests = start(run, pytester, SUITE)
    assert {name: test["verdict"] for name, test in tests.items()} == {
        "test_compiles_in_each_run": "noted",
        "test_compiles_once": "clean",
        "test_drops_what_it_compiles": "clean",
        "test_drops_a_program_in_a_cycle": "clean",
        "test_compiles_nothing": "clean",
        "test_compiles_more": "noted",
    }
    (finding,) = tests["test_compiles_more"]["findings"]
    assert (finding["kind"], finding["failed"], finding["count"]) == ("recompiled", False, 2)
    assert {part["text"] for part in finding["contributions"]} == {"step", "loss"}
    assert tests["test_drops_a_program_in_a_cycle"]["suspect_s"] == {}  # a young collection has freed it


def test_a_framework_that_cannot_count_costs_nothing(run: Runner, pytester: pytest.Pytester) -> None:
    tests = start(run, pytester, "import compiler\ncompiler.broken = True\ndef test_it(): compiler.Program('x')\n")
    assert tests["test_it"]["verdict"] == "clean"


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
def test_memory_of_programs_is_no_growth_of_the_host(run: Runner, pytester: pytest.Pytester) -> None:
    pytest.importorskip("numpy")
    pytester.makepyfile(compiler=textwrap.dedent(COMPILER))
    pytester.makeconftest(textwrap.dedent(FRAMEWORK))
    tests = run(MEMORY, apart=True).tests  # a small heap: it is walked several times
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
def test_arrays_that_each_program_keeps_are_no_part_of_its_code(run: Runner, pytester: pytest.Pytester) -> None:
    """Two programs are taken to need 2 MiB: in that the leak of jax 0.4.30's conditionals was lost."""
    pytest.importorskip("numpy")
    pytester.makepyfile(compiler=textwrap.dedent(COMPILER))
    pytester.makeconftest(textwrap.dedent(FRAMEWORK))
    found = run(CONSTANTS, apart=True)
    if not untracked_array_counts():
        pytest.skip("this Python makes NumPy's dtypes immortal: how many arrays there are is unknown")
    (finding,) = found.tests["test_programs_over_arrays"]["findings"]
    assert (finding["kind"], finding["bytes_per_run"]) == ("growing", 2**20)
    assert finding["holder"]["root"] == "test_it.KEPT"


CYCLES = """
    import compiler, pytest
    from tests.support.standin import Buffer as Plain

    class Buffer(Plain):
        def keep_itself(self):
            self.itself = self

    KEPT, RUNS = [], []
"""


@pytest.mark.parametrize(
    ("left", "kinds"), [("pass", {"recompiled"}), ("Buffer(100).keep_itself()", {"cycle", "recompiled"})]
)
def test_what_programs_explain_is_run_again_and_noted_each_time(
    run: Runner, pytester: pytest.Pytester, left: str, kinds: set[str]
) -> None:
    pytester.makepyfile(compiler=textwrap.dedent(COMPILER))
    pytester.makeconftest(textwrap.dedent(FRAMEWORK))
    found = run(
        f"""{CYCLES}
    @pytest.mark.parametrize("number", range(3))
    def test_compiles(number):
        RUNS.append("compiles")
        KEPT.append(compiler.Program("step", 3 * 2**19))
        {left}

    def test_was_run_again():
        assert len(RUNS) == 6
    """
    )
    found.result.assert_outcomes(passed=4)
    for number in range(3):
        assert {finding["kind"] for finding in found.tests[f"test_compiles[{number}]"]["findings"]} == kinds
