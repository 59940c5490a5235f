"""Ways into the helper processes of a run. Each such process loads this: neither the engine, nor pytest, nor torch.

`start` comes by an entry in multiprocessing's preparation data, or in a fork; `start_at_site` by the package's ``.pth``.
"""

from __future__ import annotations

import os
import sys

# The functions themselves: gevent replaces them in the module, and its thread, a greenlet, would hold all others up.
from _thread import allocate_lock, get_ident, get_native_id, start_new_thread

# Each short process of a run pays for what is imported here: `typing`, `contextlib` and `json` would double its start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

ENV = "PYTEST_GPULEAK_AGENT"
"""The environment variable that leads a process to its run: the fields of `Run`, a line each."""

CONNECT_S = 1.0
"""Seconds that a process waits for a run whose queue of connections is full."""

IMPORTS_S = 10.0
"""Seconds that the agent waits until no other thread imports: a program may run from its first import to its end."""

_STEP_S = 0.01

EXIT_S = 2.0
"""Seconds that a process waits at its end for its agent, which may be searching."""

_PEEK = 2
"""MSG_PEEK, wherever there are such sockets."""

_NO_HELPERS = (
    ".resource_tracker import", ".semaphore_tracker import", ".forkserver import", "_inductor/compile_worker", "popen_loky",
    "exec(eval(sys.stdin.readline()))",
)  # fmt: skip
"""Parts of the command lines of processes that serve a library: a fork server must have no thread, an xdist worker is a run."""

_PYTEST = frozenset({"pytest", "py.test", "pytest.exe"})


class Run:
    """The run that a process belongs to: its socket, its rootdir, pytest's pid, and the plugin's version."""

    __slots__ = ("pid", "root", "socket", "version")

    def __init__(self, socket: str, root: str, pid: str, version: str) -> None:
        self.socket = socket
        self.root = root
        self.pid = pid
        self.version = version

    @property
    def text(self) -> str:
        """Return the value of the environment variable."""
        return "\n".join((self.socket, self.root, self.pid, self.version))


def current_run() -> Run | None:
    """Return the run that this process is a helper of; None: it is none."""
    given = os.environ.get(ENV, "").split("\n")
    return Run(*given) if len(given) == len(Run.__slots__) and given[2] != str(os.getpid()) else None


def start_at_site() -> None:
    """Start the agent as the interpreter starts. No error reaches the process."""
    try:
        if not is_left_out(list(getattr(sys, "orig_argv", ()))):
            start()
    except Exception:  # noqa: BLE001 - the process must not notice
        pass


def is_left_out(command: list[str]) -> bool:
    """Tell by its command whether a process has no agent: it serves a library, or is a run of pytest's."""
    runs_pytest = any(os.path.basename(part) in _PYTEST for part in command[:3])  # noqa: PTH119 - before any import
    return runs_pytest or any(mark in part for part in command for mark in _NO_HELPERS)


def start(name: str = "") -> None:
    """Start the agent of this process, `name` to multiprocessing, unless it has one. May raise what a socket raises."""
    run, entry = current_run(), _entries.get(os.getpid())
    if entry is not None:
        if name:
            entry.send(op="named", name=name)
    elif run is not None:
        if not _watches_forks:
            # First: in a fork its own hook forgets all other threads, among them one that ours has started before.
            import threading  # noqa: F401

            _watches_forks.append(True)
            os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
        _entries[os.getpid()] = Entry(run, name)
    if run is not None and "multiprocessing" in sys.modules:
        enter_children()  # also where the .pth came first, before multiprocessing was imported


class Entry:
    """The connection of this process to its run, and the thread that serves it."""

    def __init__(self, run: Run, name: str) -> None:
        import _socket  # `socket` would import five modules more
        import atexit

        # Here, in the main thread: `threading` takes the thread that imports it first for the main one (up to 3.12).
        import threading  # noqa: F401

        from pytest_gpuleak.heap.signals import start_without_signals
        from pytest_gpuleak.model.version import __version__

        self.run = run
        self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        os.set_inheritable(self.socket.fileno(), False)
        self._place = _place_of(self.socket.fileno())
        self._ends = False
        self.paused = False
        """Whether the agent has paused automatic collections, which a fork would inherit."""
        try:
            self._connect()
            # At once, before the process does anything: the run then knows of it, however busy its threads are.
            greeting = (
                f'"op": "hello", "pid": {os.getpid()}, "name": {_quoted(name)}, "version": {_quoted(__version__)}'
            )
            self.socket.sendall(f"{{{greeting}}}\n".encode())
            # No `threading.Thread`: a program may count those that this module knows, or wait for the end of each.
            self.native_id = 0
            self._runs = allocate_lock()
            self._runs.acquire()
            start_without_signals(lambda: start_new_thread(self._serve, ()))
        except BaseException:
            self.socket.close()  # else the process warns of it, where it is asked to, and the run waits for it
            raise
        # A thread that imports while the interpreter ends crashes it.
        atexit.register(self.stop)

    def _connect(self) -> None:
        """Connect; wait where the queue is full, which a timeout of a unix socket's does not. Raises OSError."""
        from time import sleep

        self.socket.setblocking(False)
        for left in range(int(CONNECT_S / _STEP_S), -1, -1):
            try:
                self.socket.connect(self.run.socket)
                break
            except BlockingIOError:
                if not left:
                    raise
                sleep(_STEP_S)
        self.socket.setblocking(True)

    def send(self, **message: Any) -> None:
        """Send a message. Raises OSError where the run has gone."""
        import json

        self._check_place()
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> bytes:
        """Wait for bytes of the run's; none: it has gone. Raises OSError."""
        self._check_place()
        return self.socket.recv(1 << 16)

    @staticmethod
    def import_alone(load: Callable[[], Any]) -> Any:
        """Call a function that imports, while no other thread does; each import begins with the lock that is held meanwhile.

        Of two threads whose imports wait for each other one sees a half-imported module (importlib._bootstrap, _DeadlockError).
        That may be the user's: a process ended as it began, since "cannot import name 'Mapping' from 'collections.abc'".
        """
        import _imp
        from time import sleep

        for _ in range(int(IMPORTS_S / _STEP_S)):
            _imp.acquire_lock()
            try:
                if not _others_import():
                    return load()
            finally:
                _imp.release_lock()
            sleep(_STEP_S)
        return load()

    def _check_place(self) -> None:
        """Raise OSError where the process has closed our descriptor, whose number may now be that of a file of its own.

        Also where it ends: what it is asked then is not begun.
        """
        if self._ends:
            raise OSError("the process ends")
        if self.socket.fileno() < 0 or _place_of(self.socket.fileno()) != self._place:
            self.socket.detach()
            raise OSError("the process has closed the connection")

    def stop(self) -> None:
        """End the thread, and wait for it. Safe to call twice, and in another process than the thread's."""
        if _entries.get(os.getpid()) is self:
            self._shut()
            if self.join(EXIT_S):
                self._close()

    def join(self, seconds: float) -> bool:
        """Wait for the end of the thread, and return whether it has ended."""
        ended = self._runs.acquire(timeout=seconds)
        if ended:
            self._runs.release()
        return ended

    def _shut(self) -> None:
        """End the connection, for which neither the thread nor the run waits any more."""
        import _socket

        try:
            self._check_place()
            self._ends = True
            try:
                # Without it the run takes the connection for one that the process has closed under its agent. The run may not
                # read, and the process must not wait for it.
                self.socket.send(b'{"op": "bye", "why": ""}\n', _socket.MSG_DONTWAIT)
            finally:
                self.socket.shutdown(2)
        except OSError:
            pass

    def leave(self) -> None:
        """Undo in a fork what it has inherited: the connection, which is the other process's, and paused collections."""
        if self.paused:
            import gc

            gc.enable()
        self._close()

    def _close(self) -> None:
        self._ends = False
        try:
            self._check_place()
            os.close(self.socket.detach())
        except OSError:
            pass

    def _serve(self) -> None:
        self.native_id = get_native_id()
        try:
            self._check_place()
            # What a short process never needs is loaded with the first message.
            if self.socket.recv(1, _PEEK):
                self.import_alone(_load_agent)(self, self.run.root)
        except BaseException as error:  # noqa: BLE001 - the process must not notice; the run is told
            self.leave_run(f"its check failed: {type(error).__name__}: {error}"[:300].rstrip(": "))
        finally:
            self._shut()
            self._runs.release()

    def leave_run(self, why: str) -> None:
        """Tell the run, if it is still there, why it cannot ask this process any more."""
        try:
            self.send(op="bye", why=why)
        except Exception:  # noqa: BLE001 - the run has gone, or there is no memory for it: the process must not notice
            pass


def _others_import() -> bool:
    """Tell whether another thread is in the midst of an import."""
    frames = sys._current_frames()
    del frames[get_ident()]  # a frame that has itself in a variable is a cycle
    return any(_runs(frame, lambda code: code.co_filename.startswith("<frozen importlib")) for frame in frames.values())


def _runs(frame: FrameType | None, is_sought: Callable[[CodeType], bool]) -> bool:
    """Tell whether a stack has such code."""
    while frame is not None:
        if is_sought(frame.f_code):
            return True
        frame = frame.f_back
    return False


def _load_agent() -> Any:
    from pytest_gpuleak.child.agent import serve

    return serve


def _quoted(text: str) -> str:
    """Return text as JSON."""
    units = text.encode("utf-16-be", "surrogatepass")
    return '"' + "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True)) + '"'


def _place_of(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


_entries: dict[int, Entry] = {}
"""The entry of this process, by its pid. After a fork it has the parent's."""

_watches_forks: list[bool] = []
"""Has an item once this process, or one that it was forked from, watches forks: that cannot be undone."""


def _before_fork() -> None:
    """From 3.12 on, `os.fork` warns where there is a second thread, also of one that starts again after it: end it."""
    entry = _entries.get(os.getpid())
    if entry is not None and sys.version_info >= (3, 12) and not entry.join(0):
        entry.leave_run("it forks, for which its agent has ended: Python 3.12 warns of a fork beside threads")
        entry.stop()
        if entry.join(0):
            _await_end(entry.native_id)


def _await_end(thread: int) -> None:
    """Wait until the system has no such thread any more: `Entry.join` returns a moment earlier, and the warning counts these.

    A moment may be a second where many processes want to run.
    """
    from time import sleep

    for _ in range(10_000):
        if not os.path.exists(f"/proc/self/task/{thread}"):  # noqa: PTH110 - without an import in each fork
            return
        sleep(0.001)


def _after_fork() -> None:
    try:
        for entry in _entries.values():
            entry.leave()
        _entries.clear()
        reset_collector()
        run = current_run()
        if run is not None and not _is_before_exec():
            _entries[os.getpid()] = Entry(run, "")
    except Exception:  # noqa: BLE001 - the process must not notice
        pass


def start_in_fork(name: str = "") -> None:
    """Start the agent of a fork of pytest's process, or of another that has none. No error reaches the process."""
    try:
        if not _is_before_exec():
            reset_collector()
            start(name)
    except Exception:  # noqa: BLE001 - the process must not notice
        pass


def _is_before_exec() -> bool:
    """Tell whether a fork is `subprocess`'s with a ``preexec_fn``, which runs these hooks and is another program soon."""
    return _runs(sys._getframe(), lambda code: code.co_name == "_execute_child")


def reset_collector() -> None:
    """Undo what a fork has inherited: the epoch of the process that it was forked from."""
    collector: Any = sys.modules.get("pytest_gpuleak.heap.collector")
    view = None if collector is None else collector.current_view()
    if view is not None:
        view.remove()
        view.thaw()


def enter_children() -> Callable[[], None]:
    """Give an agent to each process that multiprocessing starts from this one; return what undoes it."""
    from multiprocessing import process, spawn

    prepare, bootstrap = spawn.get_preparation_data, process.BaseProcess._bootstrap  # type: ignore[attr-defined]
    if getattr(prepare, "__module__", "") == __name__:
        return lambda: None

    def with_agent(name: str) -> dict[str, Any]:
        return {"gpuleak": Stowaway(name), **prepare(name)}

    def in_fork(self: Any, *args: Any, **more: Any) -> Any:
        start_in_fork(self.name)
        return bootstrap(self, *args, **more)

    def undo() -> None:
        spawn.get_preparation_data = prepare
        process.BaseProcess._bootstrap = bootstrap  # type: ignore[attr-defined]

    spawn.get_preparation_data = with_agent
    process.BaseProcess._bootstrap = in_fork  # type: ignore[attr-defined]
    return undo


class Stowaway:
    """Starts the agent where it is unpickled, in a child by spawn or of a fork server.

    Pickled as a call of a builtin: an object of a class would end a child whose interpreter does not have the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_TEXT.format(env=ENV, value=os.environ.get(ENV, ""), name=self._name), {})


_TEXT = """
try:
    import os
    if {value!r}:
        os.environ.setdefault({env!r}, {value!r})
        from pytest_gpuleak.child.hook import start
        start({name!r})
except Exception as error:
    try:
        import json, socket
        run = socket.socket(socket.AF_UNIX)
        run.settimeout(1)
        run.connect(os.environ[{env!r}].split(chr(10))[0])
        why = "pytest-gpuleak cannot be loaded there (" + type(error).__name__ + ")"
        hello = dict(op="hello", pid=os.getpid(), name={name!r}, version="", why=why)
        run.sendall(json.dumps(hello).encode() + b"\\n")
        run.close()
    except Exception:
        pass
"""
