"""A re-run that hangs is stopped, and where nothing stops it the session ends, with its reports."""

from __future__ import annotations

import functools
import os
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.session.rerun.rerun import limit_of

if TYPE_CHECKING:
    from tests.conftest import Json, Run, Runner


LIMITS = """
    import pytest_gpuleak.engine.limits, pytest_gpuleak.session.rerun.rerun, pytest_gpuleak.session.rerun.watchdog

    pytest_gpuleak.session.rerun.rerun.LEAST_LIMIT_S = pytest_gpuleak.engine.limits.CHECK_LIMIT_S = 0.6
    pytest_gpuleak.session.rerun.watchdog.GRACE_S = 1.0
    pytest_gpuleak.session.rerun.watchdog.LOCK_GRACE_S = 0.5
"""
LONGEST_S = 100.0
"""Seconds that a run inside a test may take: one that hangs after all fails its own test alone."""

LOCKED = """
        import ctypes

        def lock_twice(library):
            mutex = ctypes.create_string_buffer(64)
            library.pthread_mutex_lock(mutex)
            library.pthread_mutex_lock(mutex)
"""
"""Blocks in C for ever, where no signal ends it."""

needs_mutex = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a zeroed mutex to be a good one")
needs_signals = pytest.mark.skipif(not hasattr(__import__("signal"), "pthread_kill"), reason="needs POSIX signals")


@pytest.fixture
def limited(run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """As `run`, in a process of its own, with short limits, and for a limited time itself."""
    launch = functools.partial(pytester.runpytest_subprocess, timeout=LONGEST_S)
    monkeypatch.setattr(pytester, "runpytest_subprocess", launch)
    add_to_conftest(pytester, LIMITS)
    return functools.partial(run, apart=True)


def add_to_conftest(pytester: pytest.Pytester, source: str) -> None:
    path = pytester.path / "conftest.py"
    path.write_text(path.read_text() + textwrap.dedent(source))


def suite(second: str, size: int = 100, rest: str = "", after: str = "pass") -> str:
    """A suite whose second test hangs when it is run again, between one before and one after it."""
    return f"""
        import queue, signal, threading, time, pytest
        KEPT, RUNS, JOBS = [], [], queue.Queue()
        JOBS.put("the only one")
        {rest}
        def test_before():
            KEPT.append(Buffer(7))

        def test_hangs(request):
            RUNS.append("test_hangs")
            if len(RUNS) >= 2:
                {second}
            KEPT.append(Buffer({size}))

        def test_after(tmp_path, capsys):
            print("heard")
            assert capsys.readouterr().out == "heard\\n"
            {after}
            KEPT.append(Buffer(9))
    """


def stopped(found: Run) -> None:
    """The re-run was stopped, and the next test was run and judged as ever."""
    assert found.verdicts == {"test_before": "leaked", "test_hangs": "noted", "test_after": "leaked"}
    finding = found.finding("test_hangs")
    assert (finding["kind"], finding["why_unconfirmed"][:28]) == ("unconfirmed", "the re-run took longer than ")
    assert found.report["incomplete"] is None
    assert found.result.ret == 1
    found.result.assert_outcomes(passed=3)


def record_of_ended(found: Run, why: str = "its re-run hung at test_it.py:") -> Json:
    """The session was ended: returns the record of the test that hung."""
    assert found.result.ret == 1
    assert "test_after" not in found.tests
    assert found.tests["test_before"]["verdict"] == "leaked"
    assert "1 of 3 tests did not run to the end" in found.report["incomplete"]
    line = next(line for line in found.result.errlines if line.startswith("gpu-leak: test_it.py::test_hangs hangs in"))
    assert "@pytest.mark.gpu_leak(confirm=0)" in line
    assert "ends here with exit status 1" in line
    record = found.tests["test_hangs"]
    (finding,) = record["findings"]
    assert finding["kind"] == "unconfirmed"
    assert finding["why_unconfirmed"].startswith(why)
    return record


def test_the_limit_is_told_by_the_policy_and_the_first_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for load in (0.0, 100.0):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load,) * 3, raising=False)
        assert limit_of(0.001, 60) == 10
        assert limit_of(0.2, 60) == pytest.approx(20)
        assert limit_of(30, 60) == 60
        assert limit_of(0.001, 0.5) == 0.5


@pytest.mark.newest
@needs_signals
def test_re_runs_that_wait_or_are_busy_are_stopped(limited: Runner) -> None:
    waits = {
        "queue": "JOBS.get()",
        "join": "thread = threading.Thread(target=time.sleep, args=(60,), daemon=True); thread.start(); thread.join()",
        "itimer": "signal.setitimer(signal.ITIMER_REAL, 90); time.sleep(60)",
        "alarm": "signal.signal(signal.SIGALRM, lambda *_: None); signal.alarm(90); time.sleep(60)",
        "mask": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGINT}); time.sleep(60)",
        "captured": "request.getfixturevalue('capfd'); spin(lambda: print('more'))",
        "all_masked": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); spin(int)",
        "handlers_reset": "[signal.signal(number, signal.SIG_DFL) for number in range(34, 64)]; spin(int)",
    }
    found = limited(
        """
        import queue, signal, threading, time
        KEPT, RUNS, JOBS = [], set(), queue.Queue()

        def spin(call):
            while True: call()
        """
        + "".join(
            f"""
        def test_{name}(request):
            if "{name}" in RUNS:
                {wait}
            RUNS.add("{name}")
            KEPT.append(Buffer(100))

        def test_after_{name}(tmp_path, capsys):
            print("heard")
            assert capsys.readouterr().out == "heard\\n"
            KEPT.append(Buffer(9))
        """
            for name, wait in waits.items()
        )
    )
    for name in waits:
        finding = found.finding(f"test_{name}")
        assert (found.verdicts[f"test_{name}"], finding["kind"]) == ("noted", "unconfirmed"), name
        assert finding["why_unconfirmed"].startswith("the re-run took longer than "), name
        assert found.verdicts[f"test_after_{name}"] == "leaked", name
    assert (found.report["incomplete"], found.result.ret) == (None, 1)
    found.result.assert_outcomes(passed=2 * len(waits))


def test_fixtures_that_wait_in_the_re_run(limited: Runner) -> None:
    found = limited(
        """
        import time, pytest
        KEPT, RUNS, TORN_DOWN = [], set(), []

        @pytest.fixture(scope="module")
        def shared():
            yield ["shared"]

        @pytest.fixture(autouse=True)
        def waits(request, shared):
            name = request.node.name
            again = name in RUNS
            if again and name == "test_setup":
                time.sleep(60)
            yield
            if again and name == "test_teardown":
                time.sleep(60)

        @pytest.fixture(autouse=True)
        def counted(request):
            request.addfinalizer(lambda: TORN_DOWN.append(request.node.name))

        def test_first(shared):
            assert shared == ["shared"]
        """
        + "".join(
            f"""
        def test_{where}():
            RUNS.add("test_{where}")
            KEPT.append(Buffer(100))

        def test_after_{where}():
            assert TORN_DOWN.count("test_{where}") == 2
            KEPT.append(Buffer(9))
        """
            for where in ("setup", "teardown")
        )
    )
    assert found.tests.pop("test_first")["verdict"] == "clean"
    for where in ("setup", "teardown"):
        finding = found.finding(f"test_{where}")
        assert (finding["kind"], "took longer" in finding["why_unconfirmed"]) == ("unconfirmed", True)
        assert found.verdicts[f"test_after_{where}"] == "leaked"
    assert found.report["incomplete"] is None
    found.result.assert_outcomes(passed=5)


def test_a_fixture_that_raises_in_the_re_run_is_set_up_for_the_next_test(limited: Runner) -> None:
    errors = ("SystemExit", "GeneratorExit", "BaseException", "ValueError")
    found = limited(
        """
        import builtins, pytest
        KEPT, RUNS, TORN_DOWN = [], set(), []

        @pytest.fixture(autouse=True)
        def once(request):
            name = request.node.name
            request.addfinalizer(lambda: TORN_DOWN.append(name))
            if name in RUNS:
                raise getattr(builtins, name.removeprefix("test_"))
        """
        + "".join(
            f"""
        def test_{error}(request):
            RUNS.add(request.node.name)
            KEPT.append(Buffer(100))

        def test_next_of_{error}():
            assert TORN_DOWN.count("test_{error}") == 2
            KEPT.append(Buffer(100))
        """
            for error in errors
        )
    )
    for error in errors:
        assert found.verdicts[f"test_{error}"] == "noted"
        assert found.finding(f"test_{error}")["why_unconfirmed"] == "the re-run failed in setup"
        assert found.verdicts[f"test_next_of_{error}"] == "leaked"
    found.result.assert_outcomes(passed=2 * len(errors))


@needs_mutex
def test_a_re_run_that_blocks_in_c_ends_the_session(limited: Runner, pytester: pytest.Pytester) -> None:
    source = suite("lock_twice(ctypes.CDLL(None))", rest=LOCKED)
    found = limited(source, "--junitxml=junit.xml", "--gpu-leak-report=leaks.md", "-rA")
    record = record_of_ended(found)
    assert (record["verdict"], record["outcome"]) == ("noted", "passed")
    assert record["findings"][0]["bytes"] == 100
    text = found.result.stdout.str()
    assert "GPU LEAKS" in text
    assert "2 passed" in text
    assert "test_hangs" in (pytester.path / "junit.xml").read_text()
    assert "test_before" in (pytester.path / "leaks.md").read_text()
    assert text.count("THE REPORT IS INCOMPLETE") == 1


@needs_signals
@pytest.mark.parametrize(
    "second",
    [
        "while True:\n                    try: time.sleep(60)\n                    except: pass",
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); time.sleep(60)",
    ],
    ids=["bare-except", "all-masked"],
)
def test_a_re_run_that_lets_no_exception_through_ends_the_session(limited: Runner, second: str) -> None:
    record_of_ended(limited(suite(second)))


@needs_signals
def test_a_signal_that_a_re_run_blocks_waits_for_it(limited: Runner) -> None:
    found = limited("""
        import os, signal
        KEPT = []

        def test_it():
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
            os.kill(os.getpid(), signal.SIGUSR1)  # its default is to end the process
            assert signal.sigwait({signal.SIGUSR1}) == signal.SIGUSR1
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            KEPT.append(Buffer(100))
    """)
    assert found.verdicts["test_it"] == "leaked"


@needs_mutex
def test_a_teardown_that_blocks_in_c_ends_the_session(limited: Runner) -> None:
    rest = LOCKED + "\n        def finalize(): lock_twice(ctypes.CDLL(None))\n"
    record_of_ended(limited(suite("request.addfinalizer(finalize)", rest=rest)))


@pytest.mark.newest
@needs_mutex
def test_a_re_run_that_keeps_the_interpreters_lock_ends_the_process(limited: Runner) -> None:
    found = limited(suite("lock_twice(ctypes.PyDLL(None))", 2**21, LOCKED))
    assert found.result.ret == 1
    text = found.result.stderr.str()
    assert "<gpu-leak: test_it.py::test_hangs hangs in its re-run: mark the test with" in text
    assert "in lock_twice" in text
    # What was written before is there to read: the journal names the test, and what it has left.
    assert found.report["incomplete"].startswith("the run has not ended")
    assert found.report["summary"]["running"] == ["test_it.py::test_hangs"]
    assert found.verdicts == {"test_before": "leaked", "test_hangs": "leaked"}
    assert found.report["summary"]["leaked"] == 2
    finding = found.finding("test_hangs")
    assert (finding["kind"], finding["bytes"]) == ("unconfirmed", 2**21)
    assert finding["why_unconfirmed"] == "the process died while the test was run again"


def test_without_a_thread_to_watch_it_a_test_is_not_run_again_but_torn_down(limited: Runner) -> None:
    found = limited(
        """
        import _thread, pytest
        KEPT, TORN_DOWN = [], []

        def refuse(*arguments):
            raise RuntimeError("can't start new thread")

        @pytest.fixture
        def counted():
            yield
            TORN_DOWN.append(1)

        def test_it(counted):
            if KEPT:
                _thread.start_new_thread = refuse
            KEPT.append(Buffer(100))

        def test_next():
            KEPT.append(Buffer(100))

        def test_torn_down():
            assert (len(TORN_DOWN), len(KEPT)) == (2, 3)
        """
    )
    assert found.verdicts == {"test_it": "leaked", "test_next": "noted", "test_torn_down": "clean"}
    assert found.finding("test_next")["why_unconfirmed"] == "no thread could be started to watch it"
    found.result.assert_outcomes(passed=3)


def test_what_a_test_replaces_is_no_hindrance_to_its_re_run(limited: Runner) -> None:
    found = limited(
        """
        import faulthandler, os, signal, threading
        import pytest
        KEPT, NAMES = [], {
            faulthandler: ["dump_traceback_later", "cancel_dump_traceback_later"],
            os: ["dup"],
            signal: ["signal", "getsignal", "pthread_sigmask", "pthread_kill", "valid_signals"],
            threading: ["main_thread", "enumerate"],
        }

        @pytest.mark.parametrize("module", NAMES, ids=lambda module: module.__name__)
        def test_it(module, monkeypatch):
            for name in NAMES[module]:
                monkeypatch.setattr(module, name, None, raising=False)
            KEPT.append(Buffer(100))

        def test_last():
            pass
        """
    )
    names = ("faulthandler", "os", "signal", "threading")
    assert found.verdicts == {**{f"test_it[{name}]": "leaked" for name in names}, "test_last": "clean"}
    assert {found.finding(f"test_it[{name}]")["kind"] for name in names} == {"growing"}
    found.result.assert_outcomes(passed=5)


@pytest.mark.newest
def test_without_signals_an_exception_is_raised_in_the_thread(limited: Runner, pytester: pytest.Pytester) -> None:
    add_to_conftest(pytester, "\npytest_gpuleak.session.rerun.watchdog._free_signal = lambda blocked: None\n")
    stopped(limited(suite("while True: pass")))


IN_A_THREAD = """
import sys, threading, pytest

codes = []
thread = threading.Thread(target=lambda: codes.append(pytest.main(sys.argv[1:])))
thread.start()
thread.join()
sys.exit(codes[0])
"""


@pytest.mark.parametrize("second", ["while True: pass", "time.sleep(60)"])
def test_a_runner_in_another_thread(
    limited: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    script = pytester.makepyfile(in_a_thread=IN_A_THREAD)

    def launch(*arguments: str) -> pytest.RunResult:
        return pytester.run(sys.executable, script, *arguments, timeout=LONGEST_S)

    monkeypatch.setattr(pytester, "runpytest_subprocess", launch)
    found = limited(suite(second))
    if "sleep" in second:
        record_of_ended(found)
    else:
        stopped(found)


@needs_mutex
@pytest.mark.slow
def test_a_worker_of_xdist_ends_and_the_others_go_on(limited: Runner) -> None:
    pytest.importorskip("xdist")
    found = limited(suite("lock_twice(ctypes.CDLL(None))", 2**21, LOCKED), "-n1", "--dist=load", "-p", "xdist")
    assert found.verdicts == {"test_before": "leaked", "test_hangs": "leaked", "test_after": "leaked"}
    assert len(found.report["tests"]) == 3
    assert found.finding("test_hangs")["why_unconfirmed"].startswith("its re-run hung at test_it.py:")
    assert (found.report["incomplete"], found.result.ret) == (None, 1)
    assert "hangs in its re-run at" in found.result.stdout.str()


@needs_signals
def test_a_re_run_leaves_no_thread_timer_handler_or_file(limited: Runner) -> None:
    found = limited(
        """
        import gc, os, signal, sys, threading, time, pytest
        KEPT, BEGINS = [], []

        def state():
            handlers = [signal.getsignal(number) for number in signal.valid_signals()]
            files = sorted(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else []
            threads, ends = 0, time.monotonic() + 0.2
            while os.path.isdir("/proc/self/task"):  # the kernel lists a thread for a moment after its end
                threads = len(os.listdir("/proc/self/task"))
                if threads <= len(sys._current_frames()) or time.monotonic() > ends:
                    break
            timers = [signal.getitimer(which) for which in range(3)]
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            return handlers, len(files), threads, timers, mask, len(sys._current_frames()), threading.enumerate()

        def test_warm():  # a counter of the plugin's opens a file for good
            KEPT.append(Buffer(100))

        def test_waits():
            BEGINS.append(len(KEPT))
            if len(BEGINS) >= 2:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
                time.sleep(60)
            KEPT.append((Buffer(100), state()))

        def test_leaks():
            KEPT.append((Buffer(100), state()))

        def test_state():
            waits, leaks, again = KEPT[BEGINS[0]:][:3]
            assert waits[1] == leaks[1] == state()
        """
    )
    found.result.assert_outcomes(passed=4)
    assert (found.verdicts["test_waits"], found.verdicts["test_leaks"]) == ("noted", "leaked")


def test_the_timer_of_pytests_faulthandler_is_set_again(limited: Runner, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nfaulthandler_timeout = 1.5\n")
    add_to_conftest(
        pytester,
        """
        import time

        def pytest_runtest_logfinish(nodeid):
            if "leaks" in nodeid:
                time.sleep(3)
        """,
    )
    found = limited("KEPT = []\n\ndef test_leaks():\n    KEPT.append(Buffer())\n")
    assert found.verdicts == {"test_leaks": "leaked"}
    assert "Timeout (0:00:01.500000)!" in found.result.stderr.str()
    assert "in pytest_runtest_logfinish" in found.result.stderr.str()


HOOK = """
    import ctypes, time

    def pytest_gpuleak_settle(config, nodeid):
        if "hangs" in nodeid:
            {wait}
"""


@needs_signals
def test_a_settle_hook_that_waits_is_stopped_and_the_verdict_stands(limited: Runner, pytester: pytest.Pytester) -> None:
    add_to_conftest(pytester, HOOK.format(wait="time.sleep(60)"))
    found = limited(suite("pass"))
    assert found.verdicts == {"test_before": "leaked", "test_hangs": "leaked", "test_after": "leaked"}
    assert found.finding("test_hangs")["kind"] == "growing"
    found.result.stdout.fnmatch_lines(
        ["*the hook pytest_gpuleak_settle failed: *took longer than 0.6 s and was stopped*"]
    )


@needs_mutex
def test_a_settle_hook_that_blocks_in_c_ends_the_session(limited: Runner, pytester: pytest.Pytester) -> None:
    add_to_conftest(
        pytester, textwrap.dedent(LOCKED) + textwrap.dedent(HOOK).format(wait="lock_twice(ctypes.CDLL(None))")
    )
    found = limited(suite("pass"))
    assert found.result.ret == 1
    assert found.verdicts == {"test_before": "leaked", "test_hangs": "unchecked"}
    assert found.tests["test_hangs"]["why_unchecked"].startswith("the hook pytest_gpuleak_settle hung at conftest.py:")
    assert "hangs in the hook pytest_gpuleak_settle at conftest.py:" in found.result.stderr.str()


def test_a_finalizer_that_waits_when_the_check_collects_it(limited: Runner) -> None:
    found = limited(
        """
        import ctypes, gc, time
        WAITED = []

        class Old:
            def __del__(self):
                if ready and not WAITED:
                    WAITED.append(1)
                    time.sleep(60)

        old, ready = Old(), False
        old.itself = old
        gc.collect()

        def test_it():
            global old, ready
            old, ready = None, True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(Buffer(100)))  # nothing is seen to hold it: the heap is collected

        def test_next():
            global ready
            ready = False
            assert WAITED
        """
    )
    assert found.verdicts == {"test_it": "leaked", "test_next": "clean"}
    found.result.assert_outcomes(passed=2)
    assert "a finalizer that a garbage collection called took longer than 0.6 s" in found.result.stdout.str()
