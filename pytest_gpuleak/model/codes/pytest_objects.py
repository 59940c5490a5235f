"""Codes of what pytest keeps. Their inspectors: `explain.hints.pytest_objects`, and `made_in_setup` of `places`."""

from __future__ import annotations

from typing import Final

from pytest_gpuleak.model.codes.entry import Code

PYTEST_OBJECTS: Final = (
    Code(
        "GL601",
        "attribute of a test class's instance",
        "`self.model = ...` in a test class that is no `unittest.TestCase`.",
        """
          import torch


          class TestNet:
              def test_forward(self):
        -         self.weight = torch.ones(1024, 1024)
        +         weight = torch.ones(1024, 1024)
        +         assert weight.shape == (1024, 1024)
        """,
        "pytest keeps the instance that a test ran on until the session ends, and with it what the test put on `self`.",
        "Use a local variable or a fixture, or delete the attribute in `teardown_method`.",
    ),
    Code(
        "GL602",
        "tensor given to record_property",
        '`record_property("loss", loss)` with a tensor.',
        """
          import torch


          def test_loss(record_property):
        -     record_property("loss", torch.ones(1024, 1024))
        +     record_property("loss", torch.ones(1024, 1024).mean().item())
        """,
        "The test's item and its reports keep each recorded value until the session ends.",
        "Record a plain value, such as `loss.item()`.",
    ),
    Code(
        "GL603",
        "attribute of pytest's config, session or nodes",
        "`request.config.model = ...`, or an item of a node's stash.",
        """
        + import pytest
          import torch


        - def test_config(request):
        -     request.config.weight = torch.ones(1024, 1024)
        + @pytest.fixture
        + def weight():
        +     return torch.ones(1024, 1024)
        +
        +
        + def test_config(weight):
        +     assert weight.shape == (1024, 1024)
        """,
        "These objects live until the session ends.",
        "Delete in teardown what the test put there, or use a fixture's value.",
    ),
    Code(
        "GL604",
        "left in the value of a wider fixture",
        "A test that adds to, or sets an attribute of, the value of a class, module or session fixture.",
        """
          import pytest
          import torch


        - @pytest.fixture(scope="module")
        + @pytest.fixture
          def shared():
        -     return {}
        +     return {"weight": torch.ones(1024, 1024)}


          def test_first(shared):
        -     shared["weight"] = torch.ones(1024, 1024)
        +     assert shared


          def test_second(shared):
              assert shared
        """,
        "The fixture's value outlives the test: what was put there stays until the fixture is torn down.",
        "Undo it in the test's teardown, or give the fixture function scope.",
    ),
    Code(
        "GL605",
        "made in setup and not removed in teardown",
        "A `setup_method`, `setUp` or the like that fills something, without its counterpart.",
        """
          import torch

          PREPARED = []


          class TestNet:
              def setup_method(self):
                  PREPARED.append(torch.ones(64, 64))

        +     def teardown_method(self):
        +         PREPARED.clear()
        +
              def test_forward(self):
                  assert PREPARED
        """,
        "A setup function runs for each test, and what it put into a global stays.",
        "Take it out again in the teardown function of the same name (`teardown_method`, `tearDown`).",
    ),
)
