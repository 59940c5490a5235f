"""Interpreters that the plugin was never tried on: scanned, or left alone with one line, never a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from tests.conftest import Runner

SUITE = """
    KEPT, SLOT = [], {}

    def test_grows():
        KEPT.append(Buffer(4096))

    def test_fills_a_slot():
        SLOT["array"] = Buffer(2**21)

    def test_is_clean():
        Buffer(4096)
"""

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
