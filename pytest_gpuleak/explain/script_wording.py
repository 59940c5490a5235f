"""Word hints for code outside of pytest: a notebook or script has no teardown, fixtures or markers."""

from __future__ import annotations

from typing import Final

_WORDS: Final = (
    (" (after the `yield` of a fixture)", ""),
    (", or mark the test with `allow_gpu_leak` if it is meant to stay", ""),
    (" (in `tearDownClass` or `teardown_class` for a class of tests)", ""),
    (" (`addCleanup(patcher.stop)`)", ""),
    ("do so in teardown", "do so when it is no longer needed (`del`, or `= None`)"),
    ("take out in teardown what was put there", "take out what was put there when it is no longer needed"),
    (
        ": fit one model in a wider fixture, compile with `run_eagerly=True`, or use `allow_gpu_leak`",
        ": fit one model, or compile it with `run_eagerly=True`",
    ),
    ("let it go within the test", "let it go when done"),
    ("in teardown_method", "when done"),
    ("in teardown", "when done"),
    ("stays after the test", "stays"),
    ("before the test ends", "when done"),
    ("for each test", "for each use"),
)
"""What a hint says of tests, and what it says in its place."""


def for_script(hint: str) -> str:
    """Return a hint without words that only a test suite has a place for."""
    for words, instead in _WORDS:
        hint = hint.replace(words, instead)
    return hint
