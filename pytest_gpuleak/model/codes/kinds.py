"""Codes of the kinds of findings, for findings that no pattern explains. `KIND_CODES` has each kind's."""

from __future__ import annotations

from typing import Final

from pytest_gpuleak.model.codes.entry import Code, Sighting

KINDS: Final = (
    Code(
        "GL001",
        "each run leaves more behind",
        "The test was run again and left tensors behind again (`growing`).",
        """
        + import pytest
          import torch

          SEEN = []


        + @pytest.fixture(autouse=True)
        + def empty():
        +     yield
        +     SEEN.clear()
        +
        +
          def test_step():
              SEEN.append(torch.ones(64, 64))
        """,
        """
        Something that outlives the test refers to what the test made, and nothing takes it out. A leak of any size fails:
        over a long run it adds up until a later test fails for want of memory.
        """,
        """
        Begin with the line `held by`: what stands there has to let go. Store numbers (`loss.item()`) or
        `tensor.detach().cpu()` in place of tensors, or empty the holder after the `yield` of a fixture.
        """,
        (
            Sighting(
                "botorch 0.8.5",
                "https://github.com/meta-pytorch/botorch/issues/1788",
                """A variational GP that chooses its inducing points left the kernel matrix and its graph behind, in a cycle
                within the autograd graph that no Python object holds.""",
            ),
        ),
    ),
    Code(
        "GL002",
        "memory that stays and does not grow",
        "The test was run again and added nothing to what its first run left (`retained`).",
        """
        + import pytest
          import torch

          TABLES = {}


          def table(size):
              if size not in TABLES:
                  TABLES[size] = torch.ones(size, size)
              return TABLES[size]


        + @pytest.fixture(autouse=True)
        + def without_tables():
        +     yield
        +     TABLES.clear()
        +
        +
          def test_lookup():
              assert table(1024)[0, 0] == 1
        """,
        """
        A cache was filled, or a state was left in something shared. It takes memory from every later test. From
        `--gpu-leak-retained-mb` up (1 MiB) it fails, below that it is a note.
        """,
        """
        Clear it in teardown. Where keeping it is intended, allow more of it with
        `@pytest.mark.gpu_leak(retained_mb=...)`, or say why with `@pytest.mark.allow_gpu_leak(reason="...")`.
        """,
        (
            Sighting(
                "torchinfo 1.8.0",
                "https://github.com/TylerYep/torchinfo/issues/369",
                "The layers of the last summarised model of each class were cached, whether or not that was asked for.",
            ),
        ),
    ),
    Code(
        "GL003",
        "memory that could not be confirmed",
        "The test left memory behind and could not be run again to the end (`unconfirmed`).",
        """
        - import pathlib
        -
          import torch

        - KEPT = {}

        -
        - def test_first_run_only():
        -     pathlib.Path("results").mkdir()
        -     KEPT["weight"] = torch.ones(1024, 1024)
        + def test_every_run(tmp_path):
        +     (tmp_path / "results").mkdir()
        +     kept = {"weight": torch.ones(1024, 1024)}
        +     assert kept
        """,
        """
        Whether it grows is not known: the test failed or was skipped the second time, it took longer than
        `--gpu-leak-confirm-limit`, or it is one rank of several. The line `because` says which. It is judged by its size,
        as memory that does not grow.
        """,
        """
        Let go of it in teardown, as for any leak. To know whether it grows, let the test stand a second run: write to
        `tmp_path`, and undo in teardown what the test changes.
        """,
    ),
    Code(
        "GL004",
        "memory in a reference cycle",
        "Only the garbage collector freed the tensors: they were part of a reference cycle (`cycle`).",
        """
        + import weakref
        +
          import torch


          class Block:
              def __init__(self):
                  self.weight = torch.ones(64, 64)
        -         self.first = self
        +         self.first = weakref.ref(self)


          def test_block():
              Block()
        """,
        """
        Objects that refer to each other in a circle stay until the collector runs, and it runs by the number of objects,
        not by their memory. On a GPU, memory may run out before. By default this is a note:
        `--gpu-leak-cycles=fail` makes it fail.
        """,
        "Break the circle: hold one side weakly (`weakref.ref`), or remove hooks and callbacks when done.",
        (
            Sighting(
                "jaxtyping 0.2.34",
                "https://github.com/patrick-kidger/jaxtyping/issues/258",
                "Each function that is checked was part of two cycles, and what it closes over waited for the collector.",
            ),
            Sighting(
                "tensordict 0.6.2",
                "https://github.com/pytorch/tensordict/issues/1187",
                "Each instance of a frozen tensor class was part of a cycle, and its tensors waited for the collector.",
            ),
        ),
    ),
    Code(
        "GL005",
        "device memory that no tensor explains",
        "A device's counters grow with each run, and no tensor accounts for it (`unattributed`).",
        """
          import ctypes

          RUNTIME = ctypes.CDLL("libcudart.so")


          def test_workspace():
              pointer = ctypes.c_void_p()
              assert RUNTIME.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(2**24)) == 0
        +     assert RUNTIME.cudaFree(pointer) == 0
        """,
        """
        The memory was allocated outside torch's tensors: by an extension, NCCL, another framework, a library's workspace
        or a captured graph. Nothing of Python's owns it, so nothing frees it.
        """,
        """
        Look at what the test calls outside the framework, and release its handles, streams and graphs. The lines
        `figures` have the growth run by run; `of it` names allocating lines where CUDA's allocator knows them.
        """,
    ),
    Code(
        "GL006",
        "host memory that grows",
        "The process holds more host memory after each run, and no tensor explains it (`host`).",
        """
        - CHUNKS = []
        -
        -
          def test_read():
        -     CHUNKS.append(bytearray(32 * 2**20))
        +     chunks = [bytearray(32 * 2**20)]
        +     assert chunks
        """,
        """
        Python objects, NumPy arrays or the buffers of an extension stay after the test. Growth over
        `--gpu-leak-host-mb` (10 MiB) fails; imports and caches that are filled once do not.
        """,
        "Look at the largest objects or allocating lines that the finding lists (`of it`), and drop them in teardown.",
    ),
    Code(
        "GL007",
        "a process left running",
        "The test started a process that still runs after its teardown (`process`).",
        """
          import subprocess
          import sys


          def test_server():
        -     subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"])
        +     with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"]) as server:
        +         server.terminate()
        """,
        "A process keeps its memory, on the host and on its devices, until it ends.",
        "Terminate and wait for it in teardown; close the pool or the data loader that started it.",
    ),
    Code(
        "GL008",
        "a peak over the budget",
        "The test's peak of device memory was over what `max_gpu_mb` allows (`budget`).",
        """
          import pytest
          import torch


          @pytest.mark.max_gpu_mb(8)
          def test_inference():
        -     torch.ones(16, 1024, 1024, device="cuda")
        +     for _ in range(16):
        +         torch.ones(1024, 1024, device="cuda")
        """,
        """
        The peak counts all memory of the device that was allocated at one moment of the test, beyond what was
        allocated before it.
        """,
        "Take less: smaller inputs, `torch.no_grad()`, fewer copies; or raise the budget where it is too tight.",
    ),
    Code(
        "GL009",
        "a program compiled in each run",
        "Each run of the test compiles or traces again, and what it compiled stays (`recompiled`).",
        """
          import jax

        - STEPS = []
        +
        + @jax.jit
        + def step(x):
        +     return x + 1


          def test_step():
        -     step = jax.jit(lambda x: x + 1)
        -     step(1.0)
        -     STEPS.append(step)
        +     assert step(1.0) == 2
        """,
        """
        A function that is made anew, or called with another Python value each time, is compiled again. It costs time in
        each call, and each program stays in memory. This is a note and fails no test.
        """,
        "Jit a function once, at module level, and pass what changes as an array.",
    ),
    Code(
        "GL010",
        "a tracer left behind",
        "A value of a function that is being traced outlives the trace (`tracer`).",
        """
          import jax


          class Model:
              last = None


          def test_step():
        -     def step(x):
        -         Model.last = x * 2
        -         return Model.last
        -
        -     jax.jit(step)(1.0)
        +     Model.last = float(jax.jit(lambda x: x * 2)(1.0))
        """,
        """
        While JAX traces a function, its values are tracers, which have no memory of their own but keep the trace. This is
        a note and fails no test.
        """,
        "Return the value from the traced function, and store the result.",
    ),
)
