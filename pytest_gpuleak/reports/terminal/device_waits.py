"""Sentences on what `--gpu-leak-wait` has waited for, and what was still occupied, with its cause in words."""

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
