"""Processes that a test leaves running, confirmed by its re-run: what grows in number fails, what is kept is a note."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.processes.facts import LeftProcess
from pytest_gpuleak.engine.confirm.added import ProcessEvidence
from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
from pytest_gpuleak.engine.stages import Unguarded
from pytest_gpuleak.engine.subject import FunctionSubject, Suspect
from pytest_gpuleak.model.policy import Policy

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

pytest.importorskip("psutil")
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="processes are started as on POSIX"),
]

MIB = 1 << 20
HEAD = """
    import multiprocessing, os, pathlib, subprocess, sys
    from concurrent.futures import ProcessPoolExecutor

    import pytest

    KEPT = []
    STATE = {}

    # Runs as long as the run, however slow the machine is.
    OF_THE_RUN = f"import os, time\\nwhile os.getppid() == {os.getpid()}: time.sleep(0.1)"

    def start():
        return subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)

    @pytest.fixture(scope="session", autouse=True)
    def end_all():
        yield
        for process in [*KEPT, *STATE.values()]:
            if isinstance(process, subprocess.Popen):
                process.communicate(b"\\n")

"""
PLUGIN = """

    @pytest.fixture(scope="session", autouse=True)
    def event_loop_policy():
        yield "a plugin's"

    @pytest.fixture(scope="module", autouse=True)
    def of_the_module():
        yield
"""


AT_ONCE = """
    from pytest_gpuleak.adapters.processes import facts

    facts.MOST_WAITS = 1
"""
"""What is left here does not end: each test would wait two seconds for it."""


def found_in(run: Runner, test: str, *arguments: str, plugin: str = "") -> Run:
    with Path("conftest.py").open("a", encoding="utf-8") as conftest:
        conftest.write(textwrap.dedent(AT_ONCE))
    return run("".join(map(textwrap.dedent, (HEAD, plugin, test))), *arguments, apart=True)


SUITE = """
POOLS, ARRAYS, RUNS = [], [], []

def test_grows():
    KEPT.append(start())

def test_next():
    pass

def test_ends_its_own():
    start().communicate(b"\\n")

def test_drops_one():
    subprocess.Popen([sys.executable, "-S", "-c", OF_THE_RUN])

def test_once():
    if "server" not in STATE:
        STATE["server"] = start()

@pytest.mark.parametrize("again", [False, True])
def test_manager(again):
    if "manager" not in STATE:
        STATE["manager"] = multiprocessing.get_context("spawn").Manager()
    assert STATE["manager"].list([1])[0] == 1

def test_replaces():
    old = STATE.pop("latest", None)
    if old is not None:
        old.communicate(b"\\n")
    STATE["latest"] = start()

def test_pool_of_each_run():
    POOLS.append(ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")))
    assert POOLS[-1].submit(abs, -1).result() == 1

def test_beside_an_array():
    RUNS.append(1)
    ARRAYS.append(Buffer(2**21))
    if "beside" not in STATE:
        STATE["beside"] = start()

def test_one_re_run_judges_both():
    assert len(RUNS) == 3  # the last one is traced for the lines

# Lightning's launcher starts pytest again in the first test that needs a second rank, for all tests to come.
PROGRAM = pathlib.Path("pytest")
PROGRAM.write_text("input()")  # once: a process that starts slowly would read what a re-run has truncated

@pytest.mark.parametrize("environment", [{"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, {}], ids=["rank", "no_rank"])
def test_pytest(environment):
    command, environment = [sys.executable, "-S", str(PROGRAM)], {**os.environ, **environment}
    KEPT.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE))

@pytest.fixture(scope="module")
def kept():
    yield STATE.setdefault("of a fixture", start())

@pytest.fixture(scope="module")
def dropped():
    yield subprocess.Popen([sys.executable, "-S", "-c", OF_THE_RUN])

@pytest.fixture(scope="module")
def ended():
    process = start()
    yield
    process.communicate(b"\\n")

@pytest.fixture(scope="class")
def another():
    KEPT.append(start())

class TestOne:
    def test_it(self, kept, dropped, ended, another):
        pass

class TestTwo:
    def test_it(self, another):
        pass

@pytest.fixture(scope="session")
def pool():
    os.mkfifo("gate")
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool
        opened = os.open("gate", os.O_RDWR)
    os.close(opened)

def test_shared_pool(pool):
    # The re-run finds the first worker busy, until the gate is opened, so that the pool starts another.
    assert pool.submit(abs, -1).result() == 1
    POOLS.append(pool.submit(os.open, "gate", os.O_RDONLY))

def test_shared_pool_is_there(pool):
    assert pool.submit(abs, -1).result() == 1
"""
FAIL = ("test_grows", "test_drops_one", "test_pool_of_each_run", "test_beside_an_array", "test_pytest[no_rank]")
STAY = ("test_once", "test_manager[False]", "test_replaces", "test_shared_pool")


def test_what_grows_in_number_fails_and_what_is_kept_is_a_note_beside_another_plugins_fixtures(run: Runner) -> None:
    found = found_in(run, SUITE, "-v", plugin=PLUGIN)
    clean = dict.fromkeys(found.tests, "clean")
    assert found.verdicts == clean | dict.fromkeys(FAIL, "leaked") | dict.fromkeys(STAY, "noted")
    finding = found.finding("test_grows")
    assert (finding["kind"], finding["failed"], finding["count"]) == ("process", True, 1)
    assert finding["bytes_per_run"] > 0
    assert finding["holder"]["text"] == "test_it.KEPT[0]"
    (part,) = finding["contributions"]
    assert part["created"]["function"] == "start"
    assert part["text"].endswith("-S -c input()")
    told = found.result.stdout.str().partition("LEAKED test_it.py::test_grows\n")[2].partition("LEAKED ")[0]
    assert "still running, one more each run" in told
    assert "held by  test_it.KEPT " in told
    finding = found.finding("test_drops_one")
    assert finding["holder"] is None
    assert any("refers to an object for it any more" in line for line in finding["evidence"])
    finding = found.finding("test_once")
    assert (finding["kind"], finding["failed"], finding["bytes_per_run"]) == ("process", False, 0)
    assert finding["holder"]["text"] == "test_it.STATE['server']"
    found.result.stdout.fnmatch_lines(["NOTED test_it.py::test_once", "*held by  test_it.STATE*"])
    assert found.holder("test_manager[False]").startswith("test_it.STATE['manager']")
    assert found.finding("test_pool_of_each_run")["holder"]["root"] == "test_it.POOLS"
    kinds = {finding["kind"]: finding["failed"] for finding in found.tests["test_beside_an_array"]["findings"]}
    assert kinds == {"process": False, "growing": True}
    found.result.assert_outcomes(passed=len(found.tests))
    failed = {
        name: [(one["kind"], one["failed"]) for one in record["findings"]] for name, record in found.fixtures.items()
    }
    assert failed == {
        "kept": [("process", False)],
        "dropped": [("process", True)],
        "another": [("process", False), ("process", True)],
    }


ONCE = """
def test_it():
    if "server" not in STATE:
        STATE["server"] = start()

def test_next():
    pass
"""


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        (["--gpu-leak-process-mb=1KiB"], "leaked"),
        (["--gpu-leak-process-mb=2GiB"], "noted"),
        (["--gpu-leak-process-mb=off"], "noted"),
        (["--gpu-leak-confirm=0", "--gpu-leak-retained-mb=2GiB"], "leaked"),
    ],
    ids=" ".join,
)
def test_one_that_is_kept_fails_where_an_option_says_so(run: Runner, options: list[str], verdict: str) -> None:
    found = found_in(run, ONCE, *options)
    assert found.verdicts == {"test_it": verdict, "test_next": "clean"}
    why = "no re-run was asked for" if "confirm" in options[0] else None
    assert found.finding("test_it")["why_unconfirmed"] == why
    assert found.result.ret == (1 if verdict == "leaked" else 0)
    assert found.result.stdout.str().count("-S -c input()") == found.result.ret


def test_without_a_re_run_memory_decides(run: Runner) -> None:
    found = found_in(
        run,
        """
        @pytest.mark.gpu_leak(retained_mb="1KiB")
        def test_over():
            assert "first" not in STATE, "the port is in use"
            STATE["first"] = start()

        @pytest.mark.gpu_leak(retained_mb="2GiB")
        def test_under():
            assert "second" not in STATE, "the port is in use"
            STATE["second"] = start()

        def test_next():
            pass
        """,
    )
    assert found.verdicts == {"test_over": "leaked", "test_under": "noted", "test_next": "clean"}
    for name in ("test_over", "test_under"):
        assert found.finding(name)["why_unconfirmed"] == "the re-run failed in call"


@pytest.mark.torch
def test_a_dataloaders_worker_beside_pytest_asyncio(run: Runner) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("pytest_asyncio")
    found = found_in(
        run,
        """
        from torch.utils.data import DataLoader

        def test_it():
            loader = DataLoader(list(range(8)), batch_size=None, num_workers=1, persistent_workers=True)
            KEPT.append(loader)
            assert len(list(loader)) == 8
        """,
    )
    assert (found.verdicts["test_it"], found.holder("test_it")) == ("leaked", "test_it.KEPT[0]._iterator._workers[0]")


class FakeTracker:
    """Says what the re-runs leave."""

    def __init__(self, *runs: list[LeftProcess]) -> None:
        self._runs = list(runs)
        self.processes = self.driver = self

    def begin(self) -> None:
        pass

    def read(self) -> dict[str, Any]:
        return {}

    def left(self) -> list[LeftProcess]:
        return self._runs.pop(0)


def a_process(pid: int, command: str = "python serve.py", **fields: Any) -> LeftProcess:
    return LeftProcess(pid, 0.0, 1.0, 1, command, fields.pop("program", "serve.py"), own_bytes=5 * MIB, **fields)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The pids that still run: filled by a test."""
    from pytest_gpuleak.adapters.processes import facts as process_facts

    pids: set[int] = set()
    monkeypatch.setattr(process_facts, "is_running", lambda process: process.pid in pids)
    return pids


def evidence(first: list[LeftProcess], *runs: list[LeftProcess]) -> ProcessEvidence:
    tracker: Any = FakeTracker(*runs)
    knowledge = SessionKnowledge("/project", Unguarded())
    return ProcessEvidence(Suspect(tracker, knowledge, FunctionSubject(), Policy()), first)


def judged(first: list[LeftProcess], *runs: list[LeftProcess]) -> list[tuple[str | None, bool]]:
    trail = evidence(first, *runs)
    for _ in runs:
        trail.expect_run()
        trail.add_run()
    return [(finding.metric, finding.failed) for finding in trail.judge("")]


def test_a_traced_run_decides_nothing(running: set[int]) -> None:
    running.add(1)
    trail = evidence([a_process(1)], [a_process(2)], [])
    trail.add_run()
    trail.add_run(traced=True)
    assert [(finding.metric, finding.failed, finding.bytes_per_run) for finding in trail.judge("")] == [
        ("pid 1", True, 5 * MIB)
    ]


def test_of_two_programs_the_one_that_grows_fails(running: set[int]) -> None:
    running.update((1, 2))
    cache, server = a_process(1, "redis --port 7001", program="redis"), a_process(2)
    assert judged([cache, server], [a_process(3)]) == [("pid 2", True), ("pid 1", False)]


def test_growth_must_be_seen_in_each_re_run(running: set[int]) -> None:
    running.update((1, 2))
    assert judged([a_process(1)], [a_process(2)], []) == [("pid 1", False)]
    assert judged([a_process(1)], [a_process(2)], [a_process(3)]) == [("pid 1", True)]


def test_what_has_ended_meanwhile_and_was_not_replaced_is_no_finding(running: set[int]) -> None:
    assert not running
    assert judged([a_process(1)], []) == []


def test_what_stands_in_for_one_that_has_ended_is_named(running: set[int]) -> None:
    running.add(2)
    assert judged([a_process(1)], [a_process(2)]) == [("pid 2", False)]


def test_another_worker_of_the_same_pool_is_no_growth(running: set[int]) -> None:
    running.add(1)
    assert judged([a_process(1, pool_id=77)], [a_process(2, pool_id=77)]) == [("pid 1", False)]
    assert judged([a_process(1, pool_id=77)], [a_process(2, pool_id=78)]) == [("pid 1", True)]


def test_more_than_the_first_run_left_are_all_growth(running: set[int]) -> None:
    running.add(1)
    assert judged([a_process(1)], [a_process(2), a_process(3)]) == [("pid 1", True)]
