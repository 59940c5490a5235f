"""The kinds of findings as rules, for SARIF and code quality reports."""

from __future__ import annotations

import dataclasses

from pytest_gpuleak.model.findings import KIND_CODES
from pytest_gpuleak.model.text import clean_text

STALE_RULE = "gpu-leak/stale"
"""Rule of a baseline's entry whose leak is gone."""

UNSHOWN_RULE = "gpu-leak/unshown"
"""Rule of a finding that a report fails to render. `RULES` does not list it: it is no statement on the code."""

_KIND_LIMIT = 40


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rule."""

    id: str
    name: str
    title: str
    text: str
    advice: str

    @property
    def help(self) -> str:
        """Return text and advice as Markdown, and where the page of the kind's code is."""
        code = KIND_CODES.get(self.id.rpartition("/")[2])
        return f"{self.text}\n\n{self.advice}" + (f"\n\n`gpuleak explain {code}` tells more." if code else "")


_KEEP = (
    "If keeping it is intended, allow more of it with `@pytest.mark.gpu_leak(retained_mb=...)`, or say why with "
    '`@pytest.mark.allow_gpu_leak(reason="...")`.'
)
_HOLDER = "Begin with the holder: what stands after `held by` keeps the memory, and is what has to let go. "

RULES: tuple[Rule, ...] = (
    Rule(
        "gpu-leak/growing",
        "GrowingLeak",
        "The test leaves more memory behind each time it runs.",
        (
            "The test was run again, and left more tensors behind again. Over a long run they add up until a later "
            "test fails for want of memory."
        ),
        _HOLDER + "Store numbers (`loss.item()`) or `tensor.detach().cpu()` in place of tensors, or empty the "
        "holder in a fixture's teardown.",
    ),
    Rule(
        "gpu-leak/retained",
        "RetainedMemory",
        "The test leaves memory behind that does not grow.",
        (
            "The test was run again, and nothing was added: a cache that was filled, or state left in something "
            "shared. It takes memory from every later test."
        ),
        _HOLDER + "Clear it in teardown. " + _KEEP,
    ),
    Rule(
        "gpu-leak/unconfirmed",
        "UnconfirmedLeak",
        "The test leaves memory behind, and could not be run again to see whether it grows.",
        "It is judged by its size alone.",
        _HOLDER + _KEEP,
    ),
    Rule(
        "gpu-leak/cycle",
        "ReferenceCycle",
        "Memory of the test was freed only by the garbage collector.",
        "Objects that refer to each other in a circle held it until the collector happened to run.",
        "Break the circle: hold one side weakly (`weakref.ref`), or remove hooks and callbacks in teardown.",
    ),
    Rule(
        "gpu-leak/unattributed",
        "UnattributedDeviceMemory",
        "Memory of a device grows, and no tensor explains it.",
        (
            "The device's counters grow each time the test runs, by memory that no tensor which Python sees accounts "
            "for: an extension's, a library's workspace, a captured graph."
        ),
        "Look at what the test calls outside the framework, and release its handles, streams and graphs.",
    ),
    Rule(
        "gpu-leak/host",
        "HostMemoryLeak",
        "Memory of the host grows each time the test runs.",
        "The process holds more host memory after each run of the test, and no tensor explains it.",
        "Look at the largest objects or allocating lines that the finding lists. " + _KEEP,
    ),
    Rule(
        "gpu-leak/process",
        "ProcessLeftRunning",
        "The test leaves a process running.",
        "It keeps its memory, on the host and on its devices, until it ends.",
        "Join or terminate it in teardown; close the pool or the data loader that started it.",
    ),
    Rule(
        "gpu-leak/budget",
        "BudgetExceeded",
        "The test took more device memory than its budget.",
        "The test's peak was over what `max_gpu_mb` allows.",
        "Take less: smaller inputs, `torch.no_grad()`, fewer copies; or raise the budget where it is too tight.",
    ),
    Rule(
        "gpu-leak/tracer",
        "LeakedTracer",
        "The test keeps a tracer.",
        (
            "A tracer stands for an array while a function is traced. Kept longer it means nothing, and to compute with "
            "it raises an error."
        ),
        "Return the value from the traced function in place of storing it; `jax.checking_leaks()` raises where it leaks.",
    ),
    Rule(
        "gpu-leak/recompiled",
        "CompiledEachRun",
        "The test compiles more programs each time it runs.",
        "What was compiled in the first run does not serve the next one, and all of it is kept.",
        "Compile a function once, and call it with arguments that compare equal from run to run.",
    ),
    Rule(
        STALE_RULE,
        "StaleBaselineEntry",
        "The baseline lists a leak that is gone.",
        "The test ran, was checked, and left nothing that this entry of the baseline describes.",
        "Remove the entry: `pytest --gpu-leak --gpu-leak-update-baseline` does so.",
    ),
)
"""Every rule; the last is that of stale entries."""

RULE_INDEX = {rule.id: index for index, rule in enumerate(RULES)}


def rule_id(kind: str) -> str:
    """Return the id of the rule for a kind of finding."""
    return f"gpu-leak/{clean_text(kind, _KIND_LIMIT)}"
