"""The examples of the codes' pages: each leaks with its code, its hint and its line to edit, and is clean once it is mended."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.model.codes.table import CODES
from tests.planted.kind import Kind

if TYPE_CHECKING:
    from tests.planted.kind import Expected

APART: Final = {"GL007", "GL008", "GL106", "GL202", "GL509", "GL510", "GL511"}
"""These change the process for the tests after them.

GL202 does not: alone, the first uses of torch in a process grow the heap beside its gradient.
"""
NEED_CUDA: Final = {"GL005"}
"""Memory that the CUDA runtime allocates for the test itself."""
SIMULATED: Final = "from tests.support import simgpu\n\nsimgpu.install()\n"
"""A part of the conftest.py that makes the device of examples that name one."""

VERDICTS: Final[dict[str, Expected]] = {
    "GL002": "retained",
    "GL003": "fails",
    "GL004": "noted",
    "GL007": "fails",
    "GL008": "fails",
    "GL009": "noted",
    "GL010": "noted",
    "GL103": "retained",
    "GL104": "retained",
    "GL106": "retained",
    "GL202": "retained",
    "GL203": "retained",
    "GL204": "retained",
    "GL302": "retained",
    "GL505": "retained",
    "GL509": "retained",
    "GL510": "retained",
    "GL601": "retained",
    "GL602": "retained",
    "GL603": "retained",
    "GL604": "noted",
    "GL702": "retained",
    "GL703": "retained",
    "GL801": "noted",
    "GL805": "fails",
    "GL806": "fails",
    "GL807": "fails",
}
"""The verdicts of those that do not grow."""

TOLD: Final = {
    "GL101": ("The cache on the method `$m.Encoder.positions` keeps each `self`", "`cache_clear()`", "@functools"),
    "GL102": ("The cache of `$m.norm` keeps the arrays that it was called with", "`cache_clear()`", ""),
    "GL103": ("", "`cache_clear()`", ""),
    "GL104": ("If `$m.ACTIVE['encoder'].table` is a `functools.cached_property`", "`del`", ""),
    "GL105": ("", "`weakref.ref`", "STATE[agent] ="),
    "GL201": ("`$m.LOSSES` keeps a result with its autograd graph", "`.item()`", "LOSSES.append"),
    "GL203": ("The optimizer `$m.OPTIMIZER` keeps its state (`exp_avg`)", "`state.clear()`", ""),
    "GL204": ("`$m.LAST` keeps a view, and with it the whole storage", "`.clone()`", ""),
    "GL205": ("A hook registered on `$m.MODEL` was never removed", "`handle.remove()`", "MODEL.register_forward_hook"),
    "GL301": ("A default argument of `$m.collect` is one object for all calls", "`None`", "into.append"),
    "GL302": ("`$m.table` keeps it in `kept`", "cleared", ""),
    "GL303": ("A function kept in `$m.CALLBACKS` closes over `batch`", "take the function out", "CALLBACKS.append"),
    "GL304": ("A bound method kept in `$m.LISTENERS` keeps its object", "`weakref.WeakMethod`", "LISTENERS.append"),
    "GL305": ("A `functools.partial` kept in `$m.JOBS`", "take it out", "JOBS.append"),
    "GL306": ("`$m.STACK` keeps what it is to call when it is closed", "`close()`", "STACK.callback"),
    "GL307": ("Each run wraps the function `$m.Model.forward` once more", "`monkeypatch.setattr`", "Model.forward = "),
    "GL401": ("The thread 'Thread-", "`join()`", ""),
    "GL402": ("An asyncio task that has not ended keeps the locals of `", "`cancel()`", ""),
    "GL405": (
        "A suspended generator kept in `$m.ITERATORS` keeps its local `batch`",
        "`close()`",
        "ITERATORS.append",
    ),
    "GL407": ("A finished future kept in `$m.FUTURES` keeps its result", "drop the future", ""),
    "GL501": ("The mock `$m.CLIENT` keeps the arguments of each call", "`reset_mock()`", "CLIENT = "),
    "GL502": ("A log record kept in `$m.HANDLER.buffer`", "`loss.item()`", ""),
    "GL503": ("The exception kept in `$m.ERRORS` keeps its traceback", "`str(error)`", "ERRORS.append"),
    "GL504": ("The exception kept in `$m.ERRORS` was raised with an array", "`str(error)`", "ERRORS.append"),
    "GL505": ("The context variable ", "`reset(token)`", "BATCH.set"),
    "GL506": ("", "", "weakref.finalize(self"),
    "GL507": ("`$m.test_", "atexit", "atexit.register"),
    "GL508": ("The patch of 'bias' was started and never stopped", "`stop()`", ""),
    "GL601": ("pytest keeps the instance of a test class until the session", "", ""),
    "GL603": ("pytest's config keeps `.weight`", "session ends", ""),
    "GL604": ("The test left it in the value of fixture 'shared'", "function scope", ""),
    "GL605": ("`$m.PREPARED` still keeps what `setup_method` made", "let `teardown_method` take it out again.", ""),
    "GL701": ("Each run adds to `$m.HISTORY` and nothing takes it out", "teardown", "HISTORY.append"),
    "GL703": ("The global `$m.STATE` keeps it", "`allow_gpu_leak`", ""),
    "GL704": (
        "The class `Small`, defined in a function, stays registered in `$m.Model.known`",
        "registry",
        "Model.known.append",
    ),
    "GL706": ("", "", "LAST = "),
    "GL707": ("", "", "BANK = "),
}
"""How the hint starts, what it names as the remedy, and how the line to edit begins, where these were read."""


def _kind(code: str, *, fixed: bool) -> Kind:
    start, remedy, edit = ("", "", "") if fixed else TOLD.get(code, ("", "", ""))
    page = CODES[code]
    source = (page.fixed if fixed else page.leaks).replace('"cuda"', '"simgpu:0"')
    marked = [line + "  # edit" if edit and line.strip().startswith(edit) else line for line in source.splitlines()]
    needs = "".join(re.findall(r"import (jax|tensorflow|mlx|torch)\b", page.leaks)[-1:])
    return Kind(
        f"{code} {page.title}{', fixed' * fixed}",
        page.pattern,
        "\n".join(marked) + "\n",
        SIMULATED if "simgpu" in source else "",
        needs,
        file=True,
        first="passes" if fixed else VERDICTS.get(code, "growing"),
        code=code,
        hint=(start, remedy),
        apart=code if code in APART else needs.replace("torch", ""),
        ordered=code == "GL604",
    )


KINDS: Final = tuple(_kind(code, fixed=fixed) for code in CODES if code not in NEED_CUDA for fixed in (False, True))
