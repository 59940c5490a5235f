"""The host's memory and processes, end to end: one run of pytest, many tests in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cold")]


MIB = 2**20


def test_a_suite_with_leaks_of_host_memory(run: Runner) -> None:
    found = run(
        """
        import ctypes
        import json
        import pytest

        KEPT = []
        CACHE = {}

        class Store:
            blocks = {}

        def test_bytearrays():
            KEPT.append(bytearray(12 * 2**20))

        def test_scratch():
            assert bytearray(64 * 2**20)

        def test_cache_filled_once():
            CACHE.setdefault("table", bytearray(16 * 2**20))

        def test_malloc():
            malloc = ctypes.CDLL(None).malloc
            malloc.restype = ctypes.c_void_p
            assert malloc(ctypes.c_size_t(20 * 2**20))

        def test_in_a_class():
            Store.blocks[len(Store.blocks)] = b"x" * (11 * 2**20)

        def test_below_the_limit():
            KEPT.append(bytearray(9 * 2**20))

        @pytest.mark.gpu_leak(host_mb=4)
        def test_over_its_own_limit():
            KEPT.append(bytearray(5 * 2**20))

        @pytest.mark.gpu_leak(host_mb=40)
        def test_under_its_own_limit():
            KEPT.append(bytearray(20 * 2**20))

        @pytest.mark.allow_gpu_leak(reason="a fixture of the data base")
        def test_allowed():
            KEPT.append(bytearray(12 * 2**20))

        @pytest.fixture(scope="module")
        def table():
            return bytearray(30 * 2**20)

        def test_of_a_wider_fixture(table):
            assert table

        def test_that_fails():
            KEPT.append(bytearray(12 * 2**20))
            assert False
        """,
        apart=True,
    )
    found.result.assert_outcomes(passed=10, failed=1)
    assert found.verdicts == {
        "test_bytearrays": "leaked",
        "test_scratch": "clean",
        "test_cache_filled_once": "clean",
        "test_malloc": "leaked",
        "test_in_a_class": "leaked",
        "test_below_the_limit": "clean",
        "test_over_its_own_limit": "leaked",
        "test_under_its_own_limit": "clean",
        "test_allowed": "allowed",
        "test_of_a_wider_fixture": "clean",
        "test_that_fails": "unchecked",
    }
    bytearrays = found.finding("test_bytearrays")
    assert (bytearrays["kind"], bytearrays["metric"], bytearrays["device"]) == ("host", "heap", "cpu")
    assert abs(bytearrays["bytes"] - 12 * MIB) < MIB / 8
    assert abs(bytearrays["bytes_per_run"] - 12 * MIB) < MIB / 8
    assert found.holder("test_bytearrays").startswith("test_it.KEPT[")
    assert "Store.blocks" in found.holder("test_in_a_class")
    assert found.finding("test_malloc")["holder"] is None
    memory = found.tests["test_bytearrays"]["memory"]["host"]
    assert memory["heap_after"] - memory["heap_before"] >= 12 * MIB
    found.result.stdout.fnmatch_lines(
        [
            "LEAKED 17.0 MiB in 2 tests",
            "  largest  test_it.py::test_bytearrays, 12.0 MiB",
            "  host: 12.0 MiB of host memory (heap); each run leaves 12.0 MiB more",
            "*KEPT[[]*",
        ]
    )


@pytest.mark.parametrize("mode", ["tracemalloc", "pympler", "heap,rss", "off"])
def test_the_other_modes(run: Runner, mode: str) -> None:
    found = run(
        """
        KEPT = []

        def test_leaks():
            KEPT.append(bytearray(12 * 2**20))

        def test_is_clean():
            assert bytearray(12 * 2**20)
        """,
        f"--gpu-leak-host={mode}",
        apart=True,
    )
    found.result.assert_outcomes(passed=2)
    if mode == "off":
        assert found.verdicts == {"test_leaks": "clean", "test_is_clean": "clean"}
        assert found.tests["test_leaks"]["memory"] == {}
        return
    assert found.verdicts == {"test_leaks": "leaked", "test_is_clean": "clean"}
    finding = found.finding("test_leaks")
    assert finding["metric"] == mode.partition(",")[0]
    assert finding["contributions"][0]["bytes"] >= 11 * MIB
    if mode == "tracemalloc":
        assert finding["contributions"][0]["created"]["code"] == "KEPT.append(bytearray(12 * 2**20))"
        assert finding["contributions"][0]["created"]["file"] == "test_it.py"
    if mode == "heap,rss":
        assert {name.partition("_")[0] for name in found.tests["test_leaks"]["memory"]["host"]} == {"heap", "rss"}
