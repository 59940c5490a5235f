"""What tests leave in the objects that they are parametrized with is confirmed for a few tests of a function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.confirm.test_harness import COUNTED, runs

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.interpreter

OBJECTS = f"""{COUNTED}
    import pytest

    class Module:
        def __init__(self):
            self.inner = {{"deep": {{}}}}
            self.history = []

        def keep_last(self):
            self.inner["deep"]["last"] = Buffer()

        def append(self):
            self.history.append(Buffer())
"""


@pytest.mark.parametrize("option", [[], ["-v"]], ids=["", "verbose"])
def test_the_others_are_not_run_again(run: Runner, pytester: pytest.Pytester, option: list[str]) -> None:
    found = run(
        f"""{OBJECTS}
    @pytest.mark.parametrize("module", [Module() for _ in range(8)])
    def test_it(module):
        note("it")
        module.keep_last()
    """,
        *option,
    )
    assert set(found.verdicts.values()) == {"noted"}
    findings = [test["findings"][0] for test in found.tests.values()]
    assert {(one["kind"], one["count"], one["bytes"]) for one in findings} == {("retained", 1, 4096)}
    texts = [one["holder"]["text"] for one in findings[1:]]
    assert all(text.endswith(".callspec.params['module'].inner['deep']['last']") for text in texts), texts
    assert len({one["fingerprint"] for one in findings[1:]}) == 1
    assert runs(pytester) == {"it": 8 + 3}


@pytest.mark.slow
def test_each_function_is_judged_by_its_own(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(
        f"""{OBJECTS}
    MODULES = [Module() for _ in range(5)]

    @pytest.mark.parametrize("module", MODULES)
    def test_last(module):
        note("last")
        module.keep_last()

    @pytest.mark.parametrize("module", MODULES)
    def test_all(module):
        note("all")
        module.append()
    """
    )
    assert found.verdicts == {f"test_last[module{n}]": "noted" for n in range(5)} | {
        f"test_all[module{n}]": "leaked" for n in range(5)
    }
    assert runs(pytester) == {"last": 5 + 3, "all": 10}


def test_what_grows_from_test_to_test_is_run_again(run: Runner, pytester: pytest.Pytester) -> None:
    """The re-run replaces what the run before left under the same key; each test adds a key."""
    found = run(
        f"""{OBJECTS}
    @pytest.mark.parametrize("module", [Module()])
    @pytest.mark.parametrize("key", range(6))
    def test_it(module, key):
        note("it")
        module.inner[key] = Buffer()
    """
    )
    assert set(found.verdicts.values()) == {"noted"}
    assert runs(pytester)["it"] > 6 + 3


@pytest.mark.slow
def test_a_later_test_of_the_function_that_keeps_elsewhere_is_run_again(run: Runner) -> None:
    found = run(
        f"""{OBJECTS}
    @pytest.mark.parametrize("module", [Module() for _ in range(6)])
    def test_it(module, request):
        module.keep_last()
        if request.node.name == "test_it[module5]":
            KEPT.append(Buffer())
    """
    )
    assert found.verdicts["test_it[module4]"] == "noted"
    assert found.verdicts["test_it[module5]"] == "leaked"


def test_a_container_below_a_parameter_that_a_global_holds_too_is_run_again(
    run: Runner, pytester: pytest.Pytester
) -> None:
    run(
        f"""{OBJECTS}
    SHARED = {{}}

    @pytest.mark.parametrize("module", [Module() for _ in range(6)])
    def test_it(module):
        note("it")
        module.inner["shared"] = SHARED
        SHARED["last"] = Buffer()
    """,
        report=False,
    )
    assert runs(pytester) == {"it": 12}


@pytest.mark.parametrize("parameter", ["Module", "Module.append"])
def test_a_class_is_no_state_of_the_test(run: Runner, pytester: pytest.Pytester, parameter: str) -> None:
    run(
        f"""{OBJECTS}
    @pytest.mark.parametrize("holder", [{parameter}] * 6)
    def test_it(holder):
        note("it")
        holder.__dict__ if isinstance(holder, type) else holder
        Module.last = Buffer()
    """,
        report=False,
    )
    assert runs(pytester) == {"it": 12}


@pytest.mark.slow
def test_what_is_as_large_as_fails_does(run: Runner) -> None:
    found = run(
        f"""{OBJECTS}
    @pytest.mark.parametrize("module", [Module() for _ in range(6)])
    def test_it(module, request):
        module.last = Buffer(2**20 if request.node.name.endswith("5]") else 16)
    """
    )
    assert found.verdicts["test_it[module4]"] == "noted"
    assert found.verdicts["test_it[module5]"] == "leaked"


def test_with_no_re_runs_nothing_is_taken_for_constant(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(
        f"""{OBJECTS}
    @pytest.mark.parametrize("module", [Module() for _ in range(6)])
    def test_it(module):
        note("it")
        module.keep_last()
    """,
        "--gpu-leak-confirm=0",
    )
    assert runs(pytester) == {"it": 6}
    assert all(test["findings"] for test in found.tests.values())


@pytest.mark.slow
def test_more_below_a_parameter_than_is_walked_is_run_again(run: Runner, pytester: pytest.Pytester) -> None:
    run(
        f"""{OBJECTS}
    class Large(Module):
        def __init__(self):
            super().__init__()
            self.parts = [[index] for index in range(9_000)]

    @pytest.mark.parametrize("module", [Large() for _ in range(5)])
    def test_it(module):
        note("it")
        module.keep_last()
    """,
        report=False,
    )
    assert runs(pytester) == {"it": 10}
