"""The line on who initialised a device first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.reports.terminal.lines import ID_LIMIT

if TYPE_CHECKING:
    from pytest_gpuleak.model.first_init import FirstInit


def is_shown(found: FirstInit, verbosity: int) -> bool:
    """Tell whether the line is shown: always with ``-v``, else only for what breaks processes that tests fork."""
    return verbosity > 0 or (verbosity == 0 and found.before_tests)


def render_first_init(found: FirstInit) -> str:
    """Write the line: ``cuda was first initialised while tests/test_a.py was collected, at app/kernels.py:12 (import of ...)``."""
    parts = [_when(found), *_where(found)]
    if found.by is None:
        parts.append("not by torch.cuda")
    after = "; forked processes cannot use it" if found.before_tests else ""
    return f"gpu-leak: {clean_text(found.device, ID_LIMIT)} was first initialised {', '.join(parts)}{after}"


def _when(found: FirstInit) -> str:
    nodeid = "the tests" if found.nodeid is None else clean_text(found.nodeid, ID_LIMIT)
    if found.phase == "fixture" and found.fixture is not None:
        fixture = found.fixture
        place = "" if fixture.file is None else f" ({clean_text(fixture.file, ID_LIMIT)}:{fixture.line})"
        return f"in the setup of fixture '{clean_text(fixture.name, ID_LIMIT)}'{place} of {nodeid}"
    if found.phase in ("fixture", "test"):
        return f"in {nodeid}"
    if found.phase == "import":
        return f"while {nodeid} was imported"
    collected = "were" if found.nodeid is None else "was"
    words = {"start": "before the tests were collected", "session": "after the tests were collected"}
    when = words.get(found.phase, f"while {nodeid} {collected} collected")
    return when if found.hook is None else f"{when}, in the hook {clean_text(found.hook, ID_LIMIT)}"


def _where(found: FirstInit) -> list[str]:
    """Write the user's line, the import that it is part of unless that is what was collected, and the call."""
    parts = []
    if found.file is not None:
        line = f"at {clean_text(found.file, ID_LIMIT)}:{found.line}"
        if found.importing is not None and found.file != found.nodeid:
            line += f" (import of {clean_text(found.importing, ID_LIMIT)})"
        parts.append(line)
    if found.caller is not None:
        caller = found.caller
        called = f"{clean_text(caller.file, ID_LIMIT)}:{caller.line}"
        parts.append(f"in {clean_text(caller.function, ID_LIMIT)} ({called})")
    if found.thread is not None:
        parts.append(f"in the thread '{clean_text(found.thread, ID_LIMIT)}'")
    return parts
