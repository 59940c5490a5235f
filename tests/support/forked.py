"""Runs of pytest in processes of their own that need not import it, nor torch: each is forked from `fork_server.py`.

The server has imported nothing but pytest, and what it is asked to: the plugin, or torch and the plugin. What a fork might show
in another light gets a process that starts from nothing: so does every run where there is no `os.fork`, or with variables that
are read as Python or torch starts.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pytest

SERVER = Path(__file__).with_name("fork_server.py")
READ_LATE = ("PYTEST_", "GITHUB_", "GITLAB_", "GPULEAK_")
"""How the variables begin that are read by nothing before pytest's command line is."""
READ_LATE_TOO = {"CI", "COLUMNS", "HOME", "PY_COLORS", "PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR", "USERPROFILE"}
"""torch itself sets TORCHINDUCTOR_CACHE_DIR once a test of this process makes an optimizer; its compiler reads it late."""


class ForkServer:
    """A process that has imported pytest, and the modules named, and forks for each run."""

    def __init__(self, *modules: str) -> None:
        self._early = read_early(os.environ)
        self._owed = 0
        command = [sys.executable, str(SERVER), *modules]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starting:
            assert starting.stdin is not None
            assert starting.stdout is not None
            self._requests = os.dup(starting.stdin.fileno())
            self._answers = os.dup(starting.stdout.fileno())

    def close(self) -> None:
        """End the server."""
        os.close(self._requests)
        os.close(self._answers)

    def use_in(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        """Fork for pytester's runs of pytest in a process of their own."""
        monkeypatch.setattr(pytester, "popen", functools.partial(self._popen, pytester.popen))

    def _popen(self, popen: Any, command: Sequence[str], *, stdout: Any, stderr: Any, **options: Any) -> Any:
        """Start a command as `pytester.popen` would, or fork where that does as well."""
        pytest_alone = tuple(command[:2]) == (sys.executable, "-mpytest") and options == {"stdin": _closed(popen)}
        if not pytest_alone or read_early(os.environ) != self._early:
            return popen(command, stdout=stdout, stderr=stderr, **options)
        path = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))
        return self._fork(command, {**os.environ, "PYTHONPATH": path}, Path.cwd(), (stdout.name, stderr.name))

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a program's file, or ``-mpytest``, with arguments in a folder, as `subprocess.run` would."""
        command = [sys.executable, *arguments]
        with tempfile.TemporaryDirectory() as outside:
            output = [Path(outside, name) for name in ("stdout", "stderr")]
            for path in output:
                path.touch()
            process = self._fork(command, environment, folder, [str(path) for path in output])
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            return subprocess.CompletedProcess(command, status, *(path.read_text("utf-8") for path in output))

    def _fork(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, output: Sequence[str]
    ) -> ForkedProcess:
        request = {
            "arguments": list(command),
            "environment": dict(environment),
            "folder": str(folder),
            "output": list(output),
        }
        while self._owed:  # the run of a test that gave up while it waited
            self.read_number()
        self._owed = 2
        os.write(self._requests, json.dumps(request).encode() + b"\n")
        return ForkedProcess(self, self.read_number())

    def read_number(self, timeout: float | None = None) -> int:
        """Read what the server answers next; raise TimeoutError after `timeout` seconds."""
        ends = None if timeout is None else time.monotonic() + timeout
        line = b""
        while not line.endswith(b"\n"):
            left = None if ends is None else max(0.0, ends - time.monotonic())
            if not select.select([self._answers], [], [], left)[0]:
                raise TimeoutError
            read = os.read(self._answers, 1)
            assert read, "the fork server has ended"
            line += read
        self._owed -= 1
        return int(line)


class ForkedProcess:
    """What pytester needs of a `subprocess.Popen`."""

    stdin = None

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, or raise `subprocess.TimeoutExpired`."""
        try:
            return self._server.read_number(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired("pytest", timeout or 0) from None

    def kill(self) -> None:
        """End it with SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)


def read_early(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a process may read as it starts."""
    return {
        name: value
        for name, value in environment.items()
        if name not in READ_LATE_TOO and not name.startswith(READ_LATE)
    }


def _closed(popen: Any) -> object:
    """pytester's mark for a standard input that is closed."""
    return popen.__self__.CLOSE_STDIN
