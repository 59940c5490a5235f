"""What holds for every hint: order, length, silence where nothing is known."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pytest_gpuleak.explain.hints as package
from pytest_gpuleak.explain.hints.order import MAX_HINT_LENGTH, ORDER
from pytest_gpuleak.explain.hints.pattern import Pattern
from pytest_gpuleak.model.findings import Finding, FindingKind, Holder, HolderKind, PathStep
from tests.support.leaks import CLOSURE, hint_for, leak

LONG = "an_application_with_a_long_name.and_a_module_with_a_longer_one.A_GLOBAL_WITH_THE_LONGEST_NAME_OF_THEM_ALL"
EDGES = [
    "[0]", "['loss']", f"['{LONG}']", "[<Parameter>]", "[<ContextVar 'ctx'>]", f".{LONG}", ".x", ".grad", "._base", ".state",
    ".args", ".args[0]", ".msg", ".exc_info", ".__traceback__", ".__context__", "._excinfo", ".tb_frame", ".f_locals['x']",
    f".gi_frame.f_locals['{LONG.replace('.', '_')}']", ".cr_frame.f_locals['x']", ".ag_frame", ".get_coro()", "._result",
    ".exception()", ".call_args_list", "._forward_hooks", "._backward_hooks", " (cache key)", " (cached result)",
    " (item of set)", ".__defaults__[0]", ".__closure__[0].cell_contents", ".__self__", ".grad_fn.next_functions[0][0]", "",
]  # fmt: skip
TYPES = [
    "list", "dict", "set", "tuple", "collections.deque", "collections.OrderedDict", "collections.defaultdict", "traceback",
    "functools.lru_cache", "functools.partial", "method", "torch.Tensor", "logging.LogRecord", "unittest.mock._CallList",
    "concurrent.futures._base.Future", "asyncio.Task", "contextvars.Context", "threading.Timer", f"frame of {LONG}",
    "_pytest.config.Config", "_pytest.python.Function", f"class {LONG}.<locals>.{LONG.replace('.', '_')}", f"{LONG}.Net",
    f"closure variable '{LONG.replace('.', '_')}' of {LONG}", "contextlib._GeneratorContextManager", "",
]  # fmt: skip
ROOTS = [
    LONG, "app.X", "app.Net.cached", "torch._dynamo.x", "torch.nn.modules.module._global_forward_hooks", "sys.gettrace()",
    f"{LONG}.get()", f"fixture '{LONG}'", f"pytest item '{LONG}'", f"user_properties of {LONG}", f"{LONG} instance kept by pytest",
    f"thread '{LONG}' in {LONG}: local '{LONG.replace('.', '_')}'", f"asyncio task '{LONG}' in {LONG}", "C++", "",
    f"weakref.finalize callback {LONG} of {LONG}", f"unittest.mock.patch of '{LONG}', not stopped",
]  # fmt: skip

kinds: st.SearchStrategy[HolderKind] = st.sampled_from(
    ["module", "class", "cache", "fixture", "frame", "thread", "traceback", "native", "unknown"]
)
verdicts: st.SearchStrategy[FindingKind] = st.sampled_from(["growing", "retained", "unconfirmed", "cycle"])
steps = st.builds(PathStep, st.sampled_from(EDGES) | st.text(), st.sampled_from(TYPES) | st.text())


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(
    root=st.sampled_from(ROOTS) | st.text(),
    path=st.lists(steps, max_size=5).map(tuple),
    kind=kinds,
    found=verdicts,
    nodes=st.none() | st.integers(0, 2),
    function=st.none() | st.sampled_from(["setUp", "x", "test_it"]),
)
def test_any_path_gives_one_short_hint_or_none(
    root: str, path: tuple[PathStep, ...], kind: HolderKind, found: FindingKind, nodes: int | None, function: str | None
) -> None:
    holder = Holder(kind, root, root + "".join(step.edge for step in path), path)
    finding = dataclasses.replace(leak(root, found=found, nodes=nodes, function=function), holder=holder)
    hint = hint_for(finding)
    assert hint is None or 20 < len(hint) <= MAX_HINT_LENGTH
    assert hint is None or hint.endswith(".")
    assert hint == hint_for(finding)


def test_a_finding_without_a_holder_has_no_hint() -> None:
    assert hint_for(dataclasses.replace(leak("app.X"), holder=None)) is None


def test_every_public_function_of_an_inspectors_module_is_in_the_order_once() -> None:
    inspectors = []
    for module in pkgutil.iter_modules(package.__path__):
        loaded = __import__(f"{package.__name__}.{module.name}", fromlist=["x"])
        if module.name not in ("order", "pattern", "protocol", "trail"):
            inspectors += [
                function
                for name, function in inspect.getmembers(loaded)
                if isinstance(function, Pattern)
                or (inspect.isfunction(function) and name[0] != "_" and function.__module__ == loaded.__name__)
            ]
    assert len(ORDER) == len(set(ORDER.values()))
    assert set(ORDER.values()) == set(inspectors)


def _first(finding: Finding) -> str:
    hint = hint_for(finding)
    assert hint is not None
    return hint


def test_a_hook_is_blamed_before_the_closure_and_the_graph_that_it_keeps() -> None:
    hooks = ("._forward_hooks", "app.Net"), ("[0]", "collections.OrderedDict")
    assert _first(leak("app.NET", *hooks, CLOSURE, nodes=3)).startswith("A hook registered")


def test_a_graph_is_blamed_before_the_list_and_the_view() -> None:
    finding = leak("app.LOSSES", ("[0]", "list"), nodes=3, shape=(), storage=2**20)
    assert "autograd graph" in _first(finding)


def test_a_running_thread_is_blamed_before_what_it_keeps() -> None:
    root = "thread 'w' in app.work: local 'hook'"
    assert _first(leak(root, CLOSURE, kind="thread", nodes=3)).startswith("The thread 'w' still runs")


def test_a_stored_exception_is_blamed_before_the_list_that_stores_it() -> None:
    path = (
        ("[0]", "list"),
        (".__traceback__", "ValueError"),
        (".tb_frame", "traceback"),
        (".f_locals['x']", "frame of f"),
    )
    assert _first(leak("app.ERRORS", *path, nodes=3)).startswith("The exception kept in `app.ERRORS`")
