"""Which line is said to have initialised a device, of a stack that is fed in."""

from __future__ import annotations

import pytest

from pytest_gpuleak.model.finding_codec import encode
from pytest_gpuleak.model.first_init import FirstInit, Phase, decode_first_init, earlier_of
from pytest_gpuleak.session.features.first_init_stack import Call, find_place

LAZY_INIT = Call("torch.cuda", "/lib/site-packages/torch/cuda/__init__.py", 501, "_lazy_init", is_user=False)
OURS = Call("pytest_gpuleak.adapters.torch.first_use", "/src/gpuleak/first_use.py", 70, "_call", is_user=False)
OF_TORCHS_CHECKOUT = LAZY_INIT._replace(file="/src/torch/cuda/__init__.py", is_user=True)
THREAD = Call("threading", "/lib/threading.py", 982, "run", is_user=False)
CONTEXTLIB = Call("contextlib", "/lib/contextlib.py", 81, "inner", is_user=False)
REWRITE = Call("_pytest.assertion.rewrite", "/lib/rewrite.py", 197, "exec_module", is_user=False)
LIBRARY = Call("vllm.platforms", "/lib/site-packages/vllm/platforms.py", 40, "detect", is_user=False)
LIBRARY_IMPORT = Call("vllm", "/lib/site-packages/vllm/__init__.py", 3, "<module>", is_user=False)
PROBE = Call("app.probe", "/src/app/probe.py", 4, "probe", is_user=True)
KERNELS = Call("app.kernels", "/src/app/kernels.py", 12, "<module>", is_user=True)
TEST_FILE = Call("test_a", "/src/tests/test_a.py", 2, "<module>", is_user=True)
TEST = Call("test_a", "/src/tests/test_a.py", 9, "test_it", is_user=True)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([LAZY_INIT, TEST], (TEST, None, None)),
        ([LAZY_INIT, KERNELS, TEST_FILE, REWRITE], (KERNELS, "app.kernels", None)),
        ([LAZY_INIT, PROBE, KERNELS, REWRITE, TEST_FILE], (KERNELS, "app.kernels", PROBE)),
        ([LAZY_INIT, LIBRARY, LIBRARY_IMPORT, TEST_FILE, REWRITE], (TEST_FILE, "test_a", LIBRARY)),
        ([LAZY_INIT, KERNELS, TEST], (KERNELS, "app.kernels", None)),
        ([LAZY_INIT, PROBE, TEST], (PROBE, None, None)),
        ([LAZY_INIT, THREAD], (None, None, None)),
        ([LAZY_INIT, LIBRARY, REWRITE], (None, None, LIBRARY)),
        ([OURS, LAZY_INIT, TEST], (TEST, None, None)),
        ([OURS, OF_TORCHS_CHECKOUT, LAZY_INIT, TEST], (TEST, None, None)),
        ([LAZY_INIT, CONTEXTLIB, LAZY_INIT, PROBE, TEST], (PROBE, None, None)),
        ([LAZY_INIT, TEST._replace(module="test.test_a")], (TEST._replace(module="test.test_a"), None, None)),
        ([REWRITE], (None, None, None)),
        ([], (None, None, None)),
    ],
)
def test_the_line_to_edit(calls: list[Call], expected: tuple[Call | None, str | None, Call | None]) -> None:
    assert find_place(calls, "torch") == expected


def found(phase: Phase, worker: str = "main") -> FirstInit:
    return FirstInit("cuda", "torch.cuda", phase, worker, 7)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (None, found("test"), found("test")),
        (found("test", "gw0"), found("collection", "gw1"), found("collection", "gw1")),
        (found("import", "gw1"), found("session", "gw0"), found("import", "gw1")),
        (found("test", "gw1"), found("fixture", "gw0"), found("fixture", "gw0")),
    ],
)
def test_of_several_processes_one_is_said(one: FirstInit | None, other: FirstInit, expected: FirstInit) -> None:
    assert earlier_of(one, other) == expected
    if one is not None:
        assert earlier_of(other, one) == expected


def test_it_travels_as_plain_data() -> None:
    from pytest_gpuleak.model.first_init import Caller
    from pytest_gpuleak.model.outcomes import FixturePlace

    one = found("fixture")._replace(
        nodeid="test_a.py::test_it", fixture=FixturePlace("model", "session", "", "conftest.py", 8),
        caller=Caller("vllm/platforms.py", 40, "detect"),
    )  # fmt: skip
    assert decode_first_init(encode(one)) == one
    assert decode_first_init(encode(found("test"))) == found("test")
