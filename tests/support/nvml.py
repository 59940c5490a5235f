"""A stand-in for the NVIDIA driver's library, behind the real binding: `nvml_standin.c` over a file of state."""

from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
import subprocess

import pytest

from pytest_gpuleak.adapters.nvml import readings as nvml
from pytest_gpuleak.adapters.nvml.process_identity import Identity

GIB = 1 << 30
SOURCE = pathlib.Path(__file__).with_name("nvml_standin.c")
A = "GPU-aaaaaaaa-0000-0000-0000-000000000001"


def a_device(
    uuid: str = A, bus: str = "00000000:01:00.0", used: int = GIB, mig: int = -1, model: str = "Test GPU"
) -> str:
    """A line of the state: a device of 80 GiB."""
    return f"device {uuid} {bus} {80 * GIB} {used} {mig} {model}\n"


def build(folder: pathlib.Path) -> pathlib.Path:
    """Compile the stand-in; skip the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to build the stand-in with")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(target), str(SOURCE)], check=True)
    return target


class DriverState:
    """The stand-in's state."""

    def __init__(self, path: pathlib.Path, loaded: ctypes.CDLL) -> None:
        self._path = path
        self._loaded = loaded

    def say(self, *lines: str) -> None:
        """Replace the state."""
        self._path.write_text("driver 550.54\n" + "".join(line.rstrip("\n") + "\n" for line in lines))

    @property
    def opened(self) -> int:
        """How often the library is open."""
        return int(self._loaded.standin_opened())


def install(monkeypatch: pytest.MonkeyPatch, library: pathlib.Path, path: pathlib.Path) -> DriverState:
    """Load the stand-in in place of the driver's library, with one device. Its pids are those that this process sees."""
    pynvml = pytest.importorskip("pynvml")
    loaded = ctypes.CDLL(str(library))
    while loaded.standin_opened() > 0:
        loaded.nvmlShutdown()
    monkeypatch.setattr(pynvml, "nvmlLib", loaded)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    monkeypatch.setenv("NVML_STANDIN", str(path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setattr(nvml, "framework_uuids", lambda: None)
    monkeypatch.setattr(nvml, "own_identity", lambda: Identity((os.getpid(),), True))
    state = DriverState(path, loaded)
    state.say(a_device())
    return state


class Timeline:
    """What the driver says from one wait to the next, on a clock of its own: nothing sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        """Processes that outlive the run, which `clear` ends."""
        self._next: list[tuple[str, ...] | BaseException] = []

    def say(self, *lines: str) -> None:
        """Replace the state of the stand-in now."""
        text = "driver 550.54\n" + "".join(line.rstrip("\n") + "\n" for line in lines)
        pathlib.Path(os.environ["NVML_STANDIN"]).write_text(text)

    def then(self, *lines: str, times: int = 1) -> None:
        """Replace the state after the next wait that has none yet, and leave it for so many waits."""
        self._next += [lines] * times

    def then_raise(self, error: BaseException) -> None:
        """Raise an error from the next wait that has nothing yet."""
        self._next.append(error)

    def clear(self) -> None:
        """Begin again at 0."""
        for process in self.processes:
            process.kill()
            process.wait()
        self.now, self.slept, self.processes, self._next = 0.0, [], [], []

    def clock(self) -> float:
        """Stand for `time.perf_counter`."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Stand for `time.sleep`."""
        step = self._next.pop(0) if self._next else None
        if isinstance(step, BaseException):
            raise step
        self.now += seconds
        self.slept.append(seconds)
        if step is not None:
            self.say(*step)


TIMELINE = Timeline()
"""The timeline of this process: the tests of a run inside a test say what the driver is to tell."""
