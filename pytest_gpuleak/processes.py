"""Processes that a test has started and that outlive it.

A process is known by its pid and the time of its creation, since pids are used again: that is what two of psutil's
`Process` are compared by. Watching costs a test some microseconds while there is no child: one system call says so.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuleak.findings import Contribution, Finding, Holder
from pytest_gpuleak.reports.text import clean_text, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from psutil import Process

    from pytest_gpuleak.probes.nvml import NvmlReading

FIRST_WAIT_S = 0.001
ALL_WAITS_S = 1.0
"""Waits for those that are going double from a millisecond, to a second in all."""

CLOCK_SLACK_S = 2.0
"""How far the time of a process's creation may be off the clock's: Linux tells the time of boot in whole seconds."""

MAX_COMMAND = 200
MAX_SHOWN = 20
"""Processes listed with a finding; its count covers all."""

HINT = (
    "terminate and wait for it in teardown (`process.terminate(); process.wait()`), or start it in a fixture that does"
)
POOL_HINTS = {
    "ProcessPoolExecutor": "shut the pool down in teardown (`executor.shutdown()`), or use it in a `with`",
    "multiprocessing.Pool": "end the pool in teardown (`pool.terminate(); pool.join()`), or use it in a `with`",
    "DataLoader": "let go of the DataLoader's iterator, and of the DataLoader where it has `persistent_workers=True`",
}


class LeftProcess(NamedTuple):
    """One process that has outlived its test, and those that it has started.

    Attributes:
        pid: as this process knows it.
        created: when it began, in seconds since 1970; a second off at most.
        age_s: seconds that it had lived when it was looked at.
        parent: pid of who started it.
        command: its command line, cleaned and cut.
        program: what it runs, without what differs from run to run.
        own_bytes: bytes of host memory that it alone uses; None where that cannot be read.
        name: its name as a ``multiprocessing`` process; empty for any other.
        pool: the kind of pool that it is a worker of; empty for any other.
        descendants: what it has started in turn and still runs.
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


class ProcessWatch:
    """Knows whose each child process is.

    Args:
        list_descendants: the pids of the processes that this one has started, directly or not, with their parents',
            parents first; other than the operating system's own list in tests alone.
    """

    def __init__(self, list_descendants: Callable[[], dict[int, int]] | None = None) -> None:
        self._list = list_descendants or _descendants
        self._known: set[Process] = set()
        self._seen: dict[Process, int] = {}
        self._helpers: set[Process] = set()
        self._setups: list[set[Process]] = []
        self._adopted: dict[Hashable, set[Process]] = {}
        self._looked = False
        self._begun = time.time()
        self._counts_starts = starts_are_counted()
        self._last_start: int | None = None

    def begin(self) -> None:
        """A test begins: what runs now is not its own."""
        self._begun = time.time()
        if not self._seen and not self._known and self._looked:
            return  # none ran when the last test ended, and no test has begun since
        self._known = set(self._look())
        self._helpers &= self._known

    def suspects(self) -> bool:
        """Whether a process runs that the test has started. Nothing is waited for."""
        self._looked = True
        return bool(self._candidates())

    def left(self) -> list[LeftProcess]:
        """The processes that the test has started and that still run, once those that are going have gone.

        Waits up to `ALL_WAITS_S`, and only where there are any. A process that another one of them has started is among
        its `LeftProcess.descendants`.
        """
        candidates = self._candidates()
        return _describe(_settle(candidates)) if candidates else []

    def enter_setup(self) -> None:
        """A wider fixture's setup begins; they may be nested."""
        self._setups.append(set(self._look()))

    def adopt(self, owner: Hashable = None) -> None:
        """A wider fixture's setup has ended: what it has started is no test's.

        Args:
            owner: what `released` is asked for later.
        """
        before = self._setups.pop() if self._setups else self._known
        new = {process for process in self._candidates() if process not in before}
        self._known |= new
        if new:
            self._adopted.setdefault(owner, set()).update(new)

    def released(self, owner: Hashable) -> list[LeftProcess]:
        """A wider fixture has been finalised: what it has started and that still runs, as `left`."""
        processes = self._adopted.pop(owner, set())
        if not processes:
            return []
        parents = self._look()
        left = _settle({process: parents[process] for process in processes if process in parents})
        return _describe(left) if left else []

    def _look(self) -> dict[Process, int]:
        """All descendants, with their parents' pids."""
        if not has_children():
            self._seen, self._last_start = {}, None
            return self._seen
        last = last_start() if self._counts_starts else None
        if last is None or last != self._last_start:
            # The number was read before the list is made: what is started meanwhile is found by the next look.
            self._last_start = last
            self._seen = {}
            for pid, parent in self._list().items():
                process = _process(pid)
                if process is not None:
                    self._seen[process] = parent
        return self._seen

    def _candidates(self) -> dict[Process, int]:
        """The descendants that the test has started, with their parents' pids; helpers and what others start left out."""
        seen = self._look()
        new = [process for process in seen if process not in self._known]
        if not new:
            return {}
        # Not before: most runs start no process.
        from pytest_gpuleak.process_kinds import compile_pool_pids, is_fork_server, is_helper

        by_pid = {process.pid: process for process in seen}
        commands = {process.pid: _command(process.pid) for process in seen}
        servers = {pid for pid, command in commands.items() if is_fork_server(command)}
        # A fork of a server, or of a worker of xdist's, has the command line of what it was forked from.
        servers = {pid for pid in servers if seen[by_pid[pid]] not in servers}
        own, forked_to_compile = _command(os.getpid()), compile_pool_pids()
        mine: dict[Process, int] = {}
        for process in new:  # parents before what they have started, as they were listed
            command, parent = commands[process.pid], by_pid.get(seen[process])
            if process in self._helpers or _created(process) < self._begun - CLOCK_SLACK_S or not _runs(process):
                continue
            if parent in self._helpers or process.pid in forked_to_compile or (command != own and is_helper(command)):
                self._helpers.add(process)
            elif process.pid not in servers and (parent is None or parent in mine or parent.pid in servers):
                mine[process] = seen[process]
            # Else it is a fork server, or an older process has started it, which knows why.
        return mine


def _settle(candidates: dict[Process, int]) -> dict[Process, int]:
    """Those that still run after some waits."""
    wait, waited = FIRST_WAIT_S, 0.0
    while True:
        candidates = {process: parent for process, parent in candidates.items() if _runs(process)}
        if not candidates or waited >= ALL_WAITS_S:
            return candidates
        time.sleep(wait)
        waited += wait
        wait = min(wait * 2, max(FIRST_WAIT_S, ALL_WAITS_S - waited))


def _describe(candidates: dict[Process, int]) -> list[LeftProcess]:
    """What is to be said of processes, those that others of them have started below these."""
    from pytest_gpuleak.process_kinds import FORK, pool_workers, process_names, program_of

    pids = {process.pid for process in candidates}
    workers, names, own = pool_workers(pids), process_names(), _command(os.getpid())

    def described(process: Process) -> LeftProcess:
        pid, parent = process.pid, candidates[process]
        command = _command(pid)
        forked = command == own and bool(own)
        return LeftProcess(
            pid=pid,
            created=_created(process),
            age_s=max(0.0, time.time() - _created(process)),
            parent=parent,
            command=FORK if forked else clean_text(" ".join(command) or _name(pid), MAX_COMMAND),
            program=FORK if forked else program_of(command) if command else _name(pid),
            own_bytes=_own_bytes(pid),
            name=clean_text(names.get(pid, ""), MAX_COMMAND),
            pool=workers.get(pid, ""),
            descendants=tuple(described(below) for below, above in candidates.items() if above == pid),
        )

    return [described(process) for process, parent in candidates.items() if parent not in pids]


def judge_processes(
    left: Sequence[LeftProcess], readings: Mapping[str, NvmlReading] | None = None, *, wider_fixtures: bool = True
) -> tuple[Finding, ...]:
    """The findings of the processes that a test, or a fixture, has left running: one each, in the order given. Pure.

    It runs or it does not: no re-run confirms it. It fails, except that a pool's worker is a note while a wider fixture
    could own the pool: pools start their workers when a test first uses them.

    Args:
        left: the processes.
        readings: the driver's counters by device, where they are known.
        wider_fixtures: whether fixtures wider than the test are set up.
    """
    return tuple(_finding(process, readings or {}, wider_fixtures) for process in left)


def _finding(process: LeftProcess, readings: Mapping[str, NvmlReading], wider_fixtures: bool) -> Finding:
    from pytest_gpuleak.verdict import fingerprint

    family = list(_family(process))
    on_devices = {
        device: {
            row.pid: row.bytes
            for row in reading.children
            if row.bytes and any(row.pid == member.pid for member in family)
        }
        for device, reading in readings.items()
    }
    totals = {device: sum(held.values()) for device, held in on_devices.items() if held}
    device = max(totals, key=lambda name: totals[name]) if totals else "cpu"
    contributions = [
        Contribution(
            text=member.command,
            bytes=(on_devices[device].get(member.pid, 0) if totals else member.own_bytes or 0),
        )
        for member in family
    ]
    contributions.sort(key=lambda part: -part.bytes)
    evidence = [
        f"command: {process.command}",
        f"age: about {process.age_s:.0f} s; started by pid {process.parent}",
    ]
    if process.name:
        evidence.append(f"multiprocessing's name: {process.name}")
    if process.pool:
        evidence.append(f"a worker of a {process.pool}")
    if len(family) > 1:
        evidence.append(f"with {len(family) - 1} that it has started")
    evidence += [f"on {name}: {format_bytes(size)}" for name, size in totals.items()]
    return Finding(
        kind="process",
        failed=not (process.pool and wider_fixtures),
        device=device,
        count=len(family),
        bytes=totals[device] if totals else sum(member.own_bytes or 0 for member in family),
        bytes_per_run=0,
        # The program stands where a holder's root would: it says who the culprit is.
        fingerprint=fingerprint("process", Holder("unknown", process.program, process.program)),
        metric=f"pid {process.pid}",
        contributions=tuple(contributions[:MAX_SHOWN]),
        evidence=tuple(evidence),
        hint=POOL_HINTS.get(process.pool, HINT),
    )


def _family(process: LeftProcess) -> Iterable[LeftProcess]:
    yield process
    for below in process.descendants:
        yield from _family(below)


def has_children() -> bool:
    """Whether this process has children, ended ones that nobody has waited for included. Takes a microsecond.

    True where the operating system cannot be asked.
    """
    if not hasattr(os, "waitid"):
        return True  # Windows, and macOS before Python 3.13
    try:
        # WNOWAIT leaves an ended child to whoever waits for it.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def last_start() -> int | None:
    """The number given last to a process or thread of this system; None where it is not told.

    While it stays the same, nothing was started, and the list of processes need not be made again. Linux,
    Documentation/filesystems/proc.rst, "loadavg".
    """
    try:
        descriptor = os.open("/proc/loadavg", os.O_RDONLY)
        try:
            return int(os.read(descriptor, 200).rsplit(None, 1)[1])
        finally:
            os.close(descriptor)
    except (OSError, ValueError, IndexError):
        return None


def starts_are_counted() -> bool:
    """Whether `last_start` can be believed: containers and sandboxes may show a file that is made up, or old."""
    before = last_start()
    if before is None:
        return False
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    return last_start() != before


def _descendants() -> dict[int, int]:
    found = children_by_file(os.getpid())
    if found is not None:
        return found
    import psutil

    pairs: dict[int, int] = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            pairs[process.pid] = process.ppid()
    return pairs


def children_by_file(pid: int, proc: str = "/proc") -> dict[int, int] | None:
    """The descendants of a process, with their parents, as its threads' files list them; None without such files.

    Many times as fast as a walk over all processes, but not in every kernel (CONFIG_PROC_CHILDREN). A child may be left
    out while another one ends (Linux, Documentation/filesystems/proc.rst): times of creation tell it from a new one.
    """
    found: dict[int, int] = {}
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        folder = f"{proc}/{parent}/task"
        try:
            threads = os.listdir(folder)  # noqa: PTH208 - names alone
        except OSError:
            continue  # it has ended
        for thread in threads:
            try:
                with open(f"{folder}/{thread}/children", encoding="ascii") as file:  # noqa: PTH123 - half the cost
                    children = [int(word) for word in file.read().split()]
            except OSError:
                if parent == pid and not os.path.exists(f"{folder}/{pid}/children"):  # noqa: PTH110 - as above
                    return None
                continue
            for child in children:
                if child not in found:
                    found[child] = parent
                    waiting.append(child)
    return found


def _ask(pid: int, question: Callable[[Any], Any], otherwise: Any = None) -> Any:
    """An answer about a process, which may be gone, or another user's."""
    import psutil

    try:
        return question(psutil.Process(pid))
    except (psutil.Error, OSError, ValueError):
        return otherwise


def _process(pid: int) -> Process | None:
    process: Process | None = _ask(pid, lambda process: process)
    return process


def _created(process: Process) -> float:
    """Seconds since 1970; 0 where it has ended."""
    return float(_ask(process.pid, lambda process: process.create_time(), 0.0))


def _runs(process: Process) -> bool:
    """Whether it is still that process, and has not ended: one that nobody has waited for has, and is a zombie."""
    return bool(_ask(process.pid, lambda now: now == process and now.status() != "zombie"))


def _command(pid: int) -> list[str]:
    command: list[str] = _ask(pid, lambda process: process.cmdline(), [])
    return command


def _name(pid: int) -> str:
    return clean_text(_ask(pid, lambda process: process.name(), "unknown"), MAX_COMMAND)


def _own_bytes(pid: int) -> int | None:
    size: int | None = _ask(pid, lambda process: process.memory_full_info().uss)
    return size
