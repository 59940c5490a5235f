"""Find the lines that allocated living device memory, by stacks that CUDA's allocator records during a re-run only."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import re
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.creation_lines import origin_at, printable
from pytest_gpuleak.adapters.torch.compiler import compiler_not_imported
from pytest_gpuleak.adapters.torch.lookup import torch_module
from pytest_gpuleak.model.findings import Contribution

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    Frame = Mapping[str, Any]
    Place = tuple[str, int, str]

MAX_ENTRIES: Final = 100_000
"""Events that are kept, some KB each with its stack (torch/cuda/memory.py). Live blocks always keep their stacks."""

NATIVE_TEXT: Final = "allocated in native code (backward)"
"""Text for a block without a Python frame: autograd's threads run none during a backward pass."""

PICKLE_PROTOCOL: Final = 4
"""The newest protocol that PyTorch's memory viewer reads; Python 3.14 writes 5 by default."""

_NAME_LENGTH: Final = 120
_DIGEST_LENGTH: Final = 12

WORKSPACES: Final = "workspaces"
"""Marks, in a history, what the plugin frees as workspaces of libraries."""

NO_DEVICE: Final = "torch records the allocator's history for CUDA devices alone, and none was used"


class AllocatorRecord:
    """A record of what CUDA's allocator does, unless the user records already. It initialises no device.

    `why_not` says why nothing is recorded; `snapshot` is what was recorded, from the end on.
    """

    def __init__(self) -> None:
        self.recording = False
        self.why_not = ""
        self.snapshot: dict[str, Any] | None = None

    def begin(self, context: str | None, max_entries: int) -> Sequence[Mapping[str, Any]]:
        """Begin to record, with the stack of each allocation (`context` "alloc") or with none; return the segments before.

        Python frames only: unwinding and symbolising C++ frames takes seconds.
        """
        segments: Sequence[Mapping[str, Any]] = ()
        try:
            self.why_not = self._why_not()
            if not self.why_not:
                memory = torch_module("torch.cuda").memory
                segments = memory.memory_snapshot()
                self.recording = True
                memory._record_memory_history(
                    enabled="all", context=context, stacks="python", max_entries=max_entries, **clear_argument(memory)
                )
        except Exception as error:  # noqa: BLE001 - cudaMallocAsync, or a torch without its private functions
            self.why_not = f"the allocator's history cannot be recorded ({type(error).__name__})"
            self.stop()
        return segments

    def end(self) -> None:
        """End the record, and take the snapshot."""
        if self.recording:
            try:
                self._finish()
            except Exception as error:  # noqa: BLE001 - as above; or the device was lost meanwhile
                self.why_not = f"the allocator's history cannot be read ({type(error).__name__})"
            self.stop()

    def _finish(self) -> None:
        self.snapshot = snapshot_of(torch_module("torch.cuda").memory)

    def stop(self) -> None:
        """End the record, and leave what was recorded."""
        if self.recording:
            self.recording = False
            with contextlib.suppress(Exception):
                torch_module("torch.cuda").memory._record_memory_history(enabled=None)

    def _why_not(self) -> str:
        cuda, core = torch_module("torch.cuda"), torch_module("torch._C")
        if not (type(cuda) is types.ModuleType and type(core) is types.ModuleType and cuda.is_initialized()):
            return NO_DEVICE
        return "the allocator's history is being recorded by somebody else" if core._cuda_isHistoryEnabled() else ""


class RecordedHistory(AllocatorRecord):
    """Records the stacks of device allocations within the context. Leave it once the re-run has settled.

    `before` has the addresses of the blocks alive at the beginning.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        super().__init__()
        self._max_entries = max_entries
        self.before: frozenset[int] = frozenset()

    def __enter__(self) -> RecordedHistory:  # noqa: PYI034 - typing has Self from 3.11 only
        self.before = frozenset(address for address, _ in blocks_in_use(self.begin("alloc", self._max_entries)))
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def blocks_alive(self, device: str, is_user_file: Callable[[str], bool]) -> tuple[Contribution, ...] | None:
        """Return the blocks of a CUDA device; None for other devices, whose allocators keep no history."""
        kind, _, index = device.partition(":")
        if self.snapshot is None or kind != "cuda" or not index.isdigit():
            return None
        return blocks_alive(self.snapshot, self.before, is_user_file, device=int(index))

    def save(self, folder: Path, nodeid: str) -> None:
        """Write the snapshot, if there is one (see `write_snapshot`). Raises OSError."""
        if self.snapshot is not None:
            write_snapshot(self.snapshot, folder, nodeid)


def snapshot_of(memory: Any) -> dict[str, Any]:
    """Return a snapshot by the module ``torch.cuda.memory``, which imports nothing."""
    with compiler_not_imported():
        found: dict[str, Any] = memory._snapshot()
    return found


def blocks_alive(
    snapshot: Mapping[str, Any], before: Collection[int], is_user_file: Callable[[str], bool], device: int | None = None
) -> tuple[Contribution, ...]:
    """Return the blocks allocated during a recording and alive at its end, by the allocating line, most bytes first.

    Requested bytes count, without rounding. `before` has the blocks alive at the beginning; None is all devices.
    """
    renewed = _allocated(snapshot)
    sizes: dict[tuple[str, Place | None], list[int]] = {}
    for address, block in blocks_in_use(snapshot.get("segments", ()), device):
        if address not in before or address in renewed:
            sizes.setdefault(_reason(block.get("frames") or (), is_user_file), []).append(requested_bytes(block))
    parts = [
        Contribution(text, sum(found), len(found), None if place is None else origin_at(*place))
        for (text, place), found in sizes.items()
    ]
    return tuple(sorted(parts, key=lambda part: (-part.bytes, part.text)))


def write_snapshot(snapshot: Mapping[str, Any], folder: Path, nodeid: str) -> Path:
    """Write a snapshot for pytorch.org/memory_viz, whole or not at all; return its path. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / snapshot_name(nodeid)
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file:
            pickle.dump(snapshot, file, protocol=PICKLE_PROTOCOL)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def snapshot_name(nodeid: str) -> str:
    """Return a file name for a test: safe on every file system, and unique however long the test's id is."""
    digest = hashlib.sha256(nodeid.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGEST_LENGTH]
    # Keep the end, which has the test's name and parameters.
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "_", nodeid)[-_NAME_LENGTH:].strip("._-")
    return f"{readable or 'test'}-{digest}.pickle"


@contextlib.contextmanager
def marked(torch: Any, mark: str) -> Iterator[None]:
    """Mark what the calling thread allocates and frees within the context, if a history is being recorded."""
    core = torch._C
    change = getattr(core, "_cuda_setMemoryMetadata", None)
    if change is None or not core._cuda_isHistoryEnabled():
        yield
        return
    before = core._cuda_getMemoryMetadata()
    change(mark)
    try:
        yield
    finally:
        change(before)


def clear_argument(memory: Any) -> dict[str, bool]:
    """Return the argument `clear_history` if this torch has it (from 2.4), to drop earlier recordings."""
    implementation = getattr(memory, "_record_memory_history_impl", None)
    code = getattr(implementation, "__code__", None)
    return {"clear_history": True} if code is not None and "clear_history" in code.co_varnames else {}


def blocks_in_use(
    segments: Sequence[Mapping[str, Any]], device: int | None = None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the blocks in use with their addresses, without freed blocks that a stream still uses."""
    for segment in segments:
        if device is not None and segment.get("device", device) != device:
            continue
        for block in segment.get("blocks", ()):
            if block.get("state") == "active_allocated":
                yield int(block.get("address", 0)), block


def _allocated(snapshot: Mapping[str, Any]) -> set[int]:
    """Return addresses allocated during the recording: the address of a block freed meanwhile may be reused."""
    return {
        int(entry["addr"])
        for trace in snapshot.get("device_traces", ())
        for entry in trace
        if entry.get("action") == "alloc" and "addr" in entry
    }


def requested_bytes(block: Mapping[str, Any]) -> int:
    """Return the bytes that were asked for, without rounding; the block's own where the allocator does not tell."""
    return int(block.get("requested_size", block.get("size", 0)))


def _reason(frames: Sequence[Frame], is_user_file: Callable[[str], bool]) -> tuple[str, Place | None]:
    if not frames:
        return NATIVE_TEXT, None
    for frame in frames:
        file = str(frame["filename"])
        if is_user_file(file):
            place = file, int(frame.get("line", 0)), str(frame.get("name", "?"))
            return f"allocated in {printable(place[2])}", place
    inner = frames[0]
    file = "/".join(Path(str(inner["filename"])).parts[-2:])
    return printable(
        f"allocated in {inner.get('name', '?')} ({file}:{inner.get('line', 0)}), by no line of yours"
    ), None
