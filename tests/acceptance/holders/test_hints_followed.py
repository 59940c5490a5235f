"""What a hint says is done, in a process with torch, and the memory goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.interpreter]

REMEDIES = {
    "store_with_ring": "set `.grad = None` when done",
    "model_with_ring": "set `.grad = None` when done",
    "attribute_ring": "delete the attribute when done",
    "hook_ring": "`handle.remove()`",
    "exception": "keep `str(error)`",
    "exception_without_traceback": "`error.with_traceback(None)`",
    "bare_traceback": "The traceback kept in",
    "weak_key": "let it refer to the key by `weakref.ref`",
    "finalizer": "give it a function and values that do not",
    "exit_callback": "`atexit.unregister()`",
    "background_task": "call `cancel()` of what `run_coroutine_threadsafe` returned",
    "scheduled_call": "call its `cancel()`",
    "waiting_work": "`shutdown(cancel_futures=True)`",
}


def test_following_each_hint_frees_what_was_left(run_with_torch: Any) -> None:
    done = run_with_torch(Path(__file__).with_name("hint_followers.py").read_text("utf-8"))
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert found.keys() == REMEDIES.keys()
    for name, remedy in REMEDIES.items():
        case = found[name]
        assert any(remedy in str(hint) for hint in case["hints"]), case
        assert case["left"] > 0, case
        assert case["after"] == 0, case
