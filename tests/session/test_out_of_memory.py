"""Who holds the memory when it has run out."""

from __future__ import annotations

import errno
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.nvml.readings import NvmlReading, ProcessMemory
from pytest_gpuleak.engine.left_behind import OwnedBytes
from pytest_gpuleak.model.readings import HOST, ArrayReading
from pytest_gpuleak.session.features.out_of_memory import (
    DeviceFacts,
    HostFacts,
    OutOfMemory,
    Shortage,
    explain_out_of_memory,
    find_shortage,
    group_readings,
)

if TYPE_CHECKING:
    from tests.conftest import Runner

GIB = 2**30
MIB = 2**20

CUDA_TEXT = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of 79.15 GiB of which 4.00 MiB is "
    "free. Including non-PyTorch memory, this process has 60.20 GiB memory in use."
)


def made(name: str, module: str, *bases: type) -> type[BaseException]:
    """An error's class as another framework would define it."""
    return type(name, bases or (Exception,), {"__module__": module})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(
            made("OutOfMemoryError", "torch", RuntimeError)(CUDA_TEXT),
            Shortage("cuda:1", 20 * MIB, round(79.15 * GIB), 4 * MIB),
            id="torch",
        ),
        pytest.param(
            made("OutOfMemoryError", "torch.cuda", RuntimeError)("HIP out of memory. GPU 0"),
            Shortage("cuda:0"),
            id="rocm",
        ),
        pytest.param(
            RuntimeError("MPS backend out of memory (MPS allocated: 9 GB). Tried to allocate 500.00 MB on private pool."),
            Shortage(None, 500 * MIB),
            id="mps",
        ),
        pytest.param(RuntimeError("CUDA error: out of memory"), Shortage(None), id="cuda-error"),
        pytest.param(
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            Shortage(None),
            id="cublas",
        ),
        pytest.param(
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12"),
            Shortage(HOST, 4096),
            id="torch-cpu",
        ),
        pytest.param(MemoryError(), Shortage(HOST), id="memory-error"),
        pytest.param(OSError(errno.ENOMEM, "Cannot allocate memory"), Shortage(HOST), id="fork"),
        pytest.param(
            made("OutOfMemoryError", "cupy.cuda.memory", MemoryError)(
                "Out of memory allocating 1,024 bytes (allocated so far: 0 bytes)."
            ),
            Shortage(None),
            id="cupy",
        ),
        pytest.param(
            made("XlaRuntimeError", "jaxlib.xla_extension", RuntimeError)(
                "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4096 bytes."
            ),
            Shortage(None, 4096),
            id="jax",
        ),
        pytest.param(
            made("ResourceExhaustedError", "tensorflow.python.framework.errors_impl")(None, None, "OOM"),
            Shortage(None),
            id="tensorflow",
        ),
    ],
)  # fmt: skip
def test_out_of_memory_errors_are_recognised(error: BaseException, expected: Shortage) -> None:
    assert find_shortage(error) == expected


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shape mismatch"),
        ValueError("out of memory"),
        OSError(errno.ENOENT, "out of memory"),
        made("OutOfMemoryError", "app.errors")("out of memory"),
        AssertionError(MemoryError()),
    ],
)
def test_other_errors_are_not(error: BaseException) -> None:
    assert find_shortage(error) is None


def test_numpys_error_says_how_much_was_asked_for() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(MemoryError) as caught:
        numpy.empty(2**47)

    assert find_shortage(caught.value) == Shortage(HOST, 2**50)


def test_an_error_behind_the_one_raised_is_found() -> None:
    caused, within, suppressed = ValueError(), ValueError(), ValueError()
    caused.__cause__ = MemoryError()
    within.__context__ = caused
    suppressed.__context__ = MemoryError()
    suppressed.__suppress_context__ = True

    assert [find_shortage(error) for error in (caused, within, suppressed)] == [Shortage(HOST)] * 3


def test_an_error_in_a_group_is_found() -> None:
    if sys.version_info < (3, 11):
        group: Any = pytest.importorskip("exceptiongroup").ExceptionGroup
    else:
        group = ExceptionGroup  # noqa: F821 - not in Python 3.10

    assert find_shortage(group("two", [ValueError(), group("inner", [MemoryError()])])) == Shortage(HOST)


def test_a_chain_that_runs_in_a_circle_or_is_long_ends() -> None:
    first, second = ValueError(), ValueError()
    first.__context__, second.__context__ = second, first
    long = deep = ValueError()
    for _ in range(10_000):
        deep.__context__ = deep = ValueError()

    assert (find_shortage(first), find_shortage(long)) == (None, None)


def test_no_code_of_the_users_is_run_to_recognise_an_error() -> None:
    class HostileError(RuntimeError):
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

        def __str__(self) -> str:
            raise AssertionError("__str__")

        __repr__ = __eq__ = __hash__ = __str__  # type: ignore[assignment]

    assert find_shortage(HostileError("CUDA error: out of memory")) == Shortage(None)


def facts(**changes: Any) -> OutOfMemory:
    known: dict[str, Any] = {
        "shortage": Shortage("cuda:0", 20 * MIB),
        "devices": (
            DeviceFacts("cuda:0", 80 * GIB, round(0.9 * GIB), 58 * GIB, 60 * GIB, 2 * MIB),
            DeviceFacts("cuda:1", 80 * GIB, 80 * GIB, 0, 0),
        ),
        "earlier": (
            OwnedBytes("tests/test_a.py::test_x", "cuda:0", 40 * GIB, 3, ("app.CACHE[0]",)),
            OwnedBytes("fixture 'model' (module scope)", "cuda:0", GIB, 1),
            OwnedBytes("tests/test_a.py::test_on_the_host", "cpu", 7 * GIB, 1),
        ),
        "fixtures": (OwnedBytes("fixture 'big' (session scope)", "cuda:0", 2 * GIB, 2),),
        "own": (OwnedBytes("float32 [1024, 1024]", "cuda:0", 10 * GIB, 12),),
        "others": (OwnedBytes("uint8 [9]", "cuda:0", 4 * GIB, 1),),
        "nvml": {
            "cuda:0": NvmlReading(
                "GPU-1", "H100", 80 * GIB, 79 * GIB, round(60.2 * GIB),
                others=(ProcessMemory(4711, 18 * GIB, "python"), ProcessMemory(4712, None)),
            )
        },
    }  # fmt: skip
    return OutOfMemory(**{**known, **changes})


def test_the_section_says_who_holds_the_device() -> None:
    assert explain_out_of_memory(facts()) == [
        "cuda:0: 79.1 of 80.0 GiB in use; this process 60.2 GiB, of which tests that",
        "    ended hold 41.0 GiB",
        "  asked for: 20.0 MiB",
        "  allocator: 58.0 GiB allocated, 60.0 GiB reserved; 2.0 GiB cached and free, 2.0",
        "      MiB of it in one piece: enough, but in pieces too small (fragmentation)",
        "  outside torch's allocator: 204.8 MiB (context, libraries, raw allocations)",
        "  tests that ended: 41.0 GiB",
        "    40.0 GiB in 3 tensors: tests/test_a.py::test_x",
        "      held by app.CACHE[0]",
        "    1.0 GiB in 1 tensor: fixture 'model' (module scope)",
        "  fixtures still set up: 2.0 GiB",
        "    2.0 GiB in 2 tensors: fixture 'big' (session scope)",
        "  this test: 10.0 GiB",
        "    10.0 GiB in 12 tensors: float32 [1024, 1024]",
        "  other tensors (imports, failed tests): 4.0 GiB",
        "    4.0 GiB in 1 tensor: uint8 [9]",
        "  no tensor that Python sees: 1.0 GiB (gradients, graphs, workspaces)",
        "  other processes: 18.0 GiB",
        "    18.0 GiB: pid 4711 python",
        "    unknown: pid 4712",
    ]


def test_an_error_that_names_no_device_tells_of_all_and_one_without_counters_of_what_it_says_itself() -> None:
    every = explain_out_of_memory(facts(shortage=Shortage(None)))
    unread = explain_out_of_memory(OutOfMemory(Shortage("xpu:3", 2 * MIB, 16 * GIB, GIB)))
    nothing = explain_out_of_memory(OutOfMemory(Shortage(None)))

    assert [line.split(":")[1] for line in every if line.startswith("cuda")] == ["0", "1"]
    assert unread == ["xpu:3: 15.0 of 16.0 GiB in use", "  asked for: 2.0 MiB"]
    assert nothing == ["no device's memory could be read"]


def test_what_is_cached_in_pieces_large_enough_is_said_to_be_another_pools() -> None:
    device = DeviceFacts("cuda:0", 80 * GIB, GIB, 58 * GIB, 60 * GIB, 40 * MIB)

    text = " ".join(line.strip() for line in explain_out_of_memory(facts(devices=(device,))))

    assert "40.0 MiB of it in one piece: enough, but of another pool or stream" in text


def test_memory_that_is_short_for_want_of_bytes_is_not_called_fragmented() -> None:
    short = facts(shortage=Shortage("cuda:0", 3 * GIB))

    assert "fragmentation" not in "\n".join(explain_out_of_memory(short))


def test_the_host_has_lines_of_its_own() -> None:
    lines = explain_out_of_memory(
        facts(shortage=Shortage(HOST, GIB), devices=(), host=HostFacts(128 * GIB, 8 * GIB, 20 * GIB, 18 * GIB))
    )

    assert lines == [
        "host: 120.0 of 128.0 GiB in use; this process 20.0 GiB, of which tests that",
        "    ended hold 7.0 GiB",
        "  asked for: 1.0 GiB",
        "  heap: 18.0 GiB handed out by malloc",
        "  tests that ended: 7.0 GiB",
        "    7.0 GiB in 1 tensor: tests/test_a.py::test_on_the_host",
    ]


def test_long_and_hostile_texts_are_cut_cleaned_and_wrapped() -> None:
    many = tuple(
        OwnedBytes(f"test_{number}\x1b[31m" + "x" * 500, "cuda:0", number * MIB, 1, ("h" * 900,)) for number in range(9)
    )

    lines = explain_out_of_memory(facts(earlier=many))

    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)
    assert sum("in 1 tensor: test_" in line for line in lines) == 5
    assert "    6.0 MiB in 4 more" in lines


def test_tensors_are_grouped_by_type_and_shape() -> None:
    def reading(storage: int, size: int, device: str = "cpu") -> ArrayReading:
        return ArrayReading(storage, (size,), "uint8", device, size, storage, size)

    assert group_readings([reading(1, 10), reading(2, 10), reading(3, 15), reading(4, 10, "cuda:0")]) == [
        OwnedBytes("uint8 [10]", "cpu", 20, 2),
        OwnedBytes("uint8 [15]", "cpu", 15, 1),
        OwnedBytes("uint8 [10]", "cuda:0", 10, 1),
    ]


def test_a_test_that_runs_out_of_memory_tells_who_holds_it(run_wired: Runner) -> None:
    """One run: blame on earlier tests and fixtures, every phase, and the tests that are none of this business."""
    result = run_wired(
        """
        import pytest

        LEAKED = []

        @pytest.fixture(scope="module")
        def model():
            return Buffer(2**22)

        def test_leaks(model):
            LEAKED.append(Buffer(3 * 2**20))

        def test_call(model):
            own = [Buffer(5 * 2**20), Buffer(5 * 2**20)]
            raise MemoryError

        @pytest.fixture
        def broken():
            raise ValueError from MemoryError()

        def test_setup(broken):
            pass

        @pytest.fixture
        def ends_badly():
            yield
            raise MemoryError

        def test_teardown(ends_badly):
            pass

        def test_handled():
            try:
                raise MemoryError
            except MemoryError:
                pass

        @pytest.mark.xfail
        def test_xfail():
            raise MemoryError

        def test_other():
            raise ValueError
        """,
        "--gpu-leak-host=off",
    )

    result.result.assert_outcomes(passed=3, failed=2, errors=2, xfailed=1)
    text = result.result.stdout.str()
    assert text.count("Memory (who holds it)") == 3
    result.result.stdout.fnmatch_lines(
        [
            "*___ test_call ___*",
            "*- Memory (who holds it) -*",
            "host: * GiB in use; this process *",
            "  tests that ended: 9.0 MiB",
            "    9.0 MiB in 3 tensors: test_it.py::test_leaks",  # it was run again, to confirm and for its line
            "      held by test_it.LEAKED?0?",
            "  fixtures still set up: 4.0 MiB",
            "    4.0 MiB in 1 tensor: fixture 'model' (module scope, test_it.py)",
            "  this test: 10.0 MiB",
            "    10.0 MiB in 2 tensors: uint8 ?5242880?",
        ]
    )


def test_an_account_that_cannot_be_read_costs_one_warning_and_no_outcome(
    run_wired: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> object:
        raise MemoryError

    monkeypatch.setattr("pytest_gpuleak.engine.left_behind.LeftBehind.alive", fail)
    result = run_wired(
        """
        def test_one():
            raise MemoryError

        def test_two():
            raise MemoryError
        """
    )

    result.result.assert_outcomes(failed=2, warnings=1)
    result.result.stdout.fnmatch_lines(["*who holds the memory could not be told: MemoryError*"])


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_device_that_is_full_is_blamed_on_the_right_earlier_tests(run_wired: Runner) -> None:
    result = run_wired(
        """
        import gc, pytest, torch
        from tests.support import simgpu

        simgpu.install()
        simgpu.set_capacity("simgpu:0", 96 * 2**20)
        simgpu.set_other_use("simgpu:0", 4 * 2**20)
        KEPT = []

        @pytest.fixture(scope="module")
        def model():
            return torch.ones(2**20, device="simgpu:0")

        def test_clean(model):
            torch.ones(2**20, device="simgpu:0")

        def test_leaks(model):
            KEPT.append(torch.ones(6 * 2**20, device="simgpu:0"))

        def test_other_device():
            KEPT.append(torch.ones(2**20, device="simgpu:1"))

        def test_victim(model):
            own = [torch.ones(2**18, device="simgpu:0") for _ in range(2)]
            torch.ones(16 * 2**20, device="simgpu:0")

        def test_the_victims_memory_is_let_go():
            gc.collect()  # what pytest itself leaves of a traceback is a cycle
            assert torch.simgpu.memory_allocated("simgpu:0") == 28 * 2**20
        """,
        "--gpu-leak-confirm=0",
        "--gpu-leak-host=off",
        apart=True,
    )

    assert result.tests["test_victim"]["outcome"] == "failed"
    assert result.tests["test_the_victims_memory_is_let_go"]["outcome"] == "passed"
    result.result.stdout.fnmatch_lines(
        [
            "*- GPU memory (who holds it) -*",
            "simgpu:0: * of 96.0 MiB in use*",
            "  asked for: 64.0 MiB",
            "  tests that ended: 24.0 MiB",
            "    24.0 MiB in 1 tensor: test_it.py::test_leaks",
            "  fixtures still set up: 4.0 MiB",
            "    4.0 MiB in 1 tensor: fixture 'model' (module scope, test_it.py)",
            "  this test: 2.0 MiB",
            "    2.0 MiB in 2 tensors: float32 ?262144?",
        ]
    )
