"""What frameworks tell beyond arrays: tracers, compiled programs, arrays' own lines and parts, memory on several devices."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from tests.conftest import Run, Runner

CONFTEST = """
    from pytest_gpuleak.adapters.protocol import Framework
    from pytest_gpuleak.model.findings import Origin
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


def run_with(run: Runner, pytester: pytest.Pytester, source: str, *options: str) -> Run:
    pytester.makeconftest(textwrap.dedent(CONFTEST))
    return run(textwrap.dedent(source), *options)


def test_tracers_are_noted_however_many(run: Runner, pytester: pytest.Pytester) -> None:
    found = run_with(
        run,
        pytester,
        """
        from conftest import Tracer

        SEEN, LAST, BOTH = [], {}, []

        def test_growing():
            SEEN.append(Tracer())

        def test_replaced():
            LAST["x"] = Tracer()

        def test_beside_arrays():
            BOTH.append((Tracer(), Buffer(100)))

        def test_in_a_cycle():
            tracer = Tracer()
            tracer.itself = tracer
        """,
    )
    assert found.verdicts == {
        "test_growing": "noted", "test_replaced": "noted", "test_beside_arrays": "leaked", "test_in_a_cycle": "clean"
    }  # fmt: skip
    for name, root in (("test_growing", "test_it.SEEN"), ("test_replaced", "test_it.LAST")):
        finding = found.finding(name)
        assert (finding["kind"], finding["failed"], finding["holder"]["root"]) == ("tracer", False, root)
    kinds = {finding["kind"]: finding["failed"] for finding in found.tests["test_beside_arrays"]["findings"]}
    assert kinds == {"growing": True, "tracer": False}


PROGRAMS = """
    import sys

    PROGRAMS = sys.modules["conftest"].PROGRAMS
    BLOCKS, BUFFERS = [], []

    def compile(name):
        PROGRAMS.append(name)
        BLOCKS.append(bytearray(2 << 20))  # a program takes memory of the host

    def test_each_run():
        compile("jit_step")

    def test_once():
        if "jit_once" not in PROGRAMS:
            compile("jit_once")

    def test_grows_as_well():
        compile("jit_kept")
        BUFFERS.append(Buffer(100))
"""


def test_programs_that_each_run_compiles_are_noted(run: Runner, pytester: pytest.Pytester) -> None:
    found = run_with(run, pytester, PROGRAMS)
    assert found.verdicts == {"test_each_run": "noted", "test_once": "clean", "test_grows_as_well": "leaked"}
    finding = found.finding("test_each_run")
    assert (finding["kind"], finding["failed"], finding["count"]) == ("recompiled", False, 1)
    assert finding["contributions"][0]["text"] == "jit_step"
    assert found.finding("test_grows_as_well")["kind"] == "growing"


def test_a_user_who_wants_no_re_run_gets_none_for_programs(run: Runner, pytester: pytest.Pytester) -> None:
    assert run_with(run, pytester, PROGRAMS, "--gpu-leak-confirm=0").verdicts["test_each_run"] == "clean"


def test_an_array_tells_its_line_without_a_re_run(run: Runner, pytester: pytest.Pytester) -> None:
    source = "KEPT = []\n\ndef test_keeps():\n    KEPT.append(Buffer(2**21))\n"
    found = run_with(run, pytester, source, "--gpu-leak-confirm=0")
    finding = found.finding("test_keeps")
    assert (finding["kind"], finding["tensors"][0]["created"]["code"]) == ("unconfirmed", "as the array says")


def test_parts_of_arrays_are_not_counted(run: Runner, pytester: pytest.Pytester) -> None:
    source = """
        KEPT, PARTS = [], []

        def test_part_alone():
            PARTS.append(Buffer(77))

        def test_part_beside_an_array():
            PARTS.append(Buffer(77))
            KEPT.append(Buffer(100))
    """
    found = run_with(run, pytester, source)
    assert found.verdicts == {"test_part_alone": "clean", "test_part_beside_an_array": "leaked"}
    assert found.finding("test_part_beside_an_array")["bytes_per_run"] == 100


def test_each_device_of_a_sharded_array_is_named(run: Runner, pytester: pytest.Pytester) -> None:
    found = run_with(run, pytester, "KEPT = []\n\ndef test_keeps():\n    KEPT.append(Buffer(2048, 'toy:0,1'))\n")
    finding = found.finding("test_keeps")
    assert (finding["device"], finding["bytes"]) == ("toy:0,1", 2048)
    assert finding["evidence"] == ["on 2 devices: toy:0 1.0 KiB, toy:1 1.0 KiB"]
