"""A conftest.py's `pytest_gpuleak_settle` that fails or misbehaves: a leak is a leak without it."""

from __future__ import annotations

import gc
import os
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

SUITE = """
    KEPT = []

    def test_a():
        KEPT.append(Buffer(2**21))

    def test_b():
        KEPT.append(Buffer(100))

    def test_clean():
        Buffer(100)
"""
LEAKS = {"test_a": "leaked", "test_b": "leaked", "test_clean": "clean"}


def add_hook(pytester: pytest.Pytester, source: str) -> int:
    """Write the hook into the conftest.py. Returns the line that its first one has there."""
    conftest = pytester.path / "conftest.py"
    before = conftest.read_text() + "\n"
    conftest.write_text(before + textwrap.dedent(source))
    return before.count("\n") + 1


def warnings_of(found: Run) -> list[str]:
    return [line for line in found.result.outlines if "PytestWarning" in line]


RAISES = {
    "an error": ("raise AttributeError('app.cache has no clear_all')", "AttributeError: app.cache has no clear_all"),
    "skip": ("pytest.skip('not now')", "pytest.skip(): not now"),
    "fail": ("pytest.fail('no cache')", "pytest.fail(): no cache"),
    "a recursion": ("pytest_gpuleak_settle(config, nodeid)", "RecursionError: maximum recursion depth exceeded"),
    "a type of its own": ("raise type('Stop', (BaseException,), {})('at once')", "Stop: at once"),
    "the end of a generator": ("raise StopIteration", "StopIteration"),
}


def test_one_that_raises_is_named_once_for_each_error_and_the_verdicts_stand(
    run: Runner, pytester: pytest.Pytester
) -> None:
    hook = "import pytest\n\ndef pytest_gpuleak_settle(config, nodeid):\n"
    for number, (statement, _) in enumerate(RAISES.values()):
        hook += f"    if 'test_{number}_' in nodeid:\n        {statement}\n"
    first = add_hook(pytester, hook) + 4
    suite = "KEPT = []\n\ndef test_clean():\n    Buffer(100)\n" + "".join(
        f"\ndef test_{number}_{name}():\n    KEPT.append(Buffer({size}))\n"
        for number in range(len(RAISES))
        for name, size in (("first", 2**21), ("again", 100))
    )
    found = run(suite)
    assert found.verdicts == dict.fromkeys(found.tests, "leaked") | {"test_clean": "clean"}
    assert len(warnings_of(found)) == len(RAISES)
    for number, (_, error) in enumerate(RAISES.values()):
        (warning,) = [line for line in warnings_of(found) if f"(first in test_it.py::test_{number}_first)" in line]
        assert f"the hook pytest_gpuleak_settle failed: {error}" in warning
        assert f"(conftest.py:{first + 2 * number}); tests are judged without it" in warning
    assert [len(test["faults"]) for test in found.report["tests"]] == [0, *[1] * 2 * len(RAISES)]
    found.result.stdout.fnmatch_lines([f"gpu-leak: the check itself failed in {2 * len(RAISES)} tests: the hook *"])
    assert found.result.ret == 1


def test_an_error_below_the_hook_is_told_with_the_hooks_line(run: Runner, pytester: pytest.Pytester) -> None:
    line = add_hook(
        pytester,
        """
        import json

        def pytest_gpuleak_settle(config, nodeid):
            json.loads("{")
        """,
    )
    assert f"(conftest.py:{line + 4})" in warnings_of(run(SUITE))[0]


@pytest.mark.parametrize("statement", ["pytest.exit('the device is lost')", "raise SystemExit('the device is lost')"])
def test_one_that_ends_the_run_ends_it_after_the_verdict(
    run: Runner, pytester: pytest.Pytester, statement: str
) -> None:
    add_hook(pytester, f"def pytest_gpuleak_settle(config, nodeid):\n    {statement}\n")
    found = run(SUITE)
    assert found.verdicts == {"test_a": "leaked"}
    found.result.stdout.fnmatch_lines(["*the hook pytest_gpuleak_settle asked to end the run: *the device is lost*"])
    assert found.result.ret == pytest.ExitCode.INTERRUPTED


def test_ctrl_c_in_it_is_the_users_own(run: Runner, pytester: pytest.Pytester) -> None:
    add_hook(pytester, "def pytest_gpuleak_settle(config, nodeid):\n    raise KeyboardInterrupt\n")
    assert run(SUITE, apart=True).result.ret == pytest.ExitCode.INTERRUPTED


def test_any_signature_that_pluggy_accepts_is_called(run: Runner, pytester: pytest.Pytester) -> None:
    signatures = {"first": "*arguments", "second": "nodeid, more=1", "third": ""}
    for name, signature in signatures.items():
        body = f"open('called by {name}', 'w').close()"
        pytester.makepyfile(**{name: f"def pytest_gpuleak_settle({signature}):\n    {body}\n"})
    pytester.syspathinsert()
    found = run(SUITE, *[part for name in signatures for part in ("-p", name)])
    assert (found.verdicts, warnings_of(found)) == (LEAKS, [])
    assert all((pytester.path / f"called by {name}").exists() for name in signatures)


def test_one_with_an_argument_that_does_not_exist_is_refused_before_any_test(
    run: Runner, pytester: pytest.Pytester
) -> None:
    add_hook(pytester, "def pytest_gpuleak_settle(item):\n    pass\n")
    found = run(SUITE, apart=True)
    assert found.result.ret != 0
    assert "Argument(s) {'item'}" in found.result.stderr.str()  # as pytest tells of any hook
    assert "test_it.py" not in found.result.stdout.str()


def test_each_whose_body_never_runs_is_told_of(run: Runner, pytester: pytest.Pytester) -> None:
    add_hook(pytester, "async def pytest_gpuleak_settle(config, nodeid):\n    pass\n")
    pytester.makepyfile(beside="def pytest_gpuleak_settle(config, nodeid):\n    yield\n")
    pytester.syspathinsert()
    found = run(SUITE, "-p", "beside")
    assert found.verdicts == LEAKS
    told = " ".join(warnings_of(found))
    assert "accepted is a plain function (conftest.py:" in told
    assert "accepted is a plain function (beside.py:" in told
    assert "never awaited" not in told


@pytest.mark.parametrize(
    "statement",
    [
        "gc.disable(); gc.set_threshold(1)",
        "gc.freeze()",
        "gc.unfreeze(); gc.callbacks.clear(); gc.collect()",
        "gc.set_debug(gc.DEBUG_SAVEALL)",
        "sys.setrecursionlimit(150); sys.setprofile(None); os.chdir('/')",
        "import test_it; test_it.test_clean(); test_it.test_b()",
        "threading.Thread(target=int).start(); time.sleep(0.3); return [Buffer(2**21)]",
    ],
)
def test_whatever_it_does_the_verdicts_stand(run: Runner, pytester: pytest.Pytester, statement: str) -> None:
    add_hook(
        pytester,
        f"""
        import gc, os, sys, threading, time

        def pytest_gpuleak_settle(config, nodeid):
            {statement}
        """,
    )
    limit, thresholds = sys.getrecursionlimit(), gc.get_threshold()
    try:
        found = run(SUITE)
    finally:
        os.chdir(pytester.path)
        sys.setrecursionlimit(limit)
        gc.enable()
        gc.set_threshold(*thresholds)
        gc.set_debug(0)
        gc.unfreeze()
        gc.garbage.clear()
    verdicts = found.verdicts
    assert (verdicts["test_a"], verdicts["test_b"]) == ("leaked", "leaked")
    assert found.result.ret == 1


def test_one_that_lets_go_is_believed_though_it_raises_afterwards(run: Runner, pytester: pytest.Pytester) -> None:
    add_hook(
        pytester,
        """
        def pytest_gpuleak_settle(config, nodeid):
            import test_it
            test_it.KEPT.clear()
            raise OSError("no such file")
        """,
    )
    found = run(SUITE, "--gpu-leak-strict")
    assert set(found.verdicts.values()) == {"clean"}
    assert found.result.ret == 1
