"""What other systems and interpreters lack is taken away: the same is found, no fault is reported, and nothing crashes."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.usefixtures("cold")

SUITE = """
    KEPT, SLOT = [], {}

    def test_grows():
        KEPT.append(Buffer(4096))

    def test_fills_a_slot():
        SLOT["array"] = Buffer(2**21)

    def test_is_clean():
        Buffer(4096)
"""

MACOS = """
    import builtins, os, psutil  # psutil reads /proc as it is imported on Linux, and goes on doing so

    def without(names, module):
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)

    without("waitid confstr sched_getaffinity memfd_create", os)

    def hides_proc(function):
        def hidden(path, *arguments, **named):
            import sys
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if isinstance(path, str) and path.startswith("/proc") and not caller.startswith("psutil"):
                raise FileNotFoundError(2, "No such file or directory", path)
            return function(path, *arguments, **named)
        return hidden

    for name in ("open", "listdir", "scandir", "readlink", "stat"):
        setattr(os, name, hides_proc(getattr(os, name)))
    builtins.open = hides_proc(builtins.open)
"""

WINDOWS = (
    MACOS
    + """
    import signal, sys

    without("pthread_sigmask pthread_kill setitimer getitimer sigwait siginterrupt SIGVTALRM SIGALRM SIGUSR1 SIGUSR2 "
            "SIGXCPU SIGKILL SIGRTMIN SIGRTMAX ITIMER_REAL alarm", signal)
    without("getuid getloadavg", os)
    sys.modules["resource"] = None
"""
)


PROCESSES = """
    import subprocess, sys

    def start():
        return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    STARTED = []

    def test_starts_one():
        STARTED.append(start())

    def test_starts_none():
        pass

    def test_starts_and_stops_one():
        process = start()
        process.communicate(b"\\n")

    def test_starts_another():
        STARTED.append(start())
"""


@pytest.mark.parametrize("system", [MACOS, WINDOWS], ids=["macos", "windows"])
def test_what_a_system_lacks_changes_no_verdict_and_hides_no_process(
    run: Runner, pytester: pytest.Pytester, system: str
) -> None:
    pytester.makepyfile(other=system)
    found = run(textwrap.dedent(SUITE) + textwrap.dedent(PROCESSES), "-p", "other", apart=True)
    kinds = {name: [finding["kind"] for finding in test["findings"]] for name, test in found.tests.items()}
    assert kinds == {
        "test_grows": ["growing"],
        "test_fills_a_slot": ["retained"],
        "test_is_clean": [],
        "test_starts_one": ["process"],
        "test_starts_none": [],
        "test_starts_and_stops_one": [],
        "test_starts_another": ["process"],
    }
    assert found.verdicts == {name: "leaked" if found else "clean" for name, found in kinds.items()}
    assert "itself failed" not in found.result.stdout.str()
    assert "Traceback" not in found.result.stdout.str()


PYPY = """
    import ctypes, gc, sys, types

    sys.implementation = types.SimpleNamespace(**{**vars(sys.implementation), "name": "pypy"})
    sys.modules["_tracemalloc"] = None
    del ctypes.pythonapi
    for module, names in ((gc, "freeze unfreeze get_freeze_count callbacks is_tracked get_threshold set_threshold"),
                          (sys, "getrefcount getswitchinterval")):
        for name in names.split():
            delattr(module, name)
"""

LATER = """
    from pytest_gpuleak.heap import collector_rules

    collector_rules.NEWEST = (3, 9)
    collector_rules.is_free_threaded = bool
"""

ODD = """
    import sys, types

    sys.implementation = types.SimpleNamespace(**{**vars(sys.implementation), "name": "oddpython"})
    sys.modules["pytest_gpuleak.engine"] = None
"""


def test_without_half_of_gc_the_heap_is_scanned(run: Runner, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(other=PYPY)
    found = run(SUITE, "-p", "other", apart=True)
    found.result.stdout.fnmatch_lines(["gpu-leak: scan (this interpreter's collector has no epochs: pypy has *"])
    assert found.verdicts == {"test_grows": "leaked", "test_fills_a_slot": "leaked", "test_is_clean": "clean"}
    assert [found.finding(name)["kind"] for name in ("test_grows", "test_fills_a_slot")] == ["growing", "retained"]
    assert found.holder("test_grows") == "test_it.KEPT[0]"
    assert "itself failed" not in found.result.stdout.str()


def test_a_later_version_is_scanned(run: Runner, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(other=LATER)
    found = run(SUITE, "-p", "other", apart=True)
    found.result.stdout.fnmatch_lines(["gpu-leak: scan (*Python 3.* is newer than this version of the plugin knows)*"])
    assert found.verdicts == {"test_grows": "leaked", "test_fills_a_slot": "leaked", "test_is_clean": "clean"}
    assert "itself failed" not in found.result.stdout.str()


def test_one_that_lacks_what_the_plugin_is_made_of_is_left_alone(run: Runner, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(other=ODD)
    found = run("def test_passes():\n    pass\n", "-p", "other", apart=True)
    found.result.assert_outcomes(passed=1)
    assert found.result.ret == 0
    found.result.stdout.fnmatch_lines(["gpu-leak: nothing is checked: oddpython * is not known (*)"])
    assert found.report == {}
