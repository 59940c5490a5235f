"""Which storages operators make, told by their arguments and results alone, and what all that follow them count."""

from __future__ import annotations

import copy
import io
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpuleak.adapters.registry import own_frameworks
from pytest_gpuleak.adapters.torch.cuda_blocks import GIVEN
from pytest_gpuleak.adapters.torch.cuda_estimate import BlockRecorder
from pytest_gpuleak.adapters.torch.live_storages import LiveStorages
from pytest_gpuleak.engine.peaks import peak_of
from tests.adapters.torch.test_host_storages import count

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from pytest_gpuleak.adapters.probe_protocol import TakenBlocks

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

OLD = torch.ones(4, 4)
SPARSE = torch.eye(4).to_sparse()
SAVED = io.BytesIO()
torch.save(torch.ones(100), SAVED)


def from_a_file() -> Any:
    SAVED.seek(0)
    return torch.load(SAVED)


NONE_MADE: Final[dict[str, Callable[[], Any]]] = {
    "in place": lambda: OLD.mul_(1),
    "views": lambda: (OLD.t(), OLD[0], OLD.detach(), OLD.reshape(-1), OLD.split(2)),
    "unsafe view": lambda: torch.ops.aten._unsafe_view(OLD, [16]),
    "given as out": lambda: torch.add(OLD, 0, out=OLD),
    "a list in place": lambda: torch._foreach_mul_([OLD], 1),
    "another tensor's storage": lambda: torch._C.TensorBase.untyped_storage(OLD.view(16)),
    "given another tensor": lambda: OLD.detach().set_(OLD),
    "parts of a sparse one": lambda: (SPARSE._values(), SPARSE._indices()),
}
MADE: Final[dict[str, tuple[Callable[[], Any], list[int]]]] = {
    "plain": (lambda: OLD + 1, [64]),
    "values of Python's": (lambda: torch.tensor([1.0, 2.0]), [8]),
    "several at once": (lambda: torch._foreach_add([OLD, OLD], 1), [64, 64]),
    "views of one that is new": (lambda: (OLD + 1).split(2), [64]),
    "resized": (lambda: torch.empty(4).resize_(8), [16, 32]),
    "from a file": (from_a_file, [0, 400]),
    "of a sparse one": (lambda: [SPARSE * 2], [64, 16]),
}


def made_in(work: Callable[[], Any]) -> list[int]:
    """Return the sizes of the storages that work makes, and what is left of them once it has ended."""
    noted, ended = list[int](), list[int]()
    live = LiveStorages(torch, ended.append)

    class Note(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            results = made if isinstance(made, (list, tuple)) else [made] if isinstance(made, torch.Tensor) else []
            parts = [part for one in results for part in live.parts(one)]
            for _, storage, _ in live.made_by(func, parts, (args, kwargs)):
                noted.append(storage.nbytes())
                live.hold(storage, storage.nbytes())
            return made

    with Note():
        work()
    assert live.close() == []
    assert set(ended) <= set(noted)
    return noted


@pytest.mark.parametrize("kind", NONE_MADE)
def test_what_was_there_before_is_not_made(kind: str) -> None:
    assert made_in(NONE_MADE[kind]) == []


@pytest.mark.parametrize("kind", MADE)
def test_what_is_new_is_made_once(kind: str) -> None:
    work, sizes = MADE[kind]
    assert sorted(made_in(work)) == sorted(sizes)


# What is given to tensors, or resized, by no operator: the peak in MiB, which is that of torch's profiler.

MIB: Final = 2**20
A_MIB: Final = 2**18
LARGE: Final = torch.ones(A_MIB)
LAYER: Final = torch.nn.Linear(512, 512, bias=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder: pathlib.Path = tmp_path_factory.mktemp("saved")
    both = torch.ones(2 * A_MIB)
    torch.save({"a": torch.ones(A_MIB), "b": torch.ones(2 * A_MIB)}, folder / "new")
    torch.save([both], folder / "old", _use_new_zipfile_serialization=False)
    torch.save([both[:A_MIB], both[A_MIB:]], folder / "views")
    (folder / "plain").write_bytes(bytes(MIB))
    return folder


def loaded_into_a_layer(saved: pathlib.Path) -> Any:
    layer = torch.nn.Linear(512, 512, bias=False)
    layer.load_state_dict({"weight": torch.load(saved / "new")["a"].view(512, 512)})
    return layer


def stored() -> Any:
    return torch.UntypedStorage(MIB)


def replaced() -> Any:
    return torch.ones(A_MIB).set_(torch.ones(3 * A_MIB))


def resized(*sizes: int) -> Any:
    made = torch.ones(A_MIB)
    for size in sizes:
        made.untyped_storage().resize_(size * MIB)
    return made, torch.ones(2 * A_MIB)


def freed_between_steps() -> Any:
    flat = torch.empty(4 * A_MIB)
    for _ in range(3):
        flat.untyped_storage().resize_(0)
        torch.ones(A_MIB)
        flat.untyped_storage().resize_(4 * MIB)
    return flat


def reshaped_in_inference() -> Any:
    with torch.inference_mode():  # where the operator is not taken apart, and says that it returns a view
        return LARGE.view(512, 512).t().reshape(-1)


def older_grows() -> Any:
    older = OLDER.pop()
    older.untyped_storage().resize_(4 * MIB)
    return older


OLDER: Final = [torch.ones(A_MIB) for _ in range(3)]
HELD: Final[dict[str, tuple[Callable[[pathlib.Path], Any], int]]] = {
    "loaded": (lambda saved: torch.load(saved / "new"), 3),
    "loaded from the older format": (lambda saved: torch.load(saved / "old"), 2),
    "loaded views": (lambda saved: torch.load(saved / "views"), 2),
    "loaded and copied": (loaded_into_a_layer, 4),
    "mapped": (lambda saved: torch.load(saved / "new", mmap=True), 3),
    "a mapped file": (lambda saved: torch.from_file(str(saved / "plain"), size=A_MIB), 1),
    "a storage of its own": (lambda _: torch.empty(0).set_(stored()), 1),
    "a storage twice": (lambda _: (kept := stored(), torch.empty(0).set_(kept), torch.empty(0).set_(kept)), 1),
    "another new tensor": (lambda _: replaced(), 4),
    "deep copy": (lambda _: copy.deepcopy(LARGE), 1),
    "deep copy of a layer": (lambda _: copy.deepcopy(LAYER), 1),
    "copied storage": (lambda _: torch.empty(0).set_(LARGE.untyped_storage().clone()), 1),
    "freed": (lambda _: resized(0), 2),
    "grown": (lambda _: resized(4), 6),
    "grown at last": (lambda _: resized(0, 4, 8)[0], 12),
    "freed between steps": (lambda _: freed_between_steps(), 4),
    "reshaped in inference mode": (lambda _: reshaped_in_inference(), 1),
    "an older one grows": (lambda _: older_grows(), 4),
}
MAPPED: Final = ("mapped", "a mapped file")


def count_all(work: Callable[[], Any]) -> tuple[list[float], TakenBlocks]:
    """Return the MiB that a record, an estimate at the most, and the host's budget count, and what the estimate has."""
    recorder, blocks = own_frameworks().peak_recorder(lambda file: file == __file__), BlockRecorder(torch)
    assert recorder is not None
    with recorder:
        kept = work()
    del kept
    blocks.begin()
    kept = work()
    blocks.end()
    del kept
    _, on_host, lacks = count(work)
    taken = blocks.taken()
    assert (recorder.peak("cpu").lacks, taken.lacks, lacks) == ((), (), [])
    assert "resize_" not in vars(torch.UntypedStorage)
    found = (recorder.peak("cpu").bytes, peak_of(taken.most).allocated, on_host)
    return [round(size / MIB, 2) for size in found], taken


@pytest.mark.parametrize("kind", HELD)
def test_all_count_what_no_operator_makes(kind: str, saved: pathlib.Path) -> None:
    work, peak = HELD[kind]
    assert count_all(lambda: work(saved))[0] == [peak, peak, 0 if kind in MAPPED else peak]


def test_an_estimate_is_in_doubt_about_what_is_loaded(saved: pathlib.Path) -> None:
    _, taken = count_all(lambda: (torch.load(saved / "new"), torch.ones(A_MIB)))
    assert (peak_of(taken.least).allocated, peak_of(taken.most).allocated) == (MIB, 4 * MIB)
    assert taken.doubts == (GIVEN,)


def test_numpy_s_memory_is_counted_by_an_estimate_alone() -> None:
    values = LARGE.numpy()
    assert count_all(lambda: torch.from_numpy(values))[0] == [0, 1, 0]
