"""What frameworks tell beyond arrays: tracers, compiled programs, arrays' own lines and parts, memory on several devices."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from tests.conftest import Runner

CONFTEST = """
    from pytest_gpuleak.adapters.protocol import Framework
    from pytest_gpuleak.model.source_files import Origin
    from pytest_gpuleak.model.readings import TRACE, ArrayReading
    from tests.support.standin import Buffer, StandInArrays

    PROGRAMS = []

    class Sharded(StandInArrays):
        def read(self, array):
            reading = super().read(array)
            if array.device == "toy:0,1":
                half = reading.bytes // 2
                reading = reading._replace(shards=(("toy:0", half), ("toy:1", half)))
            return reading

        def creation_lines(self, arrays, is_user_file):
            assert is_user_file(__file__)
            return {id(array): Origin(__file__, 3, "make", "as the array says") for array in arrays}

        def parts(self, arrays):
            return {id(array) for array in arrays if array.memory.size == 77}

    class Tracer:
        pass

    class Tracers(StandInArrays):
        name = "toy tracers"

        def array_type(self):
            return Tracer

        def storage(self, array):
            return id(array)

        def read(self, array):
            return ArrayReading(id(array), (3,), "float32", TRACE, 0, id(array), 0)

        def hold(self, array):
            import weakref
            reference = weakref.ref(array)
            class Handle:
                storage = id(array)
                def alive(self):
                    return reference() is not None
            return Handle()

    class Toy(Framework):
        name = "toy"
        arrays = Sharded()
        tracers = Tracers()

        def program_names(self):
            return list(PROGRAMS)

    def pytest_gpuleak_arrays(config):
        return [Toy()]
"""


SUITE = """
    import pytest
    from conftest import PROGRAMS, Tracer

    SEEN, LAST, BOTH = [], {}, []
    judged_once = pytest.mark.gpu_leak(confirm=0)

    def test_tracers_grow():
        SEEN.append(Tracer())

    def test_tracer_is_replaced():
        LAST["x"] = Tracer()

    def test_tracer_beside_an_array():
        BOTH.append((Tracer(), Buffer(100)))

    def test_tracer_in_a_cycle():
        tracer = Tracer()
        tracer.itself = tracer

    BLOCKS, BUFFERS = [], []

    def compile(name):
        PROGRAMS.append(name)
        BLOCKS.append(bytearray(2 << 20))  # a program takes memory of the host

    def test_compiles_in_each_run():
        compile("jit_step")

    def test_compiles_once():
        if "jit_once" not in PROGRAMS:
            compile("jit_once")

    def test_compiles_and_grows():
        compile("jit_kept")
        BUFFERS.append(Buffer(100))

    @judged_once
    def test_compiles_and_is_not_run_again():
        compile("jit_never")

    LINES, PARTS, WHOLES, SHARDED = [], [], [], []

    @judged_once
    def test_line():
        LINES.append(Buffer(2**21))

    def test_part():
        PARTS.append(Buffer(77))

    def test_part_beside_an_array():
        PARTS.append(Buffer(77))
        WHOLES.append(Buffer(100))

    def test_sharded():
        SHARDED.append(Buffer(2048, "toy:0,1"))
"""
VERDICTS = {
    "test_tracers_grow": "noted",
    "test_tracer_is_replaced": "noted",
    "test_tracer_beside_an_array": "leaked",
    "test_tracer_in_a_cycle": "clean",
    "test_compiles_in_each_run": "noted",
    "test_compiles_once": "clean",
    "test_compiles_and_grows": "leaked",
    "test_compiles_and_is_not_run_again": "clean",
    "test_line": "leaked",
    "test_part": "clean",
    "test_part_beside_an_array": "leaked",
    "test_sharded": "leaked",
}


def test_what_a_framework_tells_beyond_its_arrays(run: Runner, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(textwrap.dedent(CONFTEST))
    found = run(SUITE)
    assert found.verdicts == VERDICTS
    for name, root in (("test_tracers_grow", "test_it.SEEN"), ("test_tracer_is_replaced", "test_it.LAST")):
        finding = found.finding(name)
        assert (finding["kind"], finding["failed"], finding["holder"]["root"]) == ("tracer", False, root)
    kinds = {finding["kind"]: finding["failed"] for finding in found.tests["test_tracer_beside_an_array"]["findings"]}
    assert kinds == {"growing": True, "tracer": False}
    finding = found.finding("test_compiles_in_each_run")
    assert (finding["kind"], finding["failed"], finding["count"]) == ("recompiled", False, 1)
    assert finding["contributions"][0]["text"] == "jit_step"
    assert found.finding("test_compiles_and_grows")["kind"] == "growing"
    finding = found.finding("test_line")  # without a re-run
    assert (finding["kind"], finding["tensors"][0]["created"]["code"]) == ("unconfirmed", "as the array says")
    assert found.finding("test_part_beside_an_array")["bytes_per_run"] == 100
    finding = found.finding("test_sharded")
    assert (finding["device"], finding["bytes"]) == ("toy:0,1", 2048)
    assert finding["evidence"] == ["on 2 devices: toy:0 1.0 KiB, toy:1 1.0 KiB"]
