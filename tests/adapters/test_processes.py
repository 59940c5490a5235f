"""Processes that outlive their test: whose they are, which are nobody's, and what is said of them."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import subprocess
import sys
import time
import types
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.nvml.readings import NvmlReading, ProcessMemory
from pytest_gpuleak.adapters.processes import facts as process_facts
from pytest_gpuleak.adapters.processes import kinds as process_kinds
from pytest_gpuleak.adapters.processes import watch as process_watch
from pytest_gpuleak.adapters.processes.facts import LeftProcess, children_by_file
from pytest_gpuleak.adapters.processes.kinds import FORK, is_helper, is_other_rank, program_of
from pytest_gpuleak.adapters.processes.watch import ProcessWatch, has_children, last_start
from pytest_gpuleak.engine.judge.processes import judge_processes
from tests.conftest import forget_torch
from tests.support.calls import count_calls

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

pytest.importorskip("psutil")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are started as on POSIX")

MIB = 1 << 20
WAITS = "print(flush=True); input()"
WITH_A_CHILD = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE);"
    "print(child.pid, flush=True); input(); child.communicate(b'\\n')"
)


class Starter:
    """Starts processes that run until they are told to end."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []

    def __call__(self, code: str = WAITS, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._running.append(process)
        return process

    def end(self, process: subprocess.Popen[str]) -> None:
        process.communicate("\n")

    def end_all(self) -> None:
        for process in self._running:
            if process.returncode is None:
                process.communicate("\n")
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def start() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    starter.end_all()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> ProcessWatch:
    monkeypatch.setattr(process_facts, "MOST_WAITS", 4)
    watch = ProcessWatch()
    watch.begin()
    return watch


def pids_of(left: list[LeftProcess]) -> list[int]:
    return [process.pid for process in left]


def test_a_process_that_outlives_the_test_is_left_and_belongs_to_no_later_test(
    watch: ProcessWatch, start: Starter
) -> None:
    assert not watch.suspects()
    process = start()
    assert watch.suspects()
    (left,) = watch.left()
    assert (left.pid, left.parent, left.program) == (process.pid, os.getpid(), "python -c")
    assert left.command.endswith(WAITS)
    assert abs(left.created - time.time()) < 5
    assert left.own_bytes is None or left.own_bytes > 0
    watch.begin()
    assert watch.left() == []
    another = start()
    assert pids_of(watch.left()) == [another.pid]


def test_one_that_has_ended_is_not_left_whether_it_was_waited_for_or_not(watch: ProcessWatch, start: Starter) -> None:
    waited_for, zombie = start(), start()
    start.end(waited_for)
    assert zombie.stdin is not None
    zombie.stdin.write("\n")
    zombie.stdin.flush()
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert watch.left() == []
    assert zombie.wait() == 0  # nobody took its exit status away


def test_one_that_is_going_is_waited_for(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = ProcessWatch()
    watch.begin()
    process = start()
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            start.end(process)

    monkeypatch.setattr(time, "sleep", nap)
    assert watch.left() == []
    assert naps == [0.001, 0.002, 0.004]


def test_waits_double_and_end_after_a_second(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = ProcessWatch()
    watch.begin()
    start()
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    assert len(watch.left()) == 1
    assert naps[:4] == [0.001, 0.002, 0.004, 0.008]
    assert sum(naps) == pytest.approx(1.0, abs=0.03)


def test_what_a_left_process_has_started_stands_below_it(watch: ProcessWatch, start: Starter) -> None:
    process = start(WITH_A_CHILD)
    assert process.stdout is not None
    grandchild = int(process.stdout.readline())
    (left,) = watch.left()
    assert left.pid == process.pid
    assert [(below.pid, below.parent) for below in left.descendants] == [(grandchild, process.pid)]
    (finding,) = judge_processes([left])
    assert (finding.count, len(finding.contributions)) == (2, 2)
    assert "with 1 that it has started" in finding.evidence


def test_what_an_older_process_starts_during_a_test_is_not_the_tests(watch: ProcessWatch, start: Starter) -> None:
    server = start("input(); " + WITH_A_CHILD)
    watch.begin()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write("\n")
    server.stdin.flush()
    int(server.stdout.readline())
    assert watch.left() == []


def test_a_wider_fixtures_processes_are_the_fixtures_until_it_is_finalised(watch: ProcessWatch, start: Starter) -> None:
    of_the_test = start()
    watch.enter_setup()
    outer = start()
    watch.enter_setup()
    inner = start()
    watch.adopt(1)
    watch.adopt(2)
    assert pids_of(watch.left()) == [of_the_test.pid]
    watch.begin()
    start.end(inner)
    assert watch.left() == []
    assert watch.released(1) == []
    assert pids_of(watch.released(2)) == [outer.pid]
    assert watch.released(2) == []
    assert watch.released(3) == []


def test_adopting_without_an_announced_setup_takes_what_is_new(watch: ProcessWatch, start: Starter) -> None:
    process = start()
    watch.adopt(1)
    assert watch.left() == []
    assert pids_of(watch.released(1)) == [process.pid]


def test_of_many_processes_those_that_are_known_are_not_asked_for_again(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, many = ProcessWatch(), [start() for _ in range(30)]
    watch.begin()
    monkeypatch.setattr(watch, "_read_last_start", lambda: None)  # others start and end all the time
    asked: list[int] = []
    ask = process_facts._ask

    def note(pid: int, question: Any, otherwise: Any = None) -> Any:
        asked.append(pid)
        return ask(pid, question, otherwise)

    monkeypatch.setattr(process_facts, "_ask", note)
    assert count_calls(watch.suspects) < 40 * len(many)
    assert asked == []
    another = start()
    start.end(many.pop())
    assert watch.suspects()
    assert set(asked) == {another.pid, os.getpid()}


def test_a_pid_that_another_process_has_by_now_is_anothers(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start()
    watch = ProcessWatch(lambda: {process.pid: os.getpid()})
    watch.begin()
    monkeypatch.setattr(watch, "_read_last_start", lambda: None)
    (before,) = watch._look()
    monkeypatch.setattr(process_facts, "start_of", lambda _: b"another start")
    (now,) = watch._look()
    assert now is not before
    assert now.pid == before.pid == process.pid
    assert watch._look().keys() == {now}


def test_what_starts_between_two_tests_is_neither_s(watch: ProcessWatch, start: Starter) -> None:
    assert not watch.suspects()
    start()  # by a hook, say
    watch.begin()
    assert not watch.suspects()


def test_the_resource_tracker_and_the_fork_server_are_no_tests(watch: ProcessWatch) -> None:
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=time.sleep, args=(30,), name="sleeper")
    process.start()
    try:
        (left,) = watch.left()
        assert (left.pid, left.name) == (process.pid, "sleeper")
        assert left.parent != os.getpid()
    finally:
        process.kill()
        process.join()
        process.close()
    assert watch.left() == []
    from multiprocessing import forkserver, resource_tracker

    running = process_facts.list_descendants()
    assert resource_tracker._resource_tracker._pid in running  # type: ignore[attr-defined]
    assert forkserver._forkserver._forkserver_pid in running  # type: ignore[attr-defined]


def test_a_fork_is_named_as_what_it_is(watch: ProcessWatch) -> None:
    ours, theirs = os.pipe()
    pid = os.fork() if sys.version_info < (3, 12) else fork_quietly()
    if pid == 0:
        os.read(ours, 1)
        os._exit(0)
    try:
        (left,) = watch.left()
        assert (left.pid, left.command, left.program) == (pid, FORK, FORK)
    finally:
        os.write(theirs, b"\n")
        os.waitpid(pid, 0)
        os.close(ours)
        os.close(theirs)


def fork_quietly() -> int:
    """Fork, without the warning of Python 3.12 and newer for a process with several threads."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def test_a_worker_of_an_executor_is_known_as_one(watch: ProcessWatch) -> None:
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        worker = executor.submit(os.getpid).result()
        (left,) = watch.left()
        assert (left.pid, left.pool, left.program) == (worker, "ProcessPoolExecutor", "multiprocessing.spawn")
        assert left.pool_id == process_kinds.executor_pools()[worker] != 0
        (finding,) = judge_processes([left])
        assert "executor.shutdown()" in str(finding.hint)
    assert watch.left() == []


@pytest.mark.torch
def test_a_dataloaders_workers_are_known_as_such(watch: ProcessWatch) -> None:
    data: Any = pytest.importorskip("torch.utils.data")
    loader = data.DataLoader(range(4), num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 4
    assert [process.pool for process in watch.left()] == ["DataLoader"]
    del loader
    assert watch.left() == []


def test_a_pools_workers_are_known_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_kinds, "process_names", lambda: {7: "ForkPoolWorker-3", 8: "Process-1"})
    assert process_kinds.pool_workers([7, 8]) == {7: "multiprocessing.Pool"}


@pytest.mark.parametrize(
    "command",
    [
        ["python", "-c", "from multiprocessing.resource_tracker import main;main(7)"],
        ["python", "-c", "from multiprocess.resource_tracker import main;main(7)"],
        ["python", "-c", "from billiard.semaphore_tracker import main;main(7)"],
        ["python", "-c", "from joblib.externals.loky.backend.resource_tracker import main; main(9, 0)"],
        ["python", "-m", "joblib.externals.loky.backend.popen_loky_posix", "--process-name", "LokyProcess-1"],
        ["python", "/site-packages/torch/_inductor/compile_worker/__main__.py", "--workers=4"],
        ["binary", "--pickler=torch._inductor.compile_worker.subproc_pool.SubprocPickler", "--kind=fork"],
        ["/site-packages/ray/core/src/ray/raylet/raylet", "--raylet_socket_name=x"],
        ["/site-packages/ray/core/src/ray/gcs/gcs_server", "--redis"],
        ["ray::IDLE"],
        ["python", "-u", "/site-packages/ray/_private/log_monitor.py"],
        ["python", "-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"],
    ],
)
def test_what_lives_until_the_end_by_design_is_nobodys(command: list[str]) -> None:
    assert is_helper(command)


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["python", "-m", "http.server"],
        ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(7)"],
        ["python", "-c", "from multiprocessing.forkserver import main; main(3, 4)"],
        ["python", "train.py", "--ray"],
        ["VLLM::EngineCore"],
        ["/home/ray/python", "serve.py"],
    ],
)
def test_what_a_test_may_have_left_is_no_helper(command: list[str]) -> None:
    assert not is_helper(command)


@pytest.mark.parametrize(
    ("command", "environment", "expected"),
    [
        (["python", "-m", "pytest.__main__", "tests"], {"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, True),
        (["/venv/bin/python", "/venv/bin/pytest"], {"WORLD_SIZE": "4", "RANK": "3"}, True),
        (["python", "-m", "pytest"], {"WORLD_SIZE": "2", "LOCAL_RANK": "0"}, False),
        (["python", "-m", "pytest"], {"WORLD_SIZE": "1", "LOCAL_RANK": "1"}, False),
        (["python", "-m", "pytest"], {}, False),
        (["python", "train.py"], {"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, False),
        ([], {"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, False),
    ],
)
def test_another_rank_is_pytest_with_another_rank_in_its_environment(
    monkeypatch: pytest.MonkeyPatch, command: list[str], environment: dict[str, str], *, expected: bool
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.delenv("RANK", raising=False)
    assert is_other_rank(command, lambda: environment) is expected


def test_helpers_and_all_that_they_start_are_left_out(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_facts, "MOST_WAITS", 4)
    watch = ProcessWatch()
    watch.begin()
    helper = start(WITH_A_CHILD, "--pickler=torch._inductor.compile_worker.subproc_pool.SubprocPickler")
    assert helper.stdout is not None
    helper.stdout.readline()
    assert not watch.suspects()
    assert watch.left() == []


def test_under_xdist_a_fork_of_the_worker_is_not_taken_for_a_worker(
    watch: ProcessWatch, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start()
    bootstrap = ["python", "-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"]
    monkeypatch.setattr(process_facts, "command_line", lambda pid: bootstrap)
    (left,) = watch.left()
    assert (left.pid, left.program) == (process.pid, FORK)


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["/usr/bin/python3.11", "-m", "vllm.server", "--port", "8000"], "vllm.server"),
        (["python", "-u", "-X", "dev", "-W", "error", "/tmp/pytest-7/server.py", "x"], "server.py"),
        (["python3", "-c", "print()"], "python -c"),
        (["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(7)"], "multiprocessing.spawn"),
        (["C:\\Python\\python.exe", "-m", "app"], "app"),
        (["/usr/bin/redis-server", "*:6379"], "redis-server"),
        (["VLLM::EngineCore"], "VLLM::EngineCore"),
        (["python"], "python"),
        (["python", "-m"], "python"),
        ([], "unknown"),
    ],
)
def test_a_program_is_named_without_what_differs_from_run_to_run(command: list[str], program: str) -> None:
    assert program_of(command) == program


def a_process(pid: int = 4711, **fields: Any) -> LeftProcess:
    given = {"created": 0.0, "age_s": 3.2, "parent": 1, "command": "python -m app", "program": "app", **fields}
    return LeftProcess(pid=pid, **given)


def a_reading(*children: ProcessMemory) -> NvmlReading:
    return NvmlReading("GPU-1", "Test GPU", 80 << 30, 1 << 30, own=0, children=children)


def test_a_left_process_fails_and_says_what_it_is() -> None:
    (finding,) = judge_processes([a_process(own_bytes=5 * MIB, name="Process-1")])
    assert (finding.kind, finding.failed, finding.device) == ("process", True, "cpu")
    assert (finding.count, finding.bytes, finding.bytes_per_run) == (1, 5 * MIB, 0)
    assert finding.metric == "pid 4711"
    assert [(part.text, part.bytes) for part in finding.contributions] == [("python -m app", 5 * MIB)]
    assert finding.evidence == (
        "age: about 3 s; started by pid 1",
        "multiprocessing's name: Process-1",
    )


@pytest.mark.parametrize(
    ("name", "pool", "advice"),
    [
        ("", "", "`process.terminate(); process.wait()`"),
        ("SpawnProcess-2", "", "`process.terminate(); process.join()`"),
        ("SyncManager-1", "", "`manager.shutdown()`"),
        ("ForkPoolWorker-1", "multiprocessing.Pool", "`pool.terminate(); pool.join()`"),
    ],
)
def test_a_left_process_is_ended_by_what_started_it(name: str, pool: str, advice: str) -> None:
    (finding,) = judge_processes([a_process(name=name, pool=pool)])
    assert advice in str(finding.hint)


def test_a_process_on_a_device_is_found_there_with_the_bytes_of_all_that_it_started() -> None:
    left = a_process(own_bytes=5 * MIB, descendants=(a_process(4712, own_bytes=MIB, command="python worker.py"),))
    readings = {
        "cuda:0": a_reading(ProcessMemory(4711, MIB), ProcessMemory(99, 700 * MIB)),
        "cuda:1": a_reading(ProcessMemory(4712, 300 * MIB), ProcessMemory(4711, None)),
    }
    (finding,) = judge_processes([left], readings)
    assert (finding.device, finding.bytes, finding.count) == ("cuda:1", 300 * MIB, 2)
    assert [(part.text, part.bytes) for part in finding.contributions] == [
        ("python worker.py", 300 * MIB),
        ("python -m app", 0),
    ]
    assert finding.evidence[-2:] == ("on cuda:0: 1.0 MiB", "on cuda:1: 300.0 MiB")


def test_bytes_that_the_driver_does_not_know_leave_the_finding_on_the_host() -> None:
    (finding,) = judge_processes([a_process()], {"cuda:0": a_reading(ProcessMemory(4711, None))})
    assert (finding.device, finding.bytes) == ("cpu", 0)


def test_the_fingerprint_is_the_programs_and_not_the_processs() -> None:
    one, other, third = judge_processes(
        [a_process(1, command="python -m app --port 1"), a_process(2, age_s=9.0), a_process(3, program="other")]
    )
    assert one.fingerprint == other.fingerprint != third.fingerprint
    assert judge_processes([]) == ()


def test_a_command_line_cannot_reach_the_terminal_and_is_cut(watch: ProcessWatch, start: Starter) -> None:
    start(WAITS, "\x1b[2J", "x" * 500)
    (left,) = watch.left()
    assert "\x1b" not in left.command
    assert "\\x1b[2J" in left.command
    assert len(left.command) <= 200


def test_without_the_kernels_list_of_children_the_same_is_found(
    watch: ProcessWatch, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_facts, "children_by_file", lambda pid: None)
    process = start(WITH_A_CHILD)
    assert process.stdout is not None
    grandchild = int(process.stdout.readline())
    (left,) = watch.left()
    assert (left.pid, pids_of(list(left.descendants))) == (process.pid, [grandchild])


def test_children_are_read_from_each_threads_file(tmp_path: pathlib.Path) -> None:
    for name, children in {"10/task/10": "20 ", "10/task/11": "21", "20/task/20": "30", "21/task/21": ""}.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "children").write_text(children)
    assert children_by_file(10, str(tmp_path)) == {20: 10, 21: 10, 30: 20}
    (tmp_path / "40/task/40").mkdir(parents=True)
    assert children_by_file(40, str(tmp_path)) is None
    assert children_by_file(50, str(tmp_path)) is None  # it runs, so the system has no such folders


def test_where_a_thread_ends_while_the_children_are_listed_they_are_listed_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives its children to another thread, whose file may have been read already."""
    for thread, children in {"10": "", "11": "20"}.items():
        (tmp_path / "10/task" / thread).mkdir(parents=True)
        (tmp_path / "10/task" / thread / "children").write_text(children)
    listdir = os.listdir

    def listed(folder: str) -> list[str]:
        found = listdir(folder)
        if "11" in found:
            (tmp_path / "10/task/10/children").write_text("20")
            (tmp_path / "10/task/11/children").unlink()
            (tmp_path / "10/task/11").rmdir()
        return found

    monkeypatch.setattr(os, "listdir", listed)
    assert children_by_file(10, str(tmp_path)) == {20: 10}


def test_while_nothing_is_started_the_list_is_not_made_again(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    if last_start() is None:
        pytest.skip("no /proc/loadavg")
    start()
    made = 0

    def make() -> dict[int, int]:
        nonlocal made
        made += 1
        return {}

    number = 7
    monkeypatch.setattr(process_watch, "last_start", lambda: number)
    watch = ProcessWatch(make)
    watch._counts_starts = True
    watch.begin()
    watch.left()
    watch.begin()
    assert made == 1
    number = 8
    watch.left()
    assert made == 2


@pytest.mark.parametrize("answer", [None, 0])
def test_a_number_that_stands_still_is_not_believed(monkeypatch: pytest.MonkeyPatch, answer: int | None) -> None:
    monkeypatch.setattr(process_watch, "last_start", lambda: answer)
    assert not process_watch.starts_are_counted()


def test_without_children_no_list_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_watch, "has_children", lambda: False)

    def never() -> dict[int, int]:
        raise AssertionError

    watch = ProcessWatch(never)
    watch.begin()
    watch.enter_setup()
    watch.adopt(1)
    assert watch.left() == []


def test_children_are_seen_by_one_call(start: Starter) -> None:
    start()
    assert has_children()
    code = "from pytest_gpuleak.adapters.processes.watch import has_children; print(has_children())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def put_compile_pools(monkeypatch: pytest.MonkeyPatch, pools: list[object]) -> None:
    """Put a stand-in for the module of torch's that keeps its pools of compiling processes."""
    forget_torch(monkeypatch)
    module = types.ModuleType("torch._inductor.async_compile")
    vars(module)["_pool_set"] = pools
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_a_broken_private_table_costs_the_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "multiprocessing.process", type("Module", (), {"_children": 7}))
    put_compile_pools(monkeypatch, [object()])
    assert process_kinds.process_names() == {}
    assert process_kinds.helper_pids() == set()


def test_workers_that_were_forked_to_compile_are_nobodys(
    watch: ProcessWatch, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pool:
        def __init__(self, pid: int) -> None:
            self._processes = {pid: object()}

    process = start()
    put_compile_pools(monkeypatch, [Pool(process.pid)])
    assert watch.left() == []


def test_starts_and_ends_of_descendants_are_told_once(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0

    def count() -> int:
        return now

    monkeypatch.setattr(process_watch, "last_start", count)
    monkeypatch.setattr(process_watch, "starts_are_counted", lambda: True)
    running: dict[int, int] = {}
    watched = ProcessWatch(lambda: running)  # earlier tests' fork server may have children that end meanwhile
    watched.begin()
    assert watched.may_have_changed()  # the first call
    assert not watched.may_have_changed()
    child, now = start(), 1
    running[child.pid] = os.getpid()
    watched.begin()
    assert watched.may_have_changed()
    assert not watched.may_have_changed()
    now = 2  # anybody's process, which may be a child's
    assert watched.may_have_changed()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert watched.may_have_changed()  # a zombie
    child.wait()
    now = 3
    watched.begin()
    assert watched.may_have_changed()
    assert not watched.may_have_changed()


@pytest.mark.parametrize(("name", "answer"), [("starts_are_counted", False), ("ended_children", None)])
def test_where_starts_or_ends_are_not_counted_there_may_always_have_been_one(
    start: Starter, monkeypatch: pytest.MonkeyPatch, name: str, answer: object
) -> None:
    monkeypatch.setattr(process_watch, name, lambda: answer)
    watched = ProcessWatch()
    start()
    watched.begin()
    assert watched.may_have_changed()
    assert watched.may_have_changed()
