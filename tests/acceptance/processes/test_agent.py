"""`--gpu-leak-children=agent`: leaks in the processes that wider fixtures have started, named from within."""

from __future__ import annotations

import pathlib
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

pytest.importorskip("psutil")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="agents connect by a socket of POSIX systems")

HEAD = """
    import contextlib, multiprocessing, os, signal, subprocess, sys, time, warnings
    import pytest

    BLOCKS, STATE = [], {}

    def serve(connection):
        warnings.simplefilter("error")  # as in a suite that is run so
        while (asked := connection.recv()) is not None:
            connection.send(asked(connection))

    def nothing(_):
        return os.getpid()

    def keep(_):
        BLOCKS.append(bytearray(b"x") * (16 << 20))

    def fill(_):
        STATE.setdefault("cache", bytearray(b"x") * (16 << 20))

    def replace(_):
        STATE["last"] = bytearray(b"x") * (16 << 20)

    class Server:
        def __init__(self, how, name="EngineCore"):
            context = multiprocessing.get_context(how)
            self.connection, theirs = context.Pipe()
            self.process = context.Process(target=serve, args=(theirs,), name=name, daemon=True)
            self.process.start()

        def ask(self, what):
            self.connection.send(what)
            return self.connection.recv()

        def stop(self):
            with contextlib.suppress(OSError):  # it has been killed
                self.connection.send(None)
            self.process.join()

    @pytest.fixture(scope="session", params=METHODS)
    def server(request):
        server = Server(request.param)
        yield server
        server.stop()
"""


PATIENCE = """
from pytest_gpuleak.session.features.children import agents

agents.START_S = agents.JUDGE_S = 300
agents.ANSWER_S = {}
"""


def found_in(
    run: Runner, test: str, *arguments: str, methods: tuple[str, ...] = ("spawn",), answer_s: float = 300
) -> Run:
    head = textwrap.dedent(HEAD).replace("METHODS", repr(methods))
    with pathlib.Path("conftest.py").open("a", encoding="utf-8") as conftest:  # this machine may be slow
        conftest.write(PATIENCE.format(answer_s))
    return run(head + textwrap.dedent(test), "--gpu-leak-children=agent", *arguments, apart=True)


SERVED = """
    def names(_):
        import threading
        return [one.name for one in threading.enumerate()]
    def fork(_):
        if (pid := os.fork()) == 0:
            os._exit(0)
        return os.waitpid(pid, 0)[1]
    def fork_with_hook(_):
        return subprocess.run([sys.executable, "-c", ""], preexec_fn=int).returncode
    def test_first(server): server.ask(nothing)
    @pytest.mark.parametrize("i", range(2))
    def test_stream(server, i): server.ask(keep)
    def test_fills(server): server.ask(fill)
    def test_replaces(server): server.ask(replace)
    def test_replaces_again(server): server.ask(replace)
    def test_names(server): assert server.ask(names) == ["MainThread"]  # joining the agent's would never return
    def test_forks(server): assert server.ask(fork) == server.ask(fork_with_hook) == 0
    def test_last(server): server.ask(nothing)
"""


def test_what_grows_in_a_server_fails_with_its_holder_and_process_and_the_agent_disturbs_nothing_there(
    run: Runner,
) -> None:
    methods = ("spawn", "fork", "forkserver")
    found = found_in(run, SERVED, "-W", "error", methods=methods)
    found.result.assert_outcomes(passed=9 * len(methods))
    leaked = [name for name, verdict in found.verdicts.items() if verdict == "leaked"]
    assert leaked == [f"test_stream[{method}-{number}]" for method in methods for number in (0, 1)]
    for finding in (found.finding(name) for name in leaked if name.endswith("0]")):
        assert finding["process"]["name"] == "EngineCore"
        assert finding["process"]["fixture"] == "server"
        assert "BLOCKS" in str([finding["holder"], finding["contributions"]])
        assert finding["bytes_per_run"] >= 16 << 20
    found.result.stdout.fnmatch_lines(["LEAKED *::test_stream* - 16.0 MiB* in EngineCore (pid *, fixture 'server')"])
    # What is kept once, or replaced, is the server's state; the first test has seen the server start.
    assert not any(one["failed"] for name in found.tests if name not in leaked for one in found.tests[name]["findings"])
    assert {found.verdicts[name] for name in found.tests if name not in leaked} <= {"clean", "noted"}


def test_a_test_in_whose_setup_a_wider_fixture_ends_is_checked_as_any(run: Runner) -> None:
    suite = """
        def test_keeps(server): server.ask(keep)
        def test_last(server): server.ask(nothing)
    """
    found = found_in(run, suite, methods=("spawn", "fork"))  # one server ends in the setup of the next one's first test
    assert found.verdicts["test_keeps[spawn]"] == found.verdicts["test_keeps[fork]"] == "leaked"


@pytest.mark.parametrize(
    ("mode", "leaked"), [("off", []), ("heap", ["test_keeps"]), ("tracemalloc", ["test_keeps", "test_keeps_small"])]
)
def test_the_hosts_memory_is_watched_there_as_the_run_is_told(run: Runner, mode: str, leaked: list[str]) -> None:
    suite = """
        def keep_small(_): BLOCKS.append([bytes(400) for _ in range(40_000)])  # which malloc does not see
        def test_first(server): server.ask(nothing)
        def test_keeps(server): server.ask(keep)
        def test_keeps_small(server): server.ask(keep_small)
        def test_last(server): server.ask(nothing)
    """
    found = found_in(run, suite, f"--gpu-leak-host={mode}")
    assert [name.removesuffix("[spawn]") for name, verdict in found.verdicts.items() if verdict == "leaked"] == leaked


def test_one_rerun_serves_the_run_and_its_helpers_and_a_baseline_knows_both(run: Runner) -> None:
    suite = """
        MINE = []
        def test_first(server): server.ask(nothing)
        def test_both(server):
            with open("runs", "a") as file: file.write("x")
            server.ask(keep)
            MINE.append(bytearray(b"x") * (16 << 20))
        def test_helpers(server):
            with open("runs", "a") as file: file.write("y")
            server.ask(keep)
        def test_last(server): server.ask(nothing)
    """
    found = found_in(run, suite, "--gpu-leak-update-baseline", "--gpu-leak-baseline=known.toml")
    here, there = sorted(found.tests["test_both[spawn]"]["findings"], key=lambda one: one["process"] is not None)
    assert (here["process"], there["process"]["name"]) == (None, "EngineCore")
    assert here["fingerprint"] != there["fingerprint"]
    text = pathlib.Path("runs").read_text(encoding="utf-8")
    # Each allocation of plain bytes is recorded in one re-run more, of which both make one.
    assert text.count("x") == text.count("y") == 3
    again = found_in(run, suite, "--gpu-leak-baseline=known.toml")  # other pids
    assert not any(one["failed"] for test in again.tests.values() for one in test["findings"])
    again.result.assert_outcomes(passed=4)


def test_one_that_does_not_answer_costs_a_verdict_in_that_process(run: Runner) -> None:
    suite = """
        def test_first(server): server.ask(nothing)
        def test_stopped(server):
            os.kill(server.process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, server.process.pid, os.WSTOPPED | os.WNOWAIT)  # `kill` does not wait for its threads
        def test_still_stopped(server): pass
        def test_goes_on(server):
            os.kill(server.process.pid, signal.SIGCONT)
            server.ask(nothing)
        def test_ends_it(server): os.kill(server.ask(nothing), signal.SIGKILL)
        def test_without_it(): pass
    """
    found = found_in(run, suite, answer_s=1)
    assert "leaked" not in found.verdicts.values()
    unchecked = {name for name, verdict in found.verdicts.items() if verdict == "unchecked"}
    # On a slow machine the others may be late as well.
    assert {"test_stopped[spawn]", "test_still_stopped[spawn]"} <= unchecked
    assert found.verdicts["test_without_it"] == "clean"
    why = found.tests["test_stopped[spawn]"]["why_unchecked"]
    assert why.startswith("in EngineCore (pid ")
    assert why.endswith(", fixture 'server'): it did not answer within 1 s")


def test_one_that_grows_late_or_ends_before_the_rerun_blames_nobody(run: Runner) -> None:
    suite = """
        import pathlib, threading
        GROW, GROWN = (pathlib.Path(__file__).with_name(name) for name in ("grow", "grown"))
        def wait_and_keep(connection):
            def grow():
                while not GROW.exists():
                    time.sleep(0.01)
                keep(connection)
                GROWN.touch()
            threading.Thread(target=grow, daemon=True).start()

        @pytest.fixture(scope="module")
        def second():
            server = Server("spawn", "Second")
            yield server
            server.stop()
        def test_first(second): second.ask(nothing)
        def test_grows_late(second): second.ask(wait_and_keep)
        def test_does_not_use_it():
            GROW.touch()
            while not GROWN.exists():
                time.sleep(0.01)
        @pytest.fixture(scope="module")
        def only_once(second):
            if GROWN.exists():
                GROWN.unlink()
            else:
                pytest.skip("it was set up before")
        def test_before_its_end(second, only_once): second.ask(keep)
    """
    found = found_in(run, suite)
    assert "leaked" not in found.verdicts.values()
    found.result.stdout.fnmatch_lines_random([
        "*Second (pid *, fixture 'second') grew in *::test_does_not_use_it, which does not use its fixture: no test is blamed",
        "*Second (pid *, fixture 'second') has ended before *::test_before_its_end was run again: what was left there is not judged",
    ])  # fmt: skip


def test_the_last_test_of_a_server_is_judged_in_the_one_that_its_re_runs_start(run: Runner) -> None:
    suite = """
        @pytest.fixture(scope="module")
        def other():
            server = Server("spawn", "Other")
            yield server
            server.stop()
        def test_fills(other):
            other.ask(fill)
        def fill(_): STATE.setdefault("cache", bytearray(b"x") * (16 << 20))
        def test_last(server, other):
            server.ask(keep)
            other.ask(fill)
    """
    found = found_in(run, suite, methods=("spawn",))
    assert found.verdicts == {"test_fills": "clean", "test_last[spawn]": "leaked"}
    (finding,) = [one for one in found.tests["test_last[spawn]"]["findings"] if one["failed"]]
    assert (finding["kind"], finding["process"]["name"], finding["process"]["fixture"]) == (
        "host",
        "EngineCore",
        "server",
    )


def test_a_process_of_subprocess_comes_in_by_the_file_beside_the_package(run: Runner, tmp_path: pathlib.Path) -> None:
    pth = pathlib.Path(__file__).parents[3] / "pytest_gpuleak/child/pytest_gpuleak.pth"
    (tmp_path / pth.name).write_bytes(pth.read_bytes())
    server = f"""
        import site, sys
        site.addsitedir({str(tmp_path)!r})  # what Python does with its own folder of packages as it starts
        CACHE = []
        print("ready", flush=True)
        for line in sys.stdin:
            if line == "keep\\n":
                CACHE.append(bytearray(b"x") * (16 << 20))
            print("done", flush=True)
    """
    pathlib.Path("program.py").write_text(textwrap.dedent(server), encoding="utf-8")
    suite = """
        @pytest.fixture(scope="session")
        def program():
            with subprocess.Popen(
                [sys.executable, "program.py"], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as started:
                assert started.stdout.readline() == "ready\\n"
                yield started
                started.stdin.close()
        def ask(program, what):
            print(what, file=program.stdin, flush=True)
            assert program.stdout.readline() == "done\\n"
        def test_first(program): ask(program, "nothing")
        def test_keeps(program): ask(program, "keep")
        def test_last(program): ask(program, "nothing")
    """
    found = found_in(run, suite)
    assert found.verdicts["test_keeps"] == "leaked"
    finding = found.finding("test_keeps")
    assert (finding["process"]["name"], finding["process"]["fixture"]) == ("program.py", "program")
    assert finding["process"]["command"].endswith(" program.py")


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_what_wider_fixtures_make_in_a_server_is_theirs_also_where_a_rerun_sets_them_up_again(run: Runner) -> None:
    suite = """
        MODELS = []
        def load(_): MODELS.append(torch.ones(512, 1024))
        def unload(_): MODELS.pop()
        def swap(_): STATE["model"] = torch.ones(512, 1024)
        def fill_again(_): STATE["cache"] = torch.ones(256, 1024)
        def keep_tensor(_): BLOCKS.append(torch.ones(256, 1024))
        @pytest.fixture(scope="class")
        def leaks(server): server.ask(load)
        @pytest.fixture(scope="class")
        def unloads(server):
            server.ask(load)
            yield
            server.ask(unload)
        @pytest.fixture(scope="class")
        def swaps(server): server.ask(swap)
        @pytest.fixture(scope="class")
        def swaps_back(swaps, server):
            yield
            server.ask(swap)
        def test_first(server): server.ask(nothing)
        class TestLeaks:
            def test_first(self, server, leaks): server.ask(nothing)
            def test_last(self, server, leaks): server.ask(fill_again)
        class TestLeaksAgain:
            def test_last(self, server, leaks): server.ask(fill_again)
        class TestUnloads:
            def test_last(self, server, unloads): server.ask(fill_again)
        class TestSwaps:
            def test_last(self, server, swaps): server.ask(fill_again)
        class TestSwapsAgain:
            def test_keeps(self, server, swaps): server.ask(keep_tensor)
        class TestSwapsBack:  # which lets a larger one go before the test is run again
            def test_keeps(self, server, swaps_back): server.ask(keep_tensor)
        def test_last(server): server.ask(nothing)
    """
    found = found_in(run, "import torch\n" + textwrap.dedent(suite), methods=("fork",))
    assert [name for name, verdict in found.verdicts.items() if verdict == "leaked"] == [
        "TestSwapsAgain::test_keeps[fork]",
        "TestSwapsBack::test_keeps[fork]",
    ]
    assert "BLOCKS" in str(found.finding("TestSwapsAgain::test_keeps[fork]"))
    failed = {record["name"]: one for record in found.report["fixtures"] for one in record["findings"] if one["failed"]}
    assert [*failed] == ["leaks"]
    assert (failed["leaks"]["kind"], failed["leaks"]["bytes_per_run"]) == ("growing", 2 << 20)
    assert "MODELS" in str(failed["leaks"]["holder"])
    assert failed["leaks"]["process"]["name"] == "EngineCore"


def test_a_fork_of_a_fixtures_own_is_a_helper_as_any(run: Runner) -> None:
    suite = """
        @pytest.fixture(scope="module", params=["runs", "closes", "becomes another"])
        def fork(request):
            asked, answered = os.pipe(), os.pipe()
            pid = os.fork()
            if not pid:
                os.dup2(asked[0], 0)
                os.dup2(answered[1], 1)
                if request.param == "closes":
                    os.closerange(3, 4096)
                if request.param == "becomes another":
                    os.execvp("cat", ["cat"])
                while os.read(0, 1) == b"k":
                    os.write(1, b"%d" % (keep(None) is None))
                os._exit(0)
            def ask():
                os.write(asked[1], b"k")
                os.read(answered[0], 1)
            yield ask
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        def test_keeps(fork): fork()
        def test_last(fork): fork()
    """
    found = found_in(run, suite, methods=())
    assert [name for name, verdict in found.verdicts.items() if verdict == "leaked"] == [
        "test_keeps[runs]",
        "test_last[runs]",
    ]
    assert "BLOCKS" in str(found.finding("test_keeps[runs]"))
    (line,) = [line for line in found.result.outlines if "checked" in line]
    assert "a fork of this process" in line
    assert "not checked, no agent has come from there" in line


def test_one_that_closes_all_descriptors_goes_on_without_an_agent(run: Runner) -> None:
    suite = """
        def close_all(connection):
            for number in range(3, 256):
                if number != connection.fileno():
                    with contextlib.suppress(OSError):
                        os.close(number)
        def test_first(server): server.ask(nothing)
        def test_closes(server): server.ask(close_all)
        def test_goes_on(server): server.ask(keep)
        def test_last(server): server.ask(nothing)
    """
    found = found_in(run, suite)
    found.result.assert_outcomes(passed=4)
    found.result.stdout.fnmatch_lines(
        [
            "*EngineCore (pid *, fixture 'server') is not checked any more: it has closed its connection, or runs another program"
        ]
    )


WORKERS = """
    import itertools

    class Workers:
        def __init__(self):
            self.all = [Server("spawn", f"worker-{i}") for i in range(3)]
            self.next = itertools.cycle(self.all)

        def ask(self, what):  # as a port or a queue that they share: any one answers
            return next(self.next).ask(what)

    @pytest.fixture(scope="session")
    def workers():
        workers = Workers()
        yield workers
        for one in workers.all:
            one.stop()

    def test_first(workers):
        for one in workers.all:
            one.ask(nothing)
    def test_keeps(workers): workers.ask(keep)
    def test_moves(workers): workers.ask(nothing)
    def test_fills(workers): workers.ask(fill)
    def test_replaces(workers): workers.ask(replace)
    def test_last(workers): workers.ask(nothing)
"""


POOL = """
    import concurrent.futures, os
    import pytest
    torch = pytest.importorskip("torch")

    BLOCKS = []

    def nothing(_): pass
    def keep(_): BLOCKS.append(bytearray(b"x") * (16 << 20))

    @pytest.fixture(scope="session")
    def pool():
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            list(pool.map(nothing, range(20)))  # which starts both
            yield pool

    @pytest.fixture(scope="session")
    def late():
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool  # its first user starts it

    def test_first(pool): list(pool.map(nothing, range(20)))
    def test_keeps(pool): pool.submit(keep, 0).result()
    def test_starts(late): list(late.map(nothing, range(20)))
    def test_keeps_late(late): late.submit(keep, 0).result()
    def test_last(pool, late): late.submit(nothing, 0).result()
"""


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_what_grows_in_a_worker_of_a_pool_is_found_also_where_a_test_has_started_it(run: Runner) -> None:
    found = found_in(run, POOL)
    leaked = [name for name, verdict in found.verdicts.items() if verdict == "leaked"]
    assert leaked == ["test_keeps", "test_keeps_late"]
    for name in leaked:
        (failed,) = [one for one in found.tests[name]["findings"] if one["failed"]]
        assert "BLOCKS" in str([failed["holder"], failed["contributions"]])


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_what_a_servers_last_test_leaves_is_looked_at_before_it_is_killed(run: Runner) -> None:
    suite = """
        torch = pytest.importorskip("torch")

        class Ring:
            def __init__(self):
                self.tensor, self.ring = torch.ones(512, 512), self

        def leave_garbage(_): Ring()

        @pytest.fixture(scope="module")
        def killed():
            server = Server("spawn")
            yield server
            server.process.kill()
            server.process.join()

        def test_first(killed): killed.ask(nothing)
        def test_last(killed): killed.ask(leave_garbage)
    """
    found = found_in(run, suite)
    assert [finding["kind"] for finding in found.tests["test_last"]["findings"]] == ["cycle"]


def test_of_workers_that_take_turns_one_is_reached_twice(run: Runner) -> None:
    found = found_in(run, WORKERS)
    found.result.assert_outcomes(passed=6)
    assert [name for name, verdict in found.verdicts.items() if verdict == "leaked"] == ["test_keeps"]
    (failed,) = [one for one in found.tests["test_keeps"]["findings"] if one["failed"]]
    assert "BLOCKS" in str([failed["holder"], failed["contributions"]])
    assert failed["bytes_per_run"] == pytest.approx(16 << 20, rel=0.1)
    assert set(found.verdicts.values()) <= {"clean", "noted", "leaked"}


UVICORN = """
    import signal, socket, urllib.request

    @pytest.fixture(scope="session")
    def server():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), "--workers", "2"]
        with subprocess.Popen(command) as process:
            url = f"http://127.0.0.1:{port}"
            while not both(url, "/health", strict=False):
                time.sleep(0.1)
            yield url
            process.terminate()

    def both(url, path, strict=True):
        try:
            first = int(urllib.request.urlopen(url + path).read())
            os.kill(first, signal.SIGSTOP)  # so that the other worker answers
            try:
                second = int(urllib.request.urlopen(url + path, timeout=60 if strict else 1).read())
            finally:
                os.kill(first, signal.SIGCONT)
            return first != second
        except OSError:
            assert not strict
            return False

    def test_first(server): assert both(server, "/health")
    def test_keeps_in_both(server): assert both(server, "/keep")
    def test_keeps_in_one(server): urllib.request.urlopen(server + "/keep").read()  # whichever answers
    def test_replaces(server): assert both(server, "/replace")
    def test_replaces_again(server): assert both(server, "/replace")
    def test_last(server): assert both(server, "/health")
"""


@pytest.mark.slow
def test_workers_of_uvicorn_are_named(run: Runner) -> None:
    pytest.importorskip("uvicorn")
    app = """
        import os
        BLOCKS, STATE = [], {}

        async def app(scope, receive, send):
            if scope["type"] != "http":
                return
            if scope["path"] == "/keep":
                BLOCKS.append(bytearray(b"x") * (16 << 20))
            if scope["path"] == "/replace":
                STATE["last"] = bytearray(b"x") * (16 << 20)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": str(os.getpid()).encode()})
    """
    pathlib.Path("app.py").write_text(textwrap.dedent(app), encoding="utf-8")
    found = found_in(run, UVICORN)
    leaked = ["test_keeps_in_both", "test_keeps_in_one"]
    assert [name for name, verdict in found.verdicts.items() if verdict == "leaked"] == leaked
    both, one_or_both = ([one for one in found.tests[name]["findings"] if one["failed"]] for name in leaked)
    assert len({one["process"]["pid"] for one in both}) == 2
    assert all("BLOCKS" in str([one["holder"], one["contributions"]]) for one in (*both, *one_or_both))
