"""Classify child processes by command lines and library tables, without running user code: helpers and pool workers."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.registry import own_frameworks
from pytest_gpuleak.heap.safe_access import field_of, pid_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpuleak.adapters.protocol import ProcessKinds

_PYTHON = re.compile(r"(python|pypy)[\d.]*[tdw]?(\.exe)?", re.IGNORECASE)
_TAKES_VALUE = ("-W", "-X")

_PYTEST: Final = ("pytest", "py.test")

FORK = "a fork of this process"
"""The program of a process that was forked and has started no other program since."""


_HELPER_MARKS: Final = (
    ".resource_tracker import main",  # multiprocessing's, loky's (`ensure_running`), and multiprocess's
    ".semaphore_tracker import main",  # billiard's
    "loky.backend.popen_loky",  # a worker of joblib's reusable executor (backend/popen_loky_posix.py)
    "exec(eval(sys.stdin.readline()))",  # a worker of pytest-xdist (execnet, gateway_io.py, `popen_bootstrapline`)
)
"""Parts of the command lines of helpers that no test owns, nor their descendants. A fork server's forks may be a test's."""


def is_fork_server(command: Sequence[str]) -> bool:
    """Return whether it has the command line of a fork server and its forks (Lib/multiprocessing/forkserver.py, and copies of it)."""
    return any(".forkserver import main" in part for part in command)


def _is_ray_service(command: Sequence[str]) -> bool:
    """Return whether it belongs to ``ray.init``'s cluster, which ends with this process (ray/_private/node.py)."""
    if not command:
        return False
    first = PurePath(command[0].split(" ", 1)[0]).name
    if first in ("raylet", "gcs_server") or command[0].startswith("ray::"):
        return True
    return any(re.search(r"[/\\]ray[/\\](_private|dashboard|autoscaler)[/\\]", part) is not None for part in command)


def is_helper(command: Sequence[str]) -> bool:
    """Return whether a process by design lives until the interpreter ends."""
    return (
        any(mark in part for mark in _HELPER_MARKS for part in command)
        or _is_ray_service(command)
        or any(processes.is_helper(command) for processes in _of_frameworks())
    )


def is_other_rank(command: Sequence[str], environment: Callable[[], Mapping[str, str]]) -> bool:
    """Return whether it is pytest as another rank of a job: its launcher starts it in a test, and it ends as pytest does.

    Lightning's does (``_SubprocessScriptLauncher``), with pytest's own arguments. `environment` returns the process's.
    A pytest that a rank's test runs has the rank of the test.
    """
    if program_of(command).removesuffix(".__main__") not in _PYTEST:
        return False
    found = environment()
    differs = any(found.get(name) != os.environ.get(name) for name in ("RANK", "LOCAL_RANK"))
    return differs and has_other_ranks(found)


def has_other_ranks(environment: Mapping[str, str]) -> bool:
    """Return whether an environment is that of a rank of several, as ``torchrun`` sets it."""
    world = environment.get("WORLD_SIZE", "")
    return world.isdigit() and int(world) > 1


def helper_pids() -> set[int]:
    """Return the pids of helpers that share this interpreter's command line."""
    return {pid for processes in _of_frameworks() for pid in processes.helper_pids()}


def executor_pools() -> dict[int, int]:
    """Return the workers of all executors: a number for the executor by pid (Lib/concurrent/futures/process.py)."""
    found: dict[int, int] = {}
    with contextlib.suppress(Exception):  # a private table, whose form may change
        for thread in list(getattr(sys.modules.get("concurrent.futures.process"), "_threads_wakeups", ())):
            found.update(dict.fromkeys(field_of(thread, "processes") or (), id(thread)))
    return found


def pool_workers(pids: Iterable[int]) -> dict[int, str]:
    """Return the kind of pool by pid for pools' workers, which a fixture's pool may start during a test."""
    wanted = set(pids)
    found = {pid: "multiprocessing.Pool" for pid, name in process_names().items() if "PoolWorker" in name}
    found.update(dict.fromkeys(executor_pools(), "ProcessPoolExecutor"))
    if wanted - set(found):
        for processes in _of_frameworks():
            found.update(processes.pool_workers())
    return {pid: pool for pid, pool in found.items() if pid in wanted}


def _of_frameworks() -> list[ProcessKinds]:
    return [found for framework in own_frameworks().members if (found := framework.processes) is not None]


def process_names() -> dict[int, str]:
    """Return the names of ``multiprocessing`` children by pid (Lib/multiprocessing/process.py, ``_children``)."""
    names: dict[int, str] = {}
    with contextlib.suppress(Exception):  # as above
        for process in list(getattr(sys.modules.get("multiprocessing.process"), "_children", ())):
            pid, name = pid_of(process), field_of(process, "_name")
            if pid is not None and type(name) is str:
                names[pid] = name
    return names


def program_of(command: Sequence[str]) -> str:
    """Return the program of a command line without parts that differ between runs: a module's or file's name."""
    if not command:
        return "unknown"
    if not runs_python(command):
        return _file_of(command[0]) or command[0]
    rest = iter(command[1:])
    for part in rest:
        if part == "-m":
            return next(rest, "python")
        if part == "-c":
            return "multiprocessing.spawn" if "multiprocessing.spawn import" in next(rest, "") else "python -c"
        if part in _TAKES_VALUE:
            next(rest, None)
        elif not part.startswith("-"):
            return _file_of(part)
    return "python"


def runs_python(command: Sequence[str]) -> bool:
    """Return whether a command line is a Python interpreter's."""
    return bool(command) and _PYTHON.fullmatch(_file_of(command[0])) is not None


def _file_of(path: str) -> str:
    return PurePath(path.replace("\\", "/")).name
