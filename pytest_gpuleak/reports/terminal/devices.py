"""Lines on devices: what `--gpu-leak-wait` has waited for and what was still occupied, and who initialised one first."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.outcomes import CHECKED
from pytest_gpuleak.model.text import clean_text, count_of, format_bytes
from pytest_gpuleak.reports.terminal.lines import ID_LIMIT, TEXT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpuleak.model.devices import DeviceWait, Occupied
    from pytest_gpuleak.model.first_init import FirstInit
    from pytest_gpuleak.model.records import TestRecord


MAX_TOLD: Final = 20
"""Entries that are shown. The JSON report has all."""


def describe_waits(tests: Iterable[TestRecord]) -> list[str]:
    """Write how long was waited in all, and a sentence for each entry; nothing where there was neither."""
    waited: list[float] = []
    sentences: dict[str, None] = {}
    for test in tests:
        wait = test.device_wait
        if wait is not None:
            if wait.waited_s > 0 and math.isfinite(wait.waited_s):
                waited.append(wait.waited_s)
            for one in wait.occupied:
                sentence = isolated(partial(describe, test, wait, one), lambda why: f"cannot be shown: {why}")
                sentences.setdefault(sentence)  # xdist's workers all meet the same foreign processes
    told = list(sentences)
    texts = [f"gpu-leak: {sentence}" for sentence in told[:MAX_TOLD]]
    if len(told) > MAX_TOLD:
        texts.append(f"gpu-leak: and {len(told) - MAX_TOLD} more on devices; the JSON report has them")
    if waited:
        texts.append(f"gpu-leak: waited {sum(waited):.1f} s for devices after {count_of(len(waited), 'test')}")
    return texts


def describe(test: TestRecord, wait: DeviceWait, one: Occupied) -> str:
    """Write the sentence on an entry: when, how much, where, and who has it."""
    size, device = format_bytes(one.bytes), clean_text(one.device, ID_LIMIT)
    if one.cause == "foreign":
        return f"before {device} was used, {size} of it were taken by {_process(one)}, which is not of this run"
    after = f"after {clean_text(test.nodeid, ID_LIMIT)}, {size} of {device}"
    waited = f" after {wait.waited_s:.1f} s" if wait.waited_s else ""
    if one.cause == "this process":
        return f"{after} are held in this process{waited}, by {_holders(test, one.device)}"
    if one.cause == "process":
        started = f", started by {clean_text(one.started_by, TEXT_LIMIT)}" if one.started_by else ""
        return f"{after} are held{waited} by {_process(one)}, which is alive{started}"
    if one.cause == "driver":
        ended = f"pid {one.pid} has ended and {clean_text(one.why, TEXT_LIMIT)}" if one.pid is not None else ""
        return f"{after} belong to no process any more, and the driver has not given them back{waited}{ended and f' ({ended})'}"
    return f"{after} are in use{waited} that were not before it; whose they are is {clean_text(one.why, TEXT_LIMIT)}"


def _process(one: Occupied) -> str:
    command = clean_text(one.command, TEXT_LIMIT)
    return f"pid {one.pid}{command and f' ({command})'}"


def _holders(test: TestRecord, device: str) -> str:
    if test.outcome not in CHECKED:
        return f"what is not known: the test was not checked ({test.outcome}), and its traceback may hold its locals"
    found = sorted((one for one in test.findings if one.device == device), key=lambda one: -one.bytes)
    names = dict.fromkeys(one.holder.root or one.holder.text for one in found if one.holder is not None)
    return " and ".join(clean_text(name, TEXT_LIMIT) for name in names) or "what its findings tell"


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
