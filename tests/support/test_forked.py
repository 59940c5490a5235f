"""Runs that are forked from a process with torch see what a new process would."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.forked import ForkServer

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="runs are forked on Linux alone"),
]

SUITE = """
    import os, signal, sys

    AT_ITS_START = set(sys.modules)

    def test_fresh():
        assert "torch" in AT_ITS_START
        assert not [name for name in AT_ITS_START if name.startswith(("tests", "pytest_gpuleak"))]
        assert sys.stdin.read() == ""
        assert os.environ["PYTEST_OF_THE_TESTS_OWN"] == os.environ["PYTHONPATH"].split(os.pathsep)[0] == os.getcwd()
        assert os.getcwd() in sys.path

    def test_fails():
        print(sys.argv)
        sys.stderr.write("to standard error")
        assert False

    def test_is_killed():
        os.kill(os.getpid(), signal.SIGKILL)

    def test_hangs():
        while True:
            signal.pause()
"""


@pytest.fixture
def made(pytester: pytest.Pytester, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makepyfile(test_it=SUITE)
    monkeypatch.setenv("PYTEST_OF_THE_TESTS_OWN", str(Path.cwd()))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(Path.cwd()))
    fork_server.use_in(pytester, monkeypatch)
    return pytester


def test_a_run_and_its_end(made: pytest.Pytester) -> None:
    alone = ("-s", "-p", "no:gpuleak", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", "-k")
    passed = made.runpytest_subprocess(*alone, "fresh")
    passed.assert_outcomes(passed=1, deselected=3)
    failed = made.runpytest_subprocess(*alone, "fails")
    assert failed.ret == pytest.ExitCode.TESTS_FAILED
    assert "'fails']" in failed.stdout.str()
    assert "to standard error" in failed.stderr.str()
    with pytest.raises(made.TimeoutExpired):
        made.runpytest_subprocess(*alone, "hangs", timeout=3)
    assert made.runpytest_subprocess(*alone, "killed").ret == -9


def test_a_variable_that_is_read_at_the_start(made: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    made.makepyfile(
        test_it="import sys\ndef test_it():\n    assert sys.flags.utf8_mode and 'torch' not in sys.modules\n"
    )
    monkeypatch.setenv("PYTHONUTF8", "1")
    made.runpytest_subprocess("-p", "no:gpuleak", "-p", "no:hypothesispytest").assert_outcomes(passed=1)


AT_THE_END = """
    import atexit, pathlib, threading

    def test_it():
        def work(main=threading.main_thread()):
            main.join()
            atexit.register(pathlib.Path("ended").write_text, "after the threads")

        threading.Thread(target=work).start()
        assert False
"""


def test_a_run_that_finds_the_plugin_imported_ends_as_any_other(
    pytester: pytest.Pytester, warm_torch_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules alone are not taken apart: its threads are waited for, then what it has registered is called."""
    warm_torch_server.use_in(pytester, monkeypatch)
    pytester.makepyfile(test_it=AT_THE_END)
    done = pytester.runpytest_subprocess("-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["*1 failed in *"])
    assert (pytester.path / "ended").read_text() == "after the threads"
