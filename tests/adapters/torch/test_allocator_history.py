"""The allocator's history, on dictionaries of the documented format and a torch that records what is asked of it."""

from __future__ import annotations

import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuleak.adapters.torch.allocator_history import (
    NATIVE_TEXT,
    NO_DEVICE,
    PICKLE_PROTOCOL,
    RecordedHistory,
    blocks_alive,
    snapshot_name,
    write_snapshot,
)
from pytest_gpuleak.adapters.torch.compiler import compiler_not_imported
from pytest_gpuleak.model.source_files import Origin
from tests.conftest import forget_torch

USER = {"filename": __file__, "line": 1, "name": "test_leaks"}
TORCH = {"filename": "/venv/site-packages/torch/nn/modules/linear.py", "line": 125, "name": "forward"}


def is_user_file(path: str) -> bool:
    return path == __file__


def block(address: int, size: int, *frames: dict[str, Any], state: str = "active_allocated") -> dict[str, Any]:
    rounded = -(-size // 512) * 512
    return {"address": address, "size": rounded, "requested_size": size, "state": state, "frames": list(frames)}


def snapshot(*blocks: dict[str, Any], device: int = 0, trace: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    segment = {
        "device": device,
        "address": 0,
        "total_size": 2**21,
        "stream": 0,
        "segment_type": "small",
        "blocks": list(blocks),
    }
    return {"segments": [segment], "device_traces": [list(trace)], "allocator_settings": {}}


def test_blocks_are_grouped_by_the_innermost_line_of_the_users() -> None:
    outer = {**USER, "line": 2, "name": "test_outer"}
    found = blocks_alive(
        snapshot(block(0, 100, TORCH, USER, outer), block(512, 60, USER, outer), block(1024, 500, outer)),
        frozenset(),
        is_user_file,
    )

    assert [(part.text, part.bytes, part.count) for part in found] == [
        ("allocated in test_outer", 500, 1),
        ("allocated in test_leaks", 160, 2),
    ]
    source = Path(__file__).read_text().splitlines()[0]
    assert found[1].created == Origin(__file__, 1, "test_leaks", source)


def test_what_was_there_before_is_left_out_unless_its_address_was_given_out_anew() -> None:
    found = blocks_alive(
        snapshot(
            block(0, 100, USER),
            block(512, 200, USER),
            block(1024, 300, USER),
            trace=(
                {"action": "free_completed", "addr": 512, "size": 512, "frames": []},
                {"action": "alloc", "addr": 512, "size": 512, "frames": []},
                {"action": "oom", "size": 512, "frames": []},
            ),
        ),
        {0, 512},
        is_user_file,
    )

    assert [(part.bytes, part.count) for part in found] == [(500, 2)]


@pytest.mark.parametrize("state", ["inactive", "active_awaiting_free", "active_pending_free"])
def test_what_is_free_or_about_to_be_is_left_out(state: str) -> None:
    assert blocks_alive(snapshot(block(0, 100, USER, state=state)), (), is_user_file) == ()


def test_blocks_without_a_frame_are_those_of_native_code() -> None:
    (part,) = blocks_alive(snapshot(block(0, 100), block(512, 24)), (), is_user_file)

    assert (part.text, part.bytes, part.count, part.created) == (NATIVE_TEXT, 124, 2, None)


def test_blocks_that_no_line_of_the_users_allocated_name_the_installed_one() -> None:
    (part,) = blocks_alive(snapshot(block(0, 100, TORCH)), (), is_user_file)

    assert part.text == "allocated in forward (modules/linear.py:125), by no line of yours"
    assert part.created is None


def test_a_device_can_be_asked_for_alone() -> None:
    both = snapshot(block(0, 100, USER))
    both["segments"] += snapshot(block(2**30, 200, USER), device=1)["segments"]

    assert [part.bytes for part in blocks_alive(both, (), is_user_file)] == [300]
    assert [part.bytes for part in blocks_alive(both, (), is_user_file, device=1)] == [200]


def test_names_cannot_drive_a_terminal() -> None:
    (part,) = blocks_alive(snapshot(block(0, 1, {**USER, "name": "f\x1b[31m"})), (), is_user_file)

    assert part.text == "allocated in f?[31m"


def test_a_snapshot_is_written_whole_for_the_viewer(tmp_path: Path) -> None:
    made = snapshot(block(0, 100, USER))

    path = write_snapshot(made, tmp_path / "new" / "folder", "tests/test_a.py::test_x[a/b]")
    again = write_snapshot(made, path.parent, "tests/test_a.py::test_x[a/b]")

    assert again == path
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    data = path.read_bytes()
    assert pickle.loads(data) == made
    assert data[:2] == bytes([0x80, PICKLE_PROTOCOL])


def test_a_snapshot_that_cannot_be_written_leaves_the_earlier_one_and_no_rest(tmp_path: Path) -> None:
    path = write_snapshot({"segments": []}, tmp_path, "test_x")

    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        write_snapshot({"segments": lambda: None}, tmp_path, "test_x")

    assert list(tmp_path.iterdir()) == [path]
    assert pickle.loads(path.read_bytes()) == {"segments": []}


def test_a_folder_that_is_a_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(OSError, match="file"):
        write_snapshot({}, tmp_path / "file", "test_x")


@pytest.mark.parametrize(
    "nodeid",
    [
        "tests/test_a.py::test_x[../../etc]",
        "test_\u202e\x1b[31m",
        "x" * 1000,
        "",
        "::",
        "test_a.py::test_x[a b:c*?|<>]",
    ],
)
def test_names_of_files_are_safe_on_every_file_system(nodeid: str) -> None:
    name = snapshot_name(nodeid)

    assert len(name) <= 160
    assert Path(name).name == name
    assert not name.startswith((".", "-"))
    assert all(character.isascii() and (character.isalnum() or character in "._-") for character in name)


def test_names_of_files_differ_where_tests_do() -> None:
    assert snapshot_name("test_x[a/b]") != snapshot_name("test_x[a:b]")
    assert snapshot_name("a" * 500 + "1") != snapshot_name("a" * 500 + "2")
    assert snapshot_name("\udcff") != snapshot_name("\udcfe")


class Recorder:
    """A torch.cuda that notes what is asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, initialised: bool = True, enabled: bool = False) -> None:
        self.calls: list[dict[str, Any]] = []
        self.enabled = enabled
        self.held = snapshot(block(0, 100))
        self.broken = False
        forget_torch(monkeypatch)
        cuda, core, memory = (types.ModuleType(name) for name in ("torch.cuda", "torch._C", "torch.cuda.memory"))
        vars(cuda).update(is_initialized=lambda: initialised, memory=memory)
        vars(core).update(_cuda_isHistoryEnabled=lambda: self.enabled)
        vars(memory).update(
            memory_snapshot=lambda: self.held["segments"], _snapshot=self.take, _record_memory_history=self.record
        )
        monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
        monkeypatch.setitem(sys.modules, "torch._C", core)

    def record(self, enabled: str | None = "all", **options: Any) -> None:
        self.calls.append({"enabled": enabled, **options})
        self.enabled = enabled is not None

    def take(self) -> dict[str, Any]:
        if self.broken:
            raise RuntimeError("device lost")
        assert self.enabled
        return self.held


def test_recording_asks_for_pythons_stacks_alone_and_is_switched_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Recorder(monkeypatch)

    with RecordedHistory(max_entries=10) as history:
        assert torch.enabled
        torch.held = snapshot(block(0, 100), block(512, 50, USER))

    assert torch.calls == [
        {"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": 10},
        {"enabled": None},
    ]
    assert (history.why_not, history.snapshot, history.before) == ("", torch.held, frozenset({0}))
    assert [part.bytes for part in blocks_alive(torch.held, history.before, is_user_file)] == [50]


def test_the_users_own_recording_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Recorder(monkeypatch, enabled=True)

    with RecordedHistory() as history:
        pass

    assert (torch.calls, torch.enabled, history.snapshot) == ([], True, None)
    assert "somebody else" in history.why_not


def test_a_device_that_nobody_uses_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Recorder(monkeypatch, initialised=False)

    with RecordedHistory() as history:
        pass

    assert (torch.calls, history.snapshot, history.why_not) == ([], None, NO_DEVICE)


def test_without_torch_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_torch(monkeypatch)
    monkeypatch.delitem(sys.modules, "torch.cuda", raising=False)

    with RecordedHistory() as history:
        pass

    assert history.why_not == NO_DEVICE


def test_a_device_that_is_lost_meanwhile_is_told_and_recording_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Recorder(monkeypatch)

    with RecordedHistory() as history:
        torch.broken = True

    assert (history.snapshot, torch.enabled) == (None, False)
    assert history.why_not == "the allocator's history cannot be read (RuntimeError)"


def test_a_torch_that_cannot_record_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    Recorder(monkeypatch)
    monkeypatch.delattr(sys.modules["torch.cuda"].memory, "_record_memory_history")

    with RecordedHistory() as history:
        pass

    assert history.why_not == "the allocator's history cannot be recorded (AttributeError)"


def test_a_snapshot_imports_no_compiler_and_leaves_one_that_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    torch: Any = types.ModuleType("torch")
    torch.__getattr__ = asked.append
    monkeypatch.setattr("pytest_gpuleak.adapters.torch.compiler.loaded_torch", lambda: torch)
    monkeypatch.delitem(sys.modules, "torch._inductor", raising=False)

    with compiler_not_imported():
        assert not hasattr(torch._inductor, "codecache")
    assert (asked, "_inductor" in vars(torch)) == ([], False)

    real = torch._inductor = types.ModuleType("torch._inductor")
    with compiler_not_imported():
        assert torch._inductor is real
    assert torch._inductor is real


@pytest.mark.torch
def test_the_options_are_those_that_the_installed_torch_takes() -> None:
    import inspect

    from torch.cuda import memory

    from pytest_gpuleak.adapters.torch.allocator_history import clear_argument

    accepted = inspect.signature(memory._record_memory_history).parameters
    assert {"enabled", "context", "stacks", "max_entries", *clear_argument(memory)} <= set(accepted)
    assert clear_argument(memory) == {"clear_history": True}
