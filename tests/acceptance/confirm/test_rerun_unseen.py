"""What a re-run does is not seen by pytest's own records, by a doctest's runner, or by the next test."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run, Runner


STATE = """
    import asyncio, contextvars, decimal, faulthandler, gc, locale, logging, os, random, signal, socket, sys, tracemalloc
    import pytest

    KEPT, RUNS = [], []
    VARIABLE = contextvars.ContextVar("variable", default=0)
    LOGGER = logging.getLogger("user")

    class Finder:
        def find_spec(*arguments):
            return None

    def test_it(tmp_path, pytestconfig):
        RUNS.append(1)
        number = len(RUNS)
        KEPT.append(Buffer(100))
        sys.path.append(f"/added/{number}")
        sys.argv.append(f"added-{number}")
        sys.setrecursionlimit(2000 + number)
        sys.meta_path.append(Finder())
        sys.modules["replaced"] = type(sys)(f"replaced-{number}")
        LOGGER.addHandler(logging.NullHandler())
        LOGGER.setLevel(number)
        decimal.getcontext().prec = 10 + number
        signal.signal(signal.SIGTERM, lambda *arguments: number)
        os.umask(number)
        os.environ["NUMBER"] = str(number)
        os.chdir(tmp_path)
        gc.set_threshold(700 + number)
        VARIABLE.set(number)
        socket.setdefaulttimeout(number)
        asyncio.set_event_loop_policy(None) if sys.version_info < (3, 12) else None
        pytestconfig.cache.set("user/number", number)
        random.seed(number)
        locale.setlocale(locale.LC_ALL, "C" if number == 1 else "C.UTF-8")
        if number > 1:
            gc.disable()
            tracemalloc.start()
            faulthandler.disable()

    def test_next(tmp_path, pytestconfig):
        mask = os.umask(0)
        os.umask(mask)
        state = {
            "sys": [sys.path[-1], sys.argv[-1], sys.getrecursionlimit(), sys.modules["replaced"].__name__],
            "finders": sum(type(finder) is Finder for finder in sys.meta_path),
            "logging": [len(LOGGER.handlers), LOGGER.level],
            "decimal": decimal.getcontext().prec,
            "signal": signal.getsignal(signal.SIGTERM)(),
            "files": [mask, os.environ["NUMBER"], os.path.basename(os.getcwd()), tmp_path.name],
            "folders": sorted(os.listdir(tmp_path.parent)),
            "gc": [gc.get_threshold()[0], gc.isenabled(), tracemalloc.is_tracing(), faulthandler.is_enabled()],
            "others": [VARIABLE.get(), socket.getdefaulttimeout(), locale.setlocale(locale.LC_ALL)],
            "cache": pytestconfig.cache.get("user/number", 0),
            "random": random.random(),
        }
        print("STATE", state)

    def test_it_0(tmp_path):  # its folder's name begins as the first one's
        print("STATE", tmp_path.name)
"""


def both(run: Runner, source: str, *arguments: str) -> tuple[Run, Run]:
    """A run without the plugin and one with it, each in a process of its own."""
    without = run(source, *arguments, apart=True, plugin="--no-gpu-leak")
    return without, run(source, *arguments, apart=True)


def lines(found: Run, start: str) -> list[str]:
    return [line for line in found.result.stdout.lines if line.startswith(start)]


def test_the_next_test_finds_the_process_as_the_first_run_left_it(run: Runner, pytester: pytest.Pytester) -> None:
    temporary = f"--basetemp={pytester.path / 'base'}"
    without, with_plugin = both(run, STATE, "-rA", temporary, "-p", "cacheprovider")
    assert with_plugin.verdicts["test_it"] == "leaked"
    assert with_plugin.finding("test_it")["kind"] == "growing"
    assert lines(without, "STATE") == lines(with_plugin, "STATE")
    assert len(lines(without, "STATE")) == 2


DRAWING = """
    import random
    import numpy, pytest

    KEPT, STACK = [], []
    OWN, GENERATOR, LEGACY = random.Random(1), numpy.random.default_rng(2), numpy.random.RandomState(3)

    class Model:
        def __init__(self, seed):
            self.layers = [{"noise": numpy.random.default_rng(seed)}]

    MODEL = Model(4)

    @pytest.fixture(scope="session")
    def generator():
        return numpy.random.Generator(numpy.random.MT19937(5))

    @pytest.fixture(scope="session", autouse=True)
    def closure():
        own = numpy.random.default_rng(6)
        STACK.append(lambda: own.random())

    class Source(numpy.random.PCG64):
        pass

    def draw(generator):
        return [
            random.random(), OWN.random(), OWN.gauss(0, 1), GENERATOR.random(), LEGACY.normal(), numpy.random.normal(),
            MODEL.layers[0]["noise"].random(), generator.random(), *(one() for one in STACK),
            None if torch is None else torch.rand(1).item(),
        ]

    STACK.append(numpy.random.Generator(Source(12)).random)
    STACK.append(type("Mine", (random.Random,), {})(13).random)
    try:
        import torch
        STACK.append((lambda own: lambda: torch.rand(1, generator=own).item())(torch.Generator()))
        TORCHS = torch.Generator()
        STACK.append(lambda: torch.rand(1, generator=TORCHS).item())
    except ImportError:
        torch = None

    random.seed(7)
    numpy.random.seed(8)

    def test_it(generator):
        draw(generator)
        KEPT.append(Buffer(100))

    def test_replaces_them(generator):
        global LEGACY
        if torch is not None:
            torch.manual_seed(9)
        LEGACY = numpy.random.RandomState(10)
        MODEL.layers = [{"noise": numpy.random.default_rng(11)}]
        draw(generator)
        KEPT.append(Buffer(100))

    @pytest.mark.parametrize("number", range(3))
    def test_draws(generator, number):
        print("DRAWN", draw(generator))
        KEPT.append(Buffer(100))
"""


@pytest.mark.newest
def test_all_generators_draw_as_without_the_plugin(run: Runner) -> None:
    """Wherever they are held, torch's too. One draws from a source of the user's, which must not be kept alive."""
    pytest.importorskip("numpy")
    without, with_plugin = both(run, DRAWING, "-s")
    assert set(with_plugin.verdicts.values()) == {"leaked"}
    assert {finding["kind"] for test in with_plugin.tests.values() for finding in test["findings"]} == {"growing"}
    drawn = [re.findall(r"DRAWN \[.*\]", found.result.stdout.str()) for found in (without, with_plugin)]
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 3


def test_no_generator_is_kept_alive(run: Runner) -> None:
    pytest.importorskip("numpy")
    found = run(
        """
        import gc, numpy
        KEPT, GENERATORS = [], [numpy.random.default_rng(0)]

        def count():
            return sum(type(one) is numpy.random.Generator for one in gc.get_objects())

        def test_leaks():
            GENERATORS.append(numpy.random.default_rng(1))
            KEPT.append((Buffer(100), count()))

        def test_leaks_more():
            KEPT.append((Buffer(100), count()))

        def test_lets_go():
            GENERATORS.clear()

        def test_next():
            assert count() == 0
        """,
        apart=True,
    )
    found.result.assert_outcomes(passed=4)
    assert found.verdicts["test_leaks_more"] == "leaked"


PROFILED = """
    import cProfile, pstats
    import pytest

    KEPT = []

    @pytest.fixture(scope="module", autouse=True)
    def profile():
        profiler = cProfile.Profile()
        profiler.enable()
        yield
        profiler.disable()
        calls = {name: figures[1] for (_, _, name), figures in pstats.Stats(profiler).stats.items()}
        print("LATER", calls.get("test_later"))

    def test_it():
        KEPT.append(Buffer(100))

    def test_later():
        pass
"""


@pytest.mark.newest
def test_the_next_test_meets_what_one_run_has_left(run: Runner) -> None:
    """Names of threads, calls of a mock, handlers of a logger, breakpoints, and what a trace function sees."""
    found = run(
        """
        import logging, pdb, sys, threading
        from unittest import mock

        KEPT, MOCKED, NAMES, CALLS, STOPS = [], [], [], [], []
        CALLED, HELD = mock.MagicMock(), mock.Mock()

        def start():
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()
            NAMES.append(int(thread.name.split("-")[1].split(" ")[0]))

        def test_thread():
            start()
            KEPT.append(Buffer(100))

        def test_next_thread():
            start()
            assert NAMES[-1] == NAMES[0] + 1, NAMES

        def test_mock():
            CALLED(1)
            CALLED.child(len(MOCKED))
            MOCKED.append(Buffer(100))

        def test_in_a_mock():
            HELD(Buffer(100))

        def test_calls_of_mocks():
            assert (CALLED.call_count, CALLED.child.call_args) == (1, mock.call(0))
            assert CALLED.mock_calls == [mock.call(1), mock.call.child(0)]
            assert HELD.call_count == 1

        class Holding(logging.Handler):
            def __init__(self):
                super().__init__()
                self.batch = Buffer(100)

            def emit(self, record):
                pass

        def test_handler():
            logging.getLogger("user").addHandler(Holding())

        def test_handlers():
            assert len(logging.getLogger("user").handlers) == 1

        def test_breakpoint():
            STOPS.append(Buffer(100))
            if len(STOPS) == 2:
                breakpoint()
                pdb.set_trace()

        def trace(frame, event, argument):
            if frame.f_code.co_name == "traced":
                CALLS.append(event)

        def traced():
            KEPT.append(Buffer(100))

        def test_start_to_trace():
            sys.settrace(trace)

        def test_traced():
            traced()

        def test_trace():
            assert sys.gettrace() is trace
            sys.settrace(None)
            assert CALLS == ["call"]
        """
    )
    found.result.assert_outcomes(passed=11)
    leaks = {"test_thread", "test_mock", "test_in_a_mock", "test_handler", "test_breakpoint", "test_traced"}
    assert {name for name, verdict in found.verdicts.items() if verdict == "leaked"} == leaks
    assert {found.finding(name)["kind"] for name in leaks} == {"growing"}


@pytest.mark.newest
def test_cprofile_goes_on_after_a_re_run(run: Runner) -> None:
    """Before Python 3.12 ``sys.getprofile()`` returns its profiler, which ``sys.setprofile()`` cannot put back."""
    found = run(PROFILED, "-s", apart=True)
    assert found.verdicts == {"test_it": "leaked", "test_later": "clean"}
    found.result.stdout.fnmatch_lines(["*LATER 1"])


RECORDING = """
    import logging, os, warnings
    import pytest

    KEPT = []

    @pytest.fixture(autouse=True)
    def follow(request):
        print("spoken once")
        yield
        assert request.node.rep_call.passed

    def test_it(record_property, record_xml_attribute, record_testsuite_property, capsys, caplog, subtests):
        KEPT.append(Buffer(100))
        record_property("runs", len(KEPT))
        record_xml_attribute("runs", str(len(KEPT)))
        record_testsuite_property("suite", len(KEPT))
        logging.warning("logged once")
        warnings.warn("warned once")
        with capsys.disabled():
            print("shown once")
        with subtests.test("sub"):
            pass
        assert "logged once" in caplog.text
"""

CONFTEST = """
    import pytest

    RESULTS = []

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(item, call):
        report = (yield).get_result()
        setattr(item, "rep_" + report.when, report)
        RESULTS.append((report.when, report.outcome))

    KEY = pytest.StashKey()

    def pytest_runtest_call(item):
        item.calls = getattr(item, "calls", 0) + 1
        item.stash[KEY] = item.stash.get(KEY, 0) + 1

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(item):
        yield
        sections = [content for _, _, content in item._report_sections if "SETUP" not in content]
        RESULTS.append((item.calls, item.stash[KEY], item.user_properties, sections))

    def pytest_terminal_summary(terminalreporter):
        terminalreporter.line(f"RESULTS {RESULTS}")
"""


SHOWN = ("logged once", "shown once", "spoken once", "SETUP ")


@pytest.mark.parametrize("capture", ["fd", "no"])
def test_pytests_own_records_have_one_run(run: Runner, pytester: pytest.Pytester, capture: str) -> None:
    pytester.mkdir("inner")
    pytester.makeini("[pytest]\njunit_family = xunit1\nlog_cli = true\n")
    inner = pytester.path / "conftest.py"
    inner.write_text(inner.read_text() + "\n" + "\n".join(line[4:] for line in CONFTEST.splitlines()))
    source = (
        RECORDING
        if hasattr(pytest, "Subtests")
        else RECORDING.replace(", subtests", "").replace('with subtests.test("sub"):', "if True:")
    )
    options = ("--junitxml=junit.xml", "--log-file=log.txt", "--setup-show", f"--capture={capture}", "-v")
    texts: list[dict[str, Any]] = []
    for found in both(run, source, *options):
        junit = (pytester.path / "junit.xml").read_text()
        texts.append(
            {
                "results": lines(found, "RESULTS"),
                "log": (pytester.path / "log.txt").read_text().count("logged once"),
                "shown": [found.result.stdout.str().count(text) for text in SHOWN],
                "junit": re.findall(r'runs="1"|name="runs" value="1"|name="suite" value="1"', junit),
                "second": '="2"' in junit,
                "warnings": re.findall(r"\d+ warnings?", found.result.stdout.lines[-1]),
                "sub-tests": re.findall(r"\d+ subtests passed", found.result.stdout.lines[-1]),
            }
        )
    assert found.finding("test_it")["kind"] == "growing"
    assert texts[0] == texts[1]
    assert (texts[0]["log"], len(texts[0]["junit"]), texts[0]["warnings"]) == (1, 3, ["2 warnings"])


@pytest.mark.skipif(not hasattr(pytest, "register_fixture"), reason="pytest 9.1 brought it")
def test_a_fixture_that_a_test_registers_for_itself_is_kept_once(run: Runner, pytester: pytest.Pytester) -> None:
    of_item = (
        "\ndef pytest_itemcollected(item):\n    pytest.register_fixture(name='given', func=lambda: 0, node=item)\n"
    )
    with (pytester.path / "conftest.py").open("a") as file:
        file.write(of_item)
    found = run(
        """
        import pytest

        kept, last = [], {}

        def register(node):
            value = Buffer(100)
            pytest.register_fixture(name="made", func=lambda: value, node=node)

        def test_own(request):
            register(request.node)
            request.getfixturevalue("made")

        def test_own_in_a_slot(request):
            register(request.node)
            last["value"] = request.getfixturevalue("made")

        def test_own_in_a_list(request):
            register(request.node)
            kept.append(request.getfixturevalue("made"))

        def test_of_collection(request):
            assert request.getfixturevalue("given") == 0
            register(request.node)

        def test_session_s(request):
            register(request.session)

        def test_last():
            pass
        """,
        apart=True,  # pytester records the calls of hooks, with the fixtures, in its own process
    )
    notes = dict.fromkeys(("test_own", "test_own_in_a_slot", "test_of_collection"), "noted")
    leaks = dict.fromkeys(("test_own_in_a_list", "test_session_s"), "leaked")
    assert found.verdicts == {**notes, **leaks, "test_last": "clean"}
    assert {found.finding(name)["kind"] for name in notes} == {"retained"}


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors cannot be moved there")
@pytest.mark.parametrize("capture", ["fd", "sys", "no"])
def test_files_have_the_same_descriptors(run: Runner, capture: str) -> None:
    source = """
        import os
        import pytest

        KEPT = {}

        @pytest.mark.parametrize("number", [1, 2])
        def test_it(number):
            descriptor = os.open(os.devnull, os.O_RDONLY)
            os.close(descriptor)
            KEPT[number, descriptor] = Buffer(100)
    """
    found = run(source, f"--capture={capture}", apart=True)
    assert found.verdicts == {"test_it[1]": "noted", "test_it[2]": "noted"}


def test_a_doctest_is_run_again_as_it_was(run: Runner, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        leaky='''
        from tests.support.standin import Buffer

        KEPT = []

        def leak():
            """Keeps a buffer.

            >>> number = 1
            >>> leak()
            >>> number + len(KEPT) > 1
            True
            """
            KEPT.append(Buffer(100))
        '''
    )
    pytester.maketxtfile(test_text=">>> import leaky\n>>> text = 1\n>>> leaky.leak()\n")
    found = run(
        """
        import gc

        def test_next():
            items = [o for o in gc.get_objects() if type(o).__name__ == "DocTest" and "leak" in o.name]
            assert items and not any(o.globs for o in items)
        """,
        "--doctest-modules",
        "--doctest-glob=test_*.txt",
    )
    assert found.tests["leaky.leak"]["findings"][0]["kind"] == "growing"
    assert found.tests["test_text.txt"]["findings"][0]["kind"] == "growing"
    assert found.tests["test_next"]["outcome"] == "passed"
    assert found.result.ret == 1


def test_a_sub_test_that_fails_again_fails_nothing(run: Runner) -> None:
    if not hasattr(pytest, "Subtests"):
        pytest.skip("pytest has sub-tests from 9.0 on")
    found = run(
        """
        KEPT = []

        def test_it(subtests):
            KEPT.append(Buffer(2**21))
            with subtests.test():
                assert len(KEPT) == 1
        """
    )
    found.result.assert_outcomes(passed=1)
    assert "sub-test" in found.finding("test_it")["why_unconfirmed"]
    assert found.finding("test_it")["kind"] == "unconfirmed"


def test_under_the_debugger_a_test_is_not_run_again(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(
        """
        import pdb
        KEPT = []
        pdb.Pdb.cmdloop = lambda self, intro=None: self.do_continue("")

        def test_it():
            KEPT.append(Buffer(2**21))
        """,
        "--trace",
        apart=True,
    )
    assert "--trace" in found.finding("test_it")["why_unconfirmed"]


@pytest.mark.parametrize(
    "options", [("-s",), ("--capture=sys", "-s"), ("--capture=tee-sys",), ("--capture=sys",), ()], ids=" ".join
)
def test_what_is_written_past_pythons_streams_is_shown_once(run: Runner, options: tuple[str, ...]) -> None:
    found = run(
        """
        import os, subprocess, sys
        KEPT = []

        def test_it():
            print("by python")
            os.write(1, b"to stdout\\n")
            os.write(2, b"to stderr\\n")
            subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
            KEPT.append(Buffer(100))

        def test_next():
            os.write(1, b"the next\\n")
        """,
        *options,
        apart=True,
    )
    assert found.finding("test_it")["kind"] == "growing"
    text = found.result.stdout.str() + found.result.stderr.str()
    past_python = ("to stdout", "to stderr", "by a child", "the next")
    assert {line: text.count(line) for line in past_python} == dict.fromkeys(past_python, 1 if options else 0)
    assert text.count("by python") == (1 if {"-s", "--capture=tee-sys"} & set(options) else 0)


@pytest.mark.newest
def test_all_re_runs_have_the_same_code_on_their_stacks(run: Runner) -> None:
    """TensorFlow keeps each code object that it meets in a stack, and what belongs to it: each re-run grew the heap."""
    found = run(
        """
        import sys
        KEPT, STACKS = [], []
        def test_it():
            KEPT.append(Buffer(100))
            frame, codes = sys._getframe(), []
            while frame:
                codes.append(frame.f_code)
                frame = frame.f_back
            STACKS.append(codes)
        def test_next():
            first, *reruns = STACKS
            assert len(reruns) == 3 + 1  # the last one is traced for the lines
            assert len({tuple(map(id, codes)) for codes in reruns[:3]}) == 1
        """,
        "--gpu-leak-confirm=3",
    )
    assert found.verdicts == {"test_it": "leaked", "test_next": "clean"}


@pytest.mark.interpreter
def test_what_traces_future_threads_grows_where_each_run_wraps_it(run: Runner) -> None:
    found = run(
        """
        import threading

        def set_another(before):
            array = Buffer(100)
            threading.settrace(lambda *_: (before, array) and None)

        def test_leaks_by_wrapping():
            set_another(threading._trace_hook)

        def test_replaces():
            set_another(None)

        def test_puts_back():
            before = threading._trace_hook
            set_another(before)
            threading.settrace(before)

        def test_ends():
            threading.settrace(None)
        """
    )
    assert found.verdicts == {
        "test_leaks_by_wrapping": "leaked",
        "test_replaces": "noted",
        "test_puts_back": "clean",
        "test_ends": "clean",
    }
    assert found.finding("test_leaks_by_wrapping")["kind"] == "growing"


@pytest.mark.interpreter
def test_a_re_run_leaves_no_trace_function_where_there_was_none(run: Runner) -> None:
    found = run(
        """
        import threading
        RUNS, SLOT = [], []

        def test_traces_in_its_second_run():
            RUNS.append(1)
            SLOT[:] = [Buffer(100)]
            if len(RUNS) == 2:
                threading.settrace(lambda *_: None)

        def test_none_traces():
            assert len(RUNS) == 2
            assert threading._trace_hook is None
        """
    )
    found.result.assert_outcomes(passed=2)
