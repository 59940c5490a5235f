"""Random programs for torch's CUDA allocator, drawn by hypothesis: the verdict is compared with what was planted.

`benchmarks/allocator_programs.py` runs thousands of them. Here each example is a file of programs, one for each kind of leak
and some without any, run in a process of its own.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cuda_standin.test_cases import ON_THE_STAND_IN, needs_cuda_build

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.slow, needs_cuda_build]

EXAMPLES = 5
WITHOUT_A_LEAK = 8
"""Programs of each example that leave nothing behind."""


@pytest.fixture(scope="module")
def programs() -> Iterator[Any]:
    """The benchmark's module, and two devices where the runtime can have as many as it is told."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        for name in ("allocator_programs", "allocator_steps", "device_suite"):
            patch.delitem(sys.modules, name, raising=False)
        if ON_THE_STAND_IN:
            patch.setenv("CUDA_STANDIN_DEVICES", "2")
        yield importlib.import_module("allocator_programs")


# A failure names each program that is judged wrongly, so nothing is gained by making the file smaller.
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(draw=st.randoms(use_true_random=False))
def test_the_verdict_of_a_random_program_is_what_was_planted(programs: Any, draw: random.Random) -> None:
    devices = 2 if ON_THE_STAND_IN else min(int(os.environ.get("GPULEAK_DEVICES", "1")), 2)
    drawn = [programs.plant(draw, devices, programs.draw_steps(draw, devices), name) for name in sorted(programs.LEAKS)]
    drawn += [programs.draw_steps(draw, devices) for _ in range(WITHOUT_A_LEAK)]
    draw.shuffle(drawn)
    tests = {f"test_{number}": program for number, program in enumerate(drawn)}
    source = programs.write_tests(tests)
    judged = {test["nodeid"].partition("::")[2]: test for test in programs.run_suite(source)["tests"]}
    assert judged.keys() == tests.keys()
    failed = {name for name, test in judged.items() if test["outcome"] != "passed"}
    wrong = {name: programs.what_is_wrong(tests[name], judged[name]) for name in tests.keys() - failed}
    if failed:
        by_itself = programs.failed_without_the_plugin(source)
        wrong.update(dict.fromkeys(failed - by_itself, "fails only with the plugin"))
    said = [f"{why}\n{tests[name].body}" for name, why in wrong.items() if why]
    assert not said, "\n\n".join(said)
