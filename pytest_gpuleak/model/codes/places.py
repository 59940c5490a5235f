"""Codes of places that outlive a test, where nothing more special is known. Their inspectors: `explain.hints.places`."""

from __future__ import annotations

from typing import Final

from pytest_gpuleak.model.codes.entry import Code, Sighting

PLACES: Final = (
    Code(
        "GL701",
        "container that each run adds to",
        "A list, dict, set or deque of a module or class, to which tests add.",
        """
        + import pytest
          import torch

          HISTORY = []


        + @pytest.fixture(autouse=True)
        + def without_history():
        +     yield
        +     HISTORY.clear()
        +
        +
          def test_step():
              HISTORY.append(torch.ones(64, 64))
        """,
        "A module and a class live as long as Python runs, and so does what their containers hold.",
        "Empty it in teardown (after the `yield` of a fixture), or store plain values.",
        (
            Sighting(
                "snntorch 0.9.1",
                "https://github.com/jeshraghian/snntorch/issues/328",
                "Every spiking neuron was appended to a list of its class, with its state and the state's graph.",
            ),
            Sighting(
                "accelerate 1.3.0",
                "https://github.com/huggingface/accelerate/issues/2234",
                "A data loader not iterated to its end stayed in the shared gradient state, and its data set with it.",
            ),
            Sighting(
                "opacus 0.13.0",
                "https://github.com/meta-pytorch/opacus/issues/176",
                "A model in training mode kept the activations of every forward pass made without gradients.",
            ),
        ),
    ),
    Code(
        "GL702",
        "class attribute that stays",
        "`Model.cache = ...`, on the class and not on an instance.",
        """
          import torch


          class Model:
        -     table = None
        +     def __init__(self):
        +         self.table = torch.ones(1024, 1024)


          def test_table():
        -     Model.table = torch.ones(1024, 1024)
        +     assert Model().table[0, 0] == 1
        """,
        "A class lives as long as Python runs, and so do its attributes.",
        "Take out in teardown what was put there, or make it an attribute of the instance.",
    ),
    Code(
        "GL703",
        "global that stays",
        "A module's global that a test sets or fills once.",
        """
        + import pytest
          import torch

          STATE = {}


        + @pytest.fixture(autouse=True)
        + def without_state():
        +     yield
        +     STATE.clear()
        +
        +
          def test_state():
              STATE["weight"] = torch.ones(1024, 1024)
        """,
        "A module lives as long as Python runs, and so do its globals.",
        """
        Take it out in teardown (after the `yield` of a fixture). Where it is meant to stay, mark the test with
        `@pytest.mark.allow_gpu_leak(reason="...")`.
        """,
        (
            Sighting(
                "torchinfo 1.8.0",
                "https://github.com/TylerYep/torchinfo/issues/369",
                "The layers of the last summarised model of each class stayed in a dict of the module.",
            ),
        ),
    ),
    Code(
        "GL704",
        "local class that stays registered",
        "A class that a test defines, kept by a registry of classes (`__init_subclass__`, a decorator).",
        """
          import torch


          class Model:
              known = []

              def __init_subclass__(cls):
                  Model.known.append(cls)


        + class Small(Model):
        +     pass
        +
        +
          def test_subclass():
        -     class Small(Model):
        -         weight = torch.ones(64, 64)
        +     Small().weight = torch.ones(64, 64)
        """,
        "Each run of the test defines a class of its own, and the registry keeps each of them with its attributes.",
        "Define the class once, in a module, or take it out of the registry in teardown.",
    ),
    Code(
        "GL706",
        "chain that each run makes longer",
        "An object of a module or class that refers to the one before, and that one to the one before it.",
        """
        + import pytest
          import torch


          class State:
              def __init__(self, value, previous):
                  self.value = value
                  self.previous = previous


          LAST = None


        + @pytest.fixture(autouse=True)
        + def without_states():
        +     global LAST
        +     yield
        +     LAST = None
        +
        +
          def test_step():
              global LAST
              LAST = State(torch.ones(64, 64), LAST)
        """,
        "Only the last object has a name, and it keeps all the others.",
        "Cut the reference to the one before when it is no longer needed, or reset the first object in teardown.",
    ),
    Code(
        "GL707",
        "attributes that each run adds",
        "An object that outlives the test and is given a further attribute in each run: `setattr`, `register_buffer`.",
        """
          import itertools

          import torch

          NUMBERS = itertools.count()
        - BANK = torch.nn.Module()


          def test_slot():
        -     BANK.register_buffer(f"slot_{next(NUMBERS)}", torch.ones(64, 64))
        +     bank = torch.nn.Module()
        +     bank.register_buffer(f"slot_{next(NUMBERS)}", torch.ones(64, 64))
        """,
        "An attribute stays as long as its object, and each new name is one more.",
        "Delete the attribute in teardown, or keep such values in one place that is emptied.",
    ),
)
