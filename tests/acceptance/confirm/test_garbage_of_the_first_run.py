"""Garbage of the first run that the re-run frees is not taken for replaced: it would hide a leak of the same test.

The test collects garbage itself, as many do, and what it leaves in a cycle with an older object waits for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

pytestmark = pytest.mark.newest

HEAD = """
    import gc, types, pytest
    HISTORY, CACHE = [], {}
    OLD = [types.SimpleNamespace() for _ in range(100)]

    def leave_garbage(size):
        old = OLD.pop()
        old.itself, old.buffer = old, Buffer(size)

    class Model:
        def __init__(self, size):
            self.itself, self.weight = self, Buffer(size)
"""


def told(run: Runner, bodies: dict[str, str], *options: str) -> Run:
    """Run a test for each body twice, with a cache and a history of its own, and return what is told."""
    tests = "".join(
        f"""
    HISTORY_{name}, CACHE_{name} = [], {{}}

    @pytest.mark.parametrize("number", range(2))
    def test_{name}(number):
        gc.collect()
        {body.replace("HISTORY", f"HISTORY_{name}").replace("CACHE", f"CACHE_{name}")}
    """
        for name, body in bodies.items()
    )
    return run(HEAD + tests, *options, report=bool(options), apart=True)


def test_a_leak_beside_garbage_that_the_re_run_frees_is_found(run: Runner) -> None:
    bodies = {
        "another_size": "leave_garbage(200); HISTORY.append(Buffer(300))",
        "alike": "leave_garbage(300); HISTORY.append(Buffer(300))",
        # The re-run frees the garbage and what it replaces at different moments: as a collection by itself does.
        "replaced_too": "HISTORY.append(Buffer(300)); CACHE['model'] = Model(300); leave_garbage(300)",
    }
    found = told(run, bodies, "-v")
    found.result.stdout.fnmatch_lines(["gpu-leak: 6 leaked, 0 clean*"])
    for name in bodies:
        assert f"held by test_it.HISTORY_{name}" in found.result.stdout.str()


def test_what_a_re_run_replaces_is_no_leak(run: Runner) -> None:
    bodies = {
        "one_for_one": "CACHE['model'] = Model(200)",
        "beside_garbage_alike": "CACHE['model'] = Model(200); leave_garbage(200)",
        "beside_other_garbage": "CACHE['model'] = Model(200); leave_garbage(300)",
        "by_another_size": "CACHE['model'] = Model(200 + len(OLD))",
        "by_another_size_at_once": "CACHE['buffer'] = Buffer(200 + len(OLD)); OLD.pop()",
        "nothing": "leave_garbage(200 + len(OLD))",
        "beside_a_cache_that_is_filled_once": "HISTORY or HISTORY.append(Buffer(200)); CACHE['model'] = Model(200)",
    }
    found = told(run, bodies)
    found.result.assert_outcomes(passed=14)
    found.result.stdout.fnmatch_lines(["gpu-leak: 0 leaked*"])
    assert found.result.ret == 0


def test_what_a_further_re_run_replaces_may_wait_in_a_cycle(run: Runner) -> None:
    # The last re-run's own arrays are recognised without a collection, which the one before them waits for.
    found = run(
        f"""{HEAD}
    STEP_0, STEP_1, STEP_2 = {{}}, [], {{}}
    def test_it():
        STEP_0['model'] = types.SimpleNamespace(buffer=Buffer(300))
        STEP_0['model'].itself = STEP_0['model']
        STEP_1 or STEP_1.append(Buffer(300))
        STEP_2['runs'] = STEP_2.get('runs', 0) + 1
        STEP_2['last'] = Buffer(300 + STEP_2['runs'] % 2)
    """,
        report=False,
        apart=True,  # seen only in a process of its own
    )
    found.result.stdout.fnmatch_lines(["gpu-leak: 0 leaked*"])


@pytest.mark.interpreter
def test_where_the_run_is_the_last_that_passes_nothing_leaks(run: Runner) -> None:
    found = run(
        f"""{HEAD}
    RUNS = []
    def test_it():
        gc.collect()
        RUNS.append(1)
        assert len(RUNS) < 3
        CACHE['buffer'] = Buffer(200 + len(RUNS))

    def test_last():
        assert len(RUNS) >= 2
    """,
        report=False,
    )
    found.result.stdout.fnmatch_lines(["gpu-leak: 0 leaked, 1 noted, 1 clean*"])


def test_leaks_beside_garbage_alike_are_found_without_epochs(run: Runner) -> None:
    found = run(
        f"""{HEAD}
    @pytest.mark.parametrize("number", range(3))
    def test_garbage(number):
        leave_garbage(300)

    @pytest.mark.parametrize("number", range(3))
    def test_replaces(number):
        CACHE["x"] = Buffer(300)

    @pytest.mark.parametrize("number", range(3))
    def test_leaks(number):
        HISTORY.append(Buffer(300))
        leave_garbage(300)
        Model(300)
    """,
        "--gpu-leak-scan=scan",
        report=False,
        apart=True,
    )
    found.result.stdout.fnmatch_lines(["gpu-leak: 3 leaked, *"])
