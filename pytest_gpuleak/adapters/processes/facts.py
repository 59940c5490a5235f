"""Ask the operating system about processes. Imports psutil: import it only where a process has a child."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuleak.adapters.dependencies import dependency_in_place, import_dependency
from pytest_gpuleak.heap.threads import read_kernel_file, read_stat
from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable

    import psutil
else:
    psutil = import_dependency("psutil", required=True)

FIRST_WAIT_S = 0.001
"""Seconds of the first wait for processes that are ending. Each further one is twice as long."""

MOST_WAITS = 10
"""Waits after which a process counts as left: a second in all."""

MOST_LISTINGS = 4
"""How often a process's children are listed where one of its threads ends each time."""

MAX_COMMAND = 200


class LeftProcess(NamedTuple):
    """One process that has outlived its test, with the processes that it has started.

    `created` is in seconds since 1970, accurate to a second; `program` has no parts that differ from run to run;
    `own_bytes` are bytes of host memory that no other process shares, None if unreadable. `name` is multiprocessing's,
    `pool` the kind of pool that it works for, `pool_id` an executor's; else empty or 0.
    """

    pid: int
    created: float
    age_s: float
    parent: int
    command: str
    program: str
    own_bytes: int | None = None
    name: str = ""
    pool: str = ""
    descendants: tuple[LeftProcess, ...] = ()
    pool_id: int = 0


def settle(candidates: dict[psutil.Process, int], waits: int) -> dict[psutil.Process, int]:
    """Wait up to `waits` times for processes that are ending; return the processes that still run."""
    running = _running(candidates)
    for number in range(waits):
        if not running:
            break
        time.sleep(FIRST_WAIT_S * 2**number)
        running = _running(running)
    return running


def _running(candidates: dict[psutil.Process, int]) -> dict[psutil.Process, int]:
    return {process: parent for process, parent in candidates.items() if still_runs(process)}


def describe_command(pid: int, command: list[str], own: list[str]) -> str:
    """Describe a process by its command line, cleaned and cut; `own` is that of this process, which its forks share."""
    from pytest_gpuleak.adapters.processes.kinds import FORK

    return FORK if command and command == own else clean_text(" ".join(command) or _name(pid), MAX_COMMAND)


def name_and_command(pid: int) -> tuple[str, str]:
    """Return a child's name, multiprocessing's where that started it, else its program's; and its command line."""
    from pytest_gpuleak.adapters.processes.kinds import FORK, process_names, program_of

    command, own = command_line(pid), command_line(os.getpid())
    text = describe_command(pid, command, own)
    name = process_names().get(pid) or (FORK if text == FORK else program_of(command) if command else text)
    return clean_text(name, MAX_COMMAND), text


def describe(candidates: dict[psutil.Process, int]) -> list[LeftProcess]:
    """Describe processes, each with its descendants among the candidates."""
    from pytest_gpuleak.adapters.processes.kinds import FORK, executor_pools, pool_workers, process_names, program_of

    pids = {process.pid for process in candidates}
    executors = executor_pools()
    workers, names, own = pool_workers(pids), process_names(), command_line(os.getpid())

    def described(process: psutil.Process) -> LeftProcess:
        pid, parent = process.pid, candidates[process]
        command = command_line(pid)
        forked = command == own and bool(own)
        return LeftProcess(
            pid=pid,
            created=creation_time(process),
            age_s=max(0.0, time.time() - creation_time(process)),
            parent=parent,
            command=describe_command(pid, command, own),
            program=FORK if forked else program_of(command) if command else _name(pid),
            own_bytes=_own_bytes(pid),
            name=clean_text(names.get(pid, ""), MAX_COMMAND),
            pool=workers.get(pid, ""),
            descendants=tuple(described(below) for below, above in candidates.items() if above == pid),
            pool_id=executors.get(pid, 0),
        )

    return [described(process) for process, parent in candidates.items() if parent not in pids]


def list_descendants() -> dict[int, int]:
    """Return this process's descendants: the parent's pid by pid, parents first."""
    found = children_by_file(os.getpid())
    if found is not None:
        return found
    pairs: dict[int, int] = {}
    with dependency_in_place("psutil"):
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                pairs[process.pid] = process.ppid()
    return pairs


def children_by_file(pid: int, proc: str = "/proc") -> dict[int, int] | None:
    """Return descendants with their parents from threads' files (CONFIG_PROC_CHILDREN); None without such files."""
    if not os.path.exists(f"{proc}/{pid}/task/{pid}/children"):  # noqa: PTH110 - half the cost
        return None  # this process runs, so there are no such files: macOS, Windows, another kernel
    found: dict[int, int] = {}
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for _ in range(MOST_LISTINGS):
            children, complete = _children_by_thread(f"{proc}/{parent}/task")
            for child in children:
                if child not in found:
                    found[child] = parent
                    waiting.append(child)
            if complete:
                break
    return found


def _children_by_thread(folder: str) -> tuple[list[int], bool]:
    """Return a process's children, and False if a thread has ended meanwhile: another one has its children then."""
    children: list[int] = []
    complete = True
    try:
        threads = os.listdir(folder)  # noqa: PTH208 - only names are needed
    except OSError:
        return [], True  # the process has ended
    for thread in threads:
        try:
            children += map(int, read_kernel_file(f"{folder}/{thread}/children", whole=True).split())
        except OSError:
            complete = False
    return children, complete


def start_of(pid: int) -> bytes | None:
    """Return a text that tells the process from a later one with its pid; None if unknown, or it has ended."""
    try:
        return read_stat(pid)[19]
    except (OSError, IndexError):
        return None


def _ask(pid: int, question: Callable[[Any], Any], otherwise: Any = None) -> Any:
    try:
        with dependency_in_place("psutil"):
            return question(psutil.Process(pid))
    except (psutil.Error, OSError, ValueError):
        return otherwise


def find_process(pid: int) -> psutil.Process | None:
    """Return the process of a pid; None if it has ended."""
    process: psutil.Process | None = _ask(pid, lambda process: process)
    return process


def creation_time(process: psutil.Process) -> float:
    """Return the process's start, in seconds since 1970; 0 if it has ended."""
    return float(_ask(process.pid, lambda process: process.create_time(), 0.0))


def still_runs(process: psutil.Process) -> bool:
    """Return whether the pid still belongs to that process, and the process is not a zombie."""
    return bool(_ask(process.pid, lambda now: now == process and now.status() != "zombie"))


def has_ended(pid: int) -> bool:
    """Return whether no process has the pid, or a zombie. One that this process may not see has not ended."""
    status: str | None = _ask(pid, lambda process: process.status())
    if status is None:
        with dependency_in_place("psutil"):
            return not psutil.pid_exists(pid)
    return status in ("zombie", "dead")


def is_zombie(pid: int) -> bool:
    """Return whether the process has ended and its parent has not waited for it."""
    return bool(_ask(pid, lambda process: process.status()) == "zombie")


def parents_of(pid: int) -> list[int]:
    """Return the pids of a process's parents, the nearest first; empty if it has ended."""
    parents: list[int] = _ask(pid, lambda process: [one.pid for one in process.parents()], [])
    return parents


def is_running(process: LeftProcess) -> bool:
    """Return whether a process that was left still runs; another process may have taken its pid."""
    now = find_process(process.pid)
    return now is not None and creation_time(now) == process.created and still_runs(now)


def command_line(pid: int) -> list[str]:
    """Return a process's arguments; empty if they cannot be read."""
    command: list[str] = _ask(pid, lambda process: process.cmdline(), [])
    return command


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty if it cannot be read."""
    environment: dict[str, str] = _ask(pid, lambda process: process.environ(), {})
    return environment


def _name(pid: int) -> str:
    return clean_text(_ask(pid, lambda process: process.name(), "unknown"), MAX_COMMAND)


def _own_bytes(pid: int) -> int | None:
    size: int | None = _ask(pid, lambda process: process.memory_full_info().uss)
    return size
