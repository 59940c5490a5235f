"""How an agent comes into a process, and that the process does not notice."""

from __future__ import annotations

import _imp
import contextlib
import importlib
import json
import os
import pickle
import socket
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.child import hook
from pytest_gpuleak.child.messages import MOST_BYTES, Lines
from pytest_gpuleak.model.version import __version__

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

posix = pytest.mark.skipif(sys.platform == "win32", reason="agents connect by a socket of POSIX systems")

GENERAL = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
TEXTS = st.text(st.characters(codec=None))
MESSAGES = st.lists(st.dictionaries(TEXTS, st.none() | st.booleans() | TEXTS, max_size=3), max_size=5)


@pytest.fixture
def listening(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    path = str(tmp_path_factory.mktemp("s") / "s")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        listening.settimeout(120)
        monkeypatch.setenv(hook.ENV, hook.Run(path, "/root", "1", __version__).text)
        yield listening


def start_program(text: str, *options: str, together: bool = False) -> subprocess.Popen[bytes]:
    """Start Python with a text that imports the package, and pipe its errors, or its output and errors `together`.

    With -S: where the package is installed, its .pth would start an agent before the text does.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(hook.__file__)))  # noqa: PTH120
    return subprocess.Popen(
        [sys.executable, "-S", *options, "-c", textwrap.dedent(text)],
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE if together else None,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
    )


@GENERAL
@given(TEXTS)
def test_a_greeting_is_json_whatever_the_name(name: str) -> None:
    assert json.loads(hook._quoted(name)) == json.loads(json.dumps(name))


@GENERAL
@given(MESSAGES, st.integers(1, 50))
def test_messages_arrive_however_they_are_cut(messages: list[object], size: int) -> None:
    sent = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
    lines = Lines()
    assert [one for at in range(0, len(sent), size) for one in lines.add(sent[at : at + size])] == messages


def test_what_never_ends_does_not_fill_the_memory() -> None:
    with pytest.raises(ValueError, match="without an end"):
        Lines().add(bytes(MOST_BYTES + 1))


@pytest.mark.parametrize(
    ("command", "left_out"),
    [
        (["python", "server.py"], False),
        (["python", "-m", "uvicorn", "app:app"], False),
        (
            ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()", "--multiprocessing-fork"],
            False,
        ),
        (["python", "-c", "from multiprocessing.resource_tracker import main;main(5)"], True),
        (["python", "-c", "from multiprocessing.forkserver import main; main(5)"], True),
        (["python", "-c", "from multiprocess.forkserver import main; main(5)"], True),
        (["/v/bin/python", "/v/bin/pytest", "tests"], True),
        (["python", "-m", "pytest"], True),
        (["python", "-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"], True),
        (["python", "/torch/_inductor/compile_worker/__main__.py"], True),
    ],
)
def test_which_processes_have_no_agent(command: list[str], left_out: bool) -> None:
    assert hook.is_left_out(command) is left_out


@posix
def test_a_child_without_the_package_says_so_and_goes_on(listening: socket.socket) -> None:
    data = pickle.dumps({"gpuleak": hook.Stowaway("Engine {0}"), "name": "x"})
    text = "import pickle, sys; assert pickle.load(sys.stdin.buffer) == {'gpuleak': None, 'name': 'x'}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", text], input=data, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    connection, _ = listening.accept()
    with connection, connection.makefile() as lines:
        greeting = json.loads(lines.readline())
    assert (greeting["name"], greeting["why"]) == (
        "Engine {0}",
        "pytest-gpuleak cannot be loaded there (ModuleNotFoundError)",
    )


@posix
@pytest.mark.parametrize(
    ("run", "flags"),
    [("gone\n/root\n1\n0", []), ("", ["-E"]), ("one line", ["-I"]), (f"{os.sep}" * 300 + "\n/root\n1\n0", [])],
)
def test_a_process_whose_run_is_gone_starts_as_ever(run: str, flags: list[str]) -> None:
    text = "from pytest_gpuleak.child.hook import start_at_site; start_at_site(); print('done')"
    path = f"import sys; sys.path.insert(0, {os.path.dirname(os.path.dirname(hook.__file__))!r} + '/..'); {text}"  # noqa: PTH120
    done = subprocess.run(
        [sys.executable, "-W", "error", *flags, "-c", path],
        env={**os.environ, hook.ENV: run},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@posix
def test_a_process_that_closes_all_descriptors_keeps_its_own_files(
    listening: socket.socket, tmp_path: pathlib.Path
) -> None:
    run = hook.current_run()
    assert run is not None
    entry = hook.Entry(run, "")
    connection, _ = listening.accept()
    number = entry.socket.fileno()
    with (tmp_path / "users").open("wb") as own:
        os.dup2(own.fileno(), number)  # as one that a daemon opens once it has closed all
        with pytest.raises(OSError, match="has closed the connection"):
            entry.send(op="bye")
        connection.close()
        entry.join(300)
    os.close(number)
    assert (tmp_path / "users").read_bytes() == b""
    with contextlib.suppress(OSError):
        entry.leave()


@posix
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses connections")
def test_a_full_queue_of_connections_is_waited_for_and_not_for_ever(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path_factory.mktemp("s") / "s")
    run = hook.Run(path, "/root", "1", __version__)
    with contextlib.ExitStack() as opened:
        listening = opened.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(path)
        listening.listen(0)
        opened.enter_context(socket.socket(socket.AF_UNIX)).connect(path)
        naps: list[float] = []

        def nap(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 3:
                opened.enter_context(listening.accept()[0])

        monkeypatch.setattr(time, "sleep", nap)
        entry = hook.Entry(run, "")
        assert len(naps) == 3
        monkeypatch.setattr(time, "sleep", naps.append)
        with pytest.raises(BlockingIOError):
            hook.Entry(run, "")
        assert sum(naps[3:]) == pytest.approx(hook.CONNECT_S)
    entry.join(300)


@posix
def test_a_signal_that_the_program_blocks_waits_for_it(listening: socket.socket) -> None:
    text = """
        import os, signal
        from pytest_gpuleak.child import hook
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        hook.start()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}) == {signal.SIGHUP}
        os.kill(os.getpid(), signal.SIGTERM)  # its default is to end the process
        assert signal.sigwait({signal.SIGTERM}) == signal.SIGTERM
    """
    program = start_program(text)
    assert program.communicate()[1] == b""
    assert program.returncode == 0


@posix
def test_its_thread_is_one_of_the_systems_whatever_replaces_them(listening: socket.socket) -> None:
    text = """
        import os, threading
        from pytest_gpuleak.child import hook
        import _thread
        _thread.start_new_thread = threading._start_new_thread = None  # as gevent does, for greenlets
        hook.start()
        assert hook._entries[os.getpid()].join(300)
    """
    program = start_program(text)
    connection, _ = listening.accept()
    with connection:
        assert connection.recv(1 << 16)
    assert program.communicate(timeout=300)[1] == b""
    assert program.returncode == 0


@posix
def test_one_that_ends_says_so_and_waits_for_nobody(listening: socket.socket) -> None:
    run = hook.current_run()
    assert run is not None
    entry = hook.Entry(run, "")
    connection, _ = listening.accept()
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            entry.socket.send(b" " * 4096, socket.MSG_DONTWAIT)  # the run does not read
    entry._shut()
    assert entry.join(300)
    connection.close()

    other = hook.Entry(run, "")
    connection, _ = listening.accept()
    with connection, connection.makefile() as lines:
        other._shut()
        assert [json.loads(line)["op"] for line in lines] == ["hello", "bye"]


@posix
def test_what_cannot_be_told_costs_the_process_nothing(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = hook.current_run()
    assert run is not None
    entry = hook.Entry(run, "")

    def refuse(*_: object, **__: object) -> str:
        raise MemoryError

    monkeypatch.setattr(json, "dumps", refuse)
    entry.leave_run("its check failed")
    entry._shut()


@posix
def test_children_of_a_child_have_agents_where_the_child_had_its_own_before_multiprocessing(
    listening: socket.socket,
) -> None:
    text = """
        import sys
        from pytest_gpuleak.child import hook
        hook.start()
        assert "multiprocessing" not in sys.modules
        from multiprocessing import spawn
        hook.start("Engine")  # from the preparation data
        assert type(spawn.get_preparation_data("x")["gpuleak"]) is hook.Stowaway
    """
    program = start_program(text)
    assert program.communicate()[1] == b""
    assert program.returncode == 0


@posix
def test_an_agent_that_came_by_the_file_tells_once_what_multiprocessing_calls_its_process() -> None:
    text = """
        import multiprocessing
        from pytest_gpuleak.child.agent import Agent
        from pytest_gpuleak.model.policy import Policy
        class Entry:
            def send(self, **message): print(message.get("name") or message["op"])
        agent = Agent(Entry(), "/root")
        begin = {"op": "begin", "seq": 1, "policy": Policy()._asdict()}
        agent.answer(begin)
        multiprocessing.current_process().name = "Engine"  # as its preparation data does
        agent.answer(begin)
        agent.answer(begin)
        agent.stop()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["begun", "Engine", "begun", "begun"], "")


@posix
def test_a_fork_has_an_agent_of_its_own_and_ends_in_silence(listening: socket.socket) -> None:
    text = """
        import os, sys
        assert "threading" not in sys.modules
        from pytest_gpuleak.child import hook

        class LoudEntry(hook.Entry):
            def __init__(self, *given):
                try:
                    super().__init__(*given)
                except BaseException:
                    import traceback  # a fork would swallow it
                    traceback.print_exc()
                    raise

        hook.Entry = LoudEntry
        hook.start()
        if (pid := os.fork()) == 0:
            import time
            while os.path.isdir("/proc/self/task") and len(os.listdir("/proc/self/task")) > 1:
                time.sleep(0.01)  # the run is gone soon, and the agent with it
            sys.exit()  # the interpreter's whole end, unlike `os._exit`
        sys.exit(os.waitpid(pid, 0)[1])
    """
    done = start_program(text, "-W", "error", together=True)
    pids: list[int] = []
    for _ in range(2):
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            status = done.poll()
            done.kill()
            pytest.fail(f"agents that have greeted: {pids}; status {status}; output: {done.communicate()[0]!r}")
        with connection, connection.makefile() as lines:
            pids.append(json.loads(lines.readline())["pid"])
    output, _ = done.communicate(timeout=300)
    assert (done.returncode, output) == (0, b"")
    assert pids[0] == done.pid != pids[1]


@pytest.mark.parametrize("ends", [True, False])
def test_the_agent_imports_while_no_other_thread_does_and_does_not_wait_for_ever(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    (tmp_path / "takes_long.py").write_text("import sys\nsys.begun.set()\nsys.go_on.wait(300)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    begun, go_on, waits = threading.Event(), threading.Event(), []
    monkeypatch.setattr(sys, "begun", begun, raising=False)
    monkeypatch.setattr(sys, "go_on", go_on, raising=False)
    other = threading.Thread(target=importlib.import_module, args=("takes_long",))

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if ends:
            go_on.set()
            other.join(300)

    monkeypatch.setattr(time, "sleep", sleep)
    other.start()
    assert begun.wait(300)
    alone = hook.Entry.import_alone(lambda: "takes_long" in sys.modules and not other.is_alive())
    assert (alone, len(waits) == 1) == (ends, ends)
    go_on.set()
    other.join(300)
    assert not _imp.lock_held()
    del sys.modules["takes_long"]
