"""`--gpu-leak-children=agent`: leaks in the processes that wider fixtures have started, named from within."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

pytest.importorskip("psutil")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="agents connect by a socket of POSIX systems")

HEAD = """
    import multiprocessing, os, signal, subprocess, sys, time
    import pytest

    BLOCKS, STATE = [], {}

    def serve(connection):
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
            self.connection.send(None)
            self.process.join()

    @pytest.fixture(scope="session", params=METHODS)
    def server(request):
        server = Server(request.param)
        yield server
        server.stop()
"""


def found_in(run: Runner, test: str, *arguments: str, methods: tuple[str, ...] = ("spawn",)) -> Run:
    head = textwrap.dedent(HEAD).replace("METHODS", repr(methods))
    return run(head + textwrap.dedent(test), "--gpu-leak-children=agent", *arguments, apart=True)


SERVED = """
    def test_first(server): server.ask(nothing)
    @pytest.mark.parametrize("i", range(2))
    def test_stream(server, i): server.ask(keep)
    def test_fills(server): server.ask(fill)
    def test_replaces(server): server.ask(replace)
    def test_replaces_again(server): server.ask(replace)
    def test_last(server): server.ask(nothing)
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_what_grows_in_a_server_fails_with_its_holder_and_process(run: Runner, method: str) -> None:
    found = found_in(run, SERVED, methods=(method,))
    found.result.assert_outcomes(passed=7)
    leaked = [name for name, verdict in found.verdicts.items() if verdict == "leaked"]
    assert leaked == [f"test_stream[{method}-0]", f"test_stream[{method}-1]"]
    finding = found.finding(leaked[0])
    assert finding["process"]["name"] == "EngineCore"
    assert finding["process"]["fixture"] == "server"
    assert "BLOCKS" in str([finding["holder"], finding["contributions"]])
    assert finding["bytes_per_run"] >= 16 << 20
    found.result.stdout.fnmatch_lines(["LEAKED *::test_stream* - 16.0 MiB* in EngineCore (pid *, fixture 'server')"])
    # What is kept once, or replaced, is the server's state; the first test has seen the server start.
    assert not any(one["failed"] for name in found.tests if name not in leaked for one in found.tests[name]["findings"])
    assert {found.verdicts[name] for name in found.tests if name not in leaked} <= {"clean", "noted"}
