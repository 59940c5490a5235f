"""Processes that a test leaves running, confirmed by its re-run: what grows in number fails, what is kept is a note."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.processes.facts import LeftProcess
from pytest_gpuleak.engine.confirm.process_evidence import ProcessEvidence
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
    import multiprocessing, os, subprocess, sys
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


def found_in(run: Runner, test: str, *arguments: str, plugin: str = "") -> Run:
    return run("".join(map(textwrap.dedent, (HEAD, plugin, test))), *arguments, apart=True)


GROWING = """
def test_it():
    KEPT.append(start())

def test_next():
    pass
"""


@pytest.mark.parametrize("plugin", ["", PLUGIN], ids=["alone", "beside another plugin's fixtures"])
def test_one_more_each_run_fails_and_is_named(run: Runner, plugin: str) -> None:
    found = found_in(run, GROWING, plugin=plugin)
    assert found.verdicts == {"test_it": "leaked", "test_next": "clean"}
    finding = found.finding("test_it")
    assert (finding["kind"], finding["failed"], finding["count"]) == ("process", True, 1)
    assert finding["bytes_per_run"] > 0
    assert finding["holder"]["text"] == "test_it.KEPT[0]"
    assert finding["contributions"][0]["created"]["function"] == "start"
    found.result.stdout.fnmatch_lines(
        [
            "*1 process, *still running, one more each run",
            "*held by  test_it.KEPT?0?*",
            "*created  test_it.py:* in start*",
        ]
    )
    (part,) = finding["contributions"]
    assert part["text"].endswith("-S -c input()")
    assert found.result.stdout.str().count("-S -c input()") == 1


def test_one_that_nothing_refers_to_any_more_fails_and_says_so(run: Runner) -> None:
    found = found_in(
        run,
        """
        def test_it():
            subprocess.Popen([sys.executable, "-S", "-c", OF_THE_RUN])
        """,
    )
    finding = found.finding("test_it")
    assert (found.verdicts["test_it"], finding["holder"]) == ("leaked", None)
    assert any("refers to an object for it any more" in line for line in finding["evidence"])


ONCE = """
def test_it():
    if "server" not in STATE:
        STATE["server"] = start()

def test_next():
    pass
"""


def test_one_that_is_started_once_and_kept_is_a_note(run: Runner) -> None:
    found = found_in(run, ONCE, "-v")
    assert found.verdicts == {"test_it": "noted", "test_next": "clean"}
    finding = found.finding("test_it")
    assert (finding["kind"], finding["failed"], finding["bytes_per_run"]) == ("process", False, 0)
    assert finding["holder"]["text"] == "test_it.STATE['server']"
    assert found.result.ret == 0
    found.result.stdout.fnmatch_lines(["NOTED test_it.py::test_it", "*held by  test_it.STATE*"])


@pytest.mark.parametrize(("option", "verdict"), [("1KiB", "leaked"), ("2GiB", "noted"), ("off", "noted")])
def test_one_that_is_kept_fails_from_the_option_up(run: Runner, option: str, verdict: str) -> None:
    found = found_in(run, ONCE, f"--gpu-leak-process-mb={option}")
    assert found.verdicts == {"test_it": verdict, "test_next": "clean"}


def test_a_librarys_manager_is_a_note(run: Runner) -> None:
    found = found_in(
        run,
        """
        def manager():
            if "manager" not in STATE:
                STATE["manager"] = multiprocessing.get_context("spawn").Manager()
            return STATE["manager"]

        def test_it():
            assert manager().list([1])[0] == 1

        def test_next():
            assert manager().list([1])[0] == 1
        """,
    )
    assert found.verdicts == {"test_it": "noted", "test_next": "clean"}
    assert found.holder("test_it").startswith("test_it.STATE['manager']")


def test_a_shared_pool_that_starts_its_workers_late_is_a_note(run: Runner) -> None:
    found = found_in(
        run,
        """
        @pytest.fixture(scope="session")
        def pool():
            os.mkfifo("gate")
            with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
                yield pool
                opened = os.open("gate", os.O_RDWR)
            os.close(opened)

        def test_it(pool):
            # The re-run finds the first worker busy, until the gate is opened, so that the pool starts another.
            assert pool.submit(abs, -1).result() == 1
            KEPT.append(pool.submit(os.open, "gate", os.O_RDONLY))

        def test_next(pool):
            assert pool.submit(abs, -1).result() == 1
        """,
    )
    assert found.verdicts["test_it"] == "noted"
    assert found.result.ret == 0


def test_a_pool_of_the_tests_own_in_each_run_fails(run: Runner) -> None:
    found = found_in(
        run,
        """
        def test_it():
            pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
            KEPT.append(pool)
            assert pool.submit(abs, -1).result() == 1
        """,
        plugin=PLUGIN,
    )
    assert found.verdicts["test_it"] == "leaked"
    assert found.finding("test_it")["holder"]["root"] == "test_it.KEPT"


def test_one_that_is_replaced_does_not_grow(run: Runner) -> None:
    found = found_in(
        run,
        """
        def test_it():
            old = STATE.pop("server", None)
            if old is not None:
                old.communicate(b"\\n")
            STATE["server"] = start()

        def test_next():
            pass
        """,
    )
    assert found.verdicts == {"test_it": "noted", "test_next": "clean"}


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [(("--gpu-leak-retained-mb=1KiB",), "leaked"), (("--gpu-leak-retained-mb=2GiB",), "noted")],
)
def test_without_a_re_run_memory_decides(run: Runner, arguments: tuple[str, ...], verdict: str) -> None:
    found = found_in(
        run,
        """
        def test_it():
            assert not KEPT, "the port is in use"
            KEPT.append(start())

        def test_next():
            pass
        """,
        *arguments,
    )
    finding = found.finding("test_it")
    assert (found.verdicts["test_it"], finding["why_unconfirmed"]) == (verdict, "the re-run failed in call")


def test_with_confirm_0_each_that_is_left_fails(run: Runner) -> None:
    found = found_in(run, ONCE, "--gpu-leak-confirm=0", "--gpu-leak-retained-mb=2GiB")
    assert found.verdicts["test_it"] == "leaked"
    assert found.finding("test_it")["why_unconfirmed"] == "no re-run was asked for"


def test_processes_and_arrays_of_one_test_are_judged_by_the_same_re_run(run: Runner) -> None:
    found = found_in(
        run,
        """
        RUNS = []

        def test_it():
            RUNS.append(1)
            KEPT.append(Buffer(2**21))
            STATE.setdefault("server", start() if "server" not in STATE else None)

        def test_next():
            assert len(RUNS) == 3  # the last one is traced for the lines
        """,
    )
    kinds = {finding["kind"]: finding["failed"] for finding in found.tests["test_it"]["findings"]}
    assert kinds == {"process": False, "growing": True}
    assert found.tests["test_next"]["outcome"] == "passed"


FIXTURE = """
@pytest.fixture(scope="module")
def server():
    {body}

def test_it(server):
    pass
"""


@pytest.mark.parametrize(
    ("body", "failed"),
    [
        ('yield STATE.setdefault("server", start())', False),
        ('yield subprocess.Popen([sys.executable, "-S", "-c", OF_THE_RUN])', True),
    ],
    ids=["kept by a global", "dropped"],
)
def test_what_is_started_in_a_fixtures_setup_is_the_fixtures(run: Runner, body: str, failed: bool) -> None:
    found = found_in(run, FIXTURE.format(body=body))
    assert found.verdicts == {"test_it": "clean"}
    (finding,) = found.fixtures["server"]["findings"]
    assert (finding["kind"], finding["failed"]) == ("process", failed)
    assert found.result.ret == (1 if failed else 0)


def test_a_fixture_that_leaves_another_one_each_time_fails(run: Runner) -> None:
    found = found_in(
        run,
        """
        @pytest.fixture(scope="class")
        def server():
            KEPT.append(start())

        class TestA:
            def test_it(self, server):
                pass

        class TestB:
            def test_it(self, server):
                pass
        """,
    )
    assert [finding["failed"] for finding in found.fixtures["server"]["findings"]] == [False, True]


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


def test_pytest_as_another_rank_is_nobodys(run: Runner) -> None:
    """Lightning's launcher starts pytest again in the first test that needs a second rank, for all tests to come."""
    found = found_in(
        run,
        """
        import os, pathlib

        PROGRAM = pathlib.Path("pytest")
        PROGRAM.write_text("input()")  # once: a process that starts slowly would read what a re-run has truncated

        @pytest.mark.parametrize("environment", [{"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, {}], ids=["rank", "no_rank"])
        def test_it(environment):
            command, environment = [sys.executable, "-S", str(PROGRAM)], {**os.environ, **environment}
            KEPT.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE))

        def test_next():
            pass
        """,
    )
    assert found.verdicts == {"test_it[rank]": "clean", "test_it[no_rank]": "leaked", "test_next": "clean"}
