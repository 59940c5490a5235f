"""Codes of what torch itself keeps. Their inspectors stand in `explain.hints.values` and `explain.hints.hooks`."""

from __future__ import annotations

from typing import Final

from pytest_gpuleak.model.codes.entry import Code, Sighting

TENSORS: Final = (
    Code(
        "GL201",
        "result kept with its autograd graph",
        "A loss, score or output that is stored as a tensor which still has its `grad_fn`.",
        """
          import torch

          LOSSES = []


          def test_loss():
              weight = torch.ones(64, 64, requires_grad=True)
        -     LOSSES.append((weight * 2).exp().sum())
        +     LOSSES.append((weight * 2).exp().sum().item())
        """,
        """
        A result refers to the graph that computed it, and the graph to every tensor that was saved for the backward
        pass, the weights included. A loss of 4 bytes may so keep gigabytes.
        """,
        "Store `loss.item()`, or `loss.detach()` where a tensor is needed.",
    ),
    Code(
        "GL202",
        "gradient left on a parameter",
        "A backward pass through a module that outlives the test, with no `zero_grad()` after it.",
        """
          import torch

          MODEL = torch.nn.Linear(1024, 1024)


          def test_backward():
              MODEL(torch.ones(2, 1024)).sum().backward()
        +     MODEL.zero_grad(set_to_none=True)
        """,
        """
        Each parameter keeps its gradient, which is as large as the parameter, until it is set to None or the parameter
        dies. One made with `create_graph=True` keeps its graph as well.
        """,
        "Call `zero_grad(set_to_none=True)` on the module or optimizer in teardown, or make a module for each test.",
    ),
    Code(
        "GL203",
        "optimizer keeps its state",
        "A step of an optimizer that outlives the test.",
        """
          import torch

          MODEL = torch.nn.Linear(1024, 1024)
        - OPTIMIZER = torch.optim.Adam(MODEL.parameters())


          def test_step():
        +     optimizer = torch.optim.Adam(MODEL.parameters())
              MODEL(torch.ones(2, 1024)).sum().backward()
        -     OPTIMIZER.step()
        -     OPTIMIZER.zero_grad()
        +     optimizer.step()
        +     optimizer.zero_grad()
        """,
        """
        From its first step on an optimizer keeps its moments for each parameter: with Adam, twice the size of the
        parameters.
        """,
        "Make an optimizer for each test, or call its `state.clear()` in teardown.",
    ),
    Code(
        "GL204",
        "view keeps the whole storage",
        "A slice of a tensor is stored, and the tensor is not.",
        """
          import torch

          LAST = {}


          def test_row():
              with torch.inference_mode():
        -         LAST["row"] = torch.ones(1024, 1024)[0]
        +         LAST["row"] = torch.ones(1024, 1024)[0].clone()
        """,
        "A view shares the storage of the tensor that it was taken from: as long as it lives, all of the storage does.",
        "Store a copy of the part that is needed: `.clone()`.",
    ),
    Code(
        "GL205",
        "hook never removed",
        "A hook on a module, tensor or optimizer that outlives the test.",
        """
          import torch

          MODEL = torch.nn.Linear(8, 8)


          def test_features():
              features = []
        -     MODEL.register_forward_hook(lambda module, inputs, output: features.append(output.detach()))
        +     handle = MODEL.register_forward_hook(lambda module, inputs, output: features.append(output.detach()))
              MODEL(torch.ones(2, 8))
        +     handle.remove()
              assert features
        """,
        """
        The module keeps the hook, and the hook what it refers to. It also runs in every later test that uses the module.
        """,
        "Keep the handle that registering returned, and call `handle.remove()` when done or in teardown.",
        (
            Sighting(
                "bdpy 0.22.1",
                "https://github.com/KamitaniLab/bdpy/issues/72",
                "A feature extractor left its forward hooks, with the features, on the encoder that it was given.",
            ),
        ),
    ),
    Code(
        "GL206",
        "cycle through an autograd graph",
        "A tensor, hook or custom autograd Function that refers to a result of its own graph.",
        """
          import torch


          def test_loss():
              weight = torch.ones(64, 64, requires_grad=True)
        -     weight.loss = (weight**2).sum()
        +     weight.loss = (weight**2).sum().item()
        """,
        """
        One side of the circle lies in C++, in the graph, where no garbage collector looks: it is never freed
        (https://github.com/pytorch/pytorch/issues/7343).
        """,
        """
        Store `.item()` or `.detach()` of a result; call `handle.remove()` for a hook, or let it refer to its owner by
        `weakref.ref`; save a Function's tensors with `ctx.save_for_backward()`; set `.grad = None` after
        `create_graph=True`.
        """,
        (
            Sighting(
                "gpytorch 1.15.2",
                "https://github.com/cornellius-gp/gpytorch/issues/2631",
                "The caches of an exact GP's posterior, when not detached, held the prediction strategy that holds them.",
            ),
            Sighting(
                "higher 0.2.1",
                "https://github.com/facebookresearch/higher/issues/75",
                "A functional model with backward hooks outlived its inner loop.",
            ),
            Sighting(
                "pyro-ppl 1.8.1",
                "https://github.com/pyro-ppl/pyro/issues/3068",
                "A tensor's attribute held a view of the tensor, and the view the tensor as its base.",
            ),
        ),
    ),
)
