"""Codes of caches. Their inspectors stand in `explain.hints.caches`."""

from __future__ import annotations

from typing import Final

from pytest_gpuleak.model.codes.entry import Code, Sighting

CACHES: Final = (
    Code(
        "GL101",
        "cached method keeps self",
        "`functools.lru_cache` or `functools.cache` on a method.",
        """
          import functools

          import torch


        + @functools.lru_cache(maxsize=None)
        + def positions(length):
        +     return range(length)
        +
        +
          class Encoder:
              def __init__(self):
                  self.weight = torch.ones(64, 64)

        -     @functools.lru_cache(maxsize=None)
              def positions(self, length):
        -         return range(length)
        +         return positions(length)


          def test_positions():
              assert len(Encoder().positions(3)) == 3
        """,
        """
        The cache belongs to the class, and its keys are the calls' arguments. `self` is one of them: each instance that
        the method was ever called on stays, with its weights, as long as the class.
        """,
        """
        Cache a function of plain values, keep the cache on the instance, or call the method's `cache_clear()` in
        teardown.
        """,
        (
            Sighting(
                "transformers 5.8.1",
                "https://github.com/huggingface/transformers/issues/45412",
                "Methods of RT-DETR and some twenty other models were cached with the model itself as part of the key.",
            ),
            Sighting(
                "botorch 0.8.1",
                "https://github.com/meta-pytorch/botorch/pull/1650",
                "Each posterior of a fully Bayesian model was a key of an lru_cache on its own methods.",
            ),
        ),
    ),
    Code(
        "GL102",
        "cached function keeps its arguments",
        "A cached function that is called with tensors, or with objects that have some.",
        """
          import functools

          import torch


          @functools.lru_cache(maxsize=None)
        - def norm(tensor):
        -     return tensor.norm().item()
        + def norm_of_ones(rows, columns):
        +     return (rows * columns) ** 0.5


          def test_norm():
        -     assert norm(torch.ones(64, 64)) == 64
        +     assert norm_of_ones(*torch.ones(64, 64).shape) == 64
        """,
        """
        The arguments are the cache's keys and stay as long as their entries. A tensor is equal to itself alone, so that
        each call adds an entry and none is ever found again.
        """,
        """
        Cache by what the function needs of its arguments (shape, dtype, device, a name), do not cache, or call
        `cache_clear()` in teardown.
        """,
        (
            Sighting(
                "torchtune 0.1.1",
                "https://github.com/meta-pytorch/torchtune/issues/904",
                "A cached function had each model that it was called with as a key, and the parameters as the value.",
            ),
        ),
    ),
    Code(
        "GL103",
        "cached function keeps its results",
        "A cached function that returns tensors.",
        """
          import functools

        + import pytest
          import torch


          @functools.lru_cache(maxsize=None)
          def mask(size):
              return torch.ones(size, size)


        + @pytest.fixture(autouse=True)
        + def without_masks():
        +     yield
        +     mask.cache_clear()
        +
        +
          def test_mask():
              assert mask(1024)[0, 0] == 1
        """,
        """
        The cache keeps each result for the next call with the same arguments, until Python ends. With arguments that
        differ from call to call it grows; without, it stays at the size of the arguments that occur.
        """,
        """
        Call `cache_clear()` in teardown. Bound a cache that grows (`maxsize`). Where it is meant to stay, mark the test
        with `@pytest.mark.gpu_leak(retained_mb=...)`.
        """,
        (
            Sighting(
                "transformers 5.8.1",
                "https://github.com/huggingface/transformers/issues/45412",
                "Results of `RTDetrV2SinePositionEmbedding.forward` stayed in the cache of its decorator.",
            ),
        ),
    ),
    Code(
        "GL104",
        "cached property on an object that stays",
        "A `functools.cached_property` that returns a tensor, of an object that outlives the test.",
        """
          import functools

          import torch

          ACTIVE = {}


          class Encoder:
              @functools.cached_property
              def table(self):
                  return torch.ones(1024, 1024)


          def test_table():
              ACTIVE["encoder"] = Encoder()
              assert ACTIVE["encoder"].table[0, 0] == 1
        +     del ACTIVE["encoder"].table
        """,
        "The value is stored as an attribute of the object and stays as long as the object does.",
        "Delete the attribute in teardown (`del encoder.table`), or let the object go.",
    ),
    Code(
        "GL105",
        "entry of a weak dictionary whose key stays",
        "A `weakref.WeakKeyDictionary` whose value refers to its own key, or whose key lives on.",
        """
          import weakref

          import torch

          STATE = weakref.WeakKeyDictionary()


          class Agent:
              pass


          def test_state():
              agent = Agent()
        -     STATE[agent] = {"agent": agent, "loss": torch.ones(64, 64)}
        +     STATE[agent] = {"agent": weakref.ref(agent), "loss": torch.ones(64, 64)}
        """,
        """
        The dictionary refers to its keys weakly and to its values strongly. A value that refers to its key keeps it, and
        the key keeps the entry: neither ever goes.
        """,
        """
        Let the value refer to the key by `weakref.ref`, or keep plain values. Where the key is kept elsewhere, let go of
        it there, or delete the entry in teardown.
        """,
    ),
    Code(
        "GL106",
        "torch.compile keeps it with compiled code",
        "A function or module compiled by `torch.compile`, with a backend that keeps tensors beside the code it makes.",
        """
        + import pytest
          import torch


          def backend(graph, inputs):
              table = torch.ones(1024, 1024)
              return lambda batch: graph.forward(batch @ table)


        + @pytest.fixture(autouse=True)
        + def without_compiled_code():
        +     yield
        +     torch.compiler.reset()
        +
        +
          def test_compiled():
              @torch.compile(backend=backend)
              def double(batch):
                  return batch * 2

              double(torch.ones(2, 1024))
        """,
        """
        Compiled code stays in the compiler's caches, and as `__compiled_fn_...` among the globals of the module that it
        was compiled for, until the caches are reset.
        """,
        "Call `torch.compiler.reset()` in teardown (`torch._dynamo.reset()` before torch 2.1).",
    ),
)
