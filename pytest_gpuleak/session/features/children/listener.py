"""The run's socket, and the ways by which processes find it."""

from __future__ import annotations

import itertools
import os
import shutil
import site
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.processes.facts import command_line, environment_of, has_ended
from pytest_gpuleak.adapters.processes.kinds import runs_python
from pytest_gpuleak.child import hook
from pytest_gpuleak.model.version import __version__
from pytest_gpuleak.session.features.children.connection import Connection
from pytest_gpuleak.session.features.children.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from multiprocessing.process import BaseProcess

_OPTION = "--gpu-leak-children=agent"

PTH = "pytest_gpuleak.pth"
"""The file beside the installed package by which processes of `subprocess` start their agent."""

EXEC_S = 15.0
"""Seconds of its own in which a process that has begun to run a program must have the program's command."""

_EXEC_STEP_S = 0.001

_PREFIX = "gpuleak-run-"
_LONGEST = 70
"""Characters of the folder for temporary files in which a socket's path fits into the 103 that macOS takes, Linux 107."""


class Listener:
    """Accept the agents of this run's processes. Raises OSError where no socket can be made."""

    def __init__(self, root: str) -> None:
        self._pid = os.getpid()
        self._folder = _make_folder()
        self.expected: list[int] = []
        """The pids of processes that will greet, and have not yet when they were last looked at."""
        self._expects = True
        self._has_pth = has_pth()
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.bind(str(self._folder / "s"))
            self._socket.listen(socket.SOMAXCONN)
            self._socket.setblocking(False)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._undo = [hook.enter_children(), self._watch_starts()]
        self._run = hook.Run(str(self._folder / "s"), root, str(self._pid), __version__).text
        self._before = os.environ.get(hook.ENV)
        os.environ[hook.ENV] = self._run
        self._opened = True

    def accept(self) -> list[Connection]:
        """Return the agents that have connected since the last call."""
        new: list[Connection] = []
        with suppress(OSError):  # none is left, or this process has no descriptor left
            while True:
                opened, _ = self._socket.accept()
                new.append(Connection(opened))
        return new

    def expect(self, pids: Iterable[int]) -> None:
        """Wait for the greetings of forks, and of processes whose interpreter is this one, with this run in their environment."""
        if self._expects:
            self.expected += [pid for pid in pids if pid not in self.expected and self._will_greet(pid)]

    def expect_none(self) -> None:
        """Wait for no greeting any more: one that has not come in time is enough to wait for."""
        self.expected.clear()
        self._expects = False

    def _is_entered(self, process: BaseProcess) -> bool:
        """Tell whether a process has what starts an agent: not where another library starts it (loky), or it has another run."""
        how = type(getattr(process, "_popen", None)).__module__
        return self._expects and how.startswith("multiprocessing.popen_") and self._is_in(os.environ)

    def _is_in(self, environment: Mapping[str, str]) -> bool:
        return environment.get(hook.ENV) == self._run

    def _will_greet(self, pid: int) -> bool:
        command = _command_once_run(pid)
        if _is_fork(command):
            return self._is_in(os.environ)
        options = itertools.takewhile(lambda part: part.startswith("-"), command[1:])
        without_site = any("S" in part for part in options if not part.startswith(("--", "-X", "-W", "-c", "-m")))
        ours = self._has_pth and command[:1] == [sys.executable] and self._is_in(environment_of(pid)) and _is_users(pid)
        return ours and not without_site and not hook.is_left_out(command)

    def could_have_greeted(self, pid: int) -> bool:
        """Tell whether a process is a fork, or runs Python and no run of pytest's: where it has no agent, that was for another reason."""
        command = command_line(pid)
        return _is_fork(command) or (self._has_pth and runs_python(command) and not hook.is_left_out(command))

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self._socket.fileno()

    def forget(self) -> None:
        """Close a fork's copy, in the fork: as long as one is open, agents do not learn that the run has ended."""
        self._opened = False
        with suppress(OSError):
            self._socket.close()

    def close(self) -> None:
        """Restore the process as it was found. Safe to call twice."""
        if not self._opened or os.getpid() != self._pid:
            return
        self.forget()
        for undo in reversed(self._undo):
            undo()
        os.environ.pop(hook.ENV, None)
        if self._before is not None:
            os.environ[hook.ENV] = self._before
        shutil.rmtree(self._folder, ignore_errors=True)

    def _watch_starts(self) -> Callable[[], None]:
        """Note which processes multiprocessing starts."""
        from multiprocessing import process

        original = process.BaseProcess.start

        def start(this: BaseProcess) -> None:
            original(this)
            if this.pid is not None and os.getpid() == self._pid and self._is_entered(this):
                self.expected.append(this.pid)

        def undo() -> None:
            process.BaseProcess.start = original  # type: ignore[method-assign]

        process.BaseProcess.start = start  # type: ignore[method-assign, assignment]
        return undo


def _command_once_run(pid: int) -> list[str]:
    """Return a process's command, once it has one: `subprocess.Popen` returns amidst `exec`, when Linux tells none."""
    patience = Patience(EXEC_S)
    while not (command := command_line(pid)) and not has_ended(pid) and not patience.spent_on([pid]):
        sleep(_EXEC_STEP_S)
    return command


def _is_fork(command: list[str]) -> bool:
    """Tell by its command whether a process is a fork of this one that has become no other program."""
    return command == command_line(os.getpid()) != []


def _is_users(pid: int) -> bool:
    """Tell whether a process may enter the socket's folder: one that was started as another user may not."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()  # noqa: PTH116 - as short as it gets
    except FileNotFoundError:
        return not os.path.isdir("/proc/self")  # noqa: PTH112 - a system without such files


def _make_folder() -> Path:
    """Make a folder that only this user may enter, and remove those of runs that were killed."""
    parent = Path(tempfile.gettempdir())
    if len(str(parent)) > _LONGEST:
        parent = Path("/tmp")
    for folder in parent.glob(f"{_PREFIX}*"):
        if _is_left_behind(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))


def _is_left_behind(folder: Path) -> bool:
    """Tell whether a run has ended without removing its folder: its pid is unused here, and nobody listens."""
    pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        pass
    except (OSError, OverflowError):
        return False
    else:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(folder / "s"))
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
    return False


def has_pth() -> bool:
    """Tell whether this installation starts agents in processes of `subprocess`; an editable one of older build tools does not."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return any((Path(folder) / PTH).is_file() for folder in folders)


def open_listener(root: str, tell: Callable[[str], None]) -> Listener | None:
    """Open the run's socket; None where that cannot be, which is told."""
    try:
        listener = Listener(root)
    except (AttributeError, ImportError, OSError) as error:  # Windows has no such sockets
        tell(f"{_OPTION} has no effect: no socket can be made for it ({error})")
        return None
    if not has_pth():
        tell(f"{_OPTION} reaches multiprocessing's processes alone: this installation (an editable one?) has no {PTH}")
    return listener
