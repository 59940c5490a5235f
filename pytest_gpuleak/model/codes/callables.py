"""Codes of stored functions. Their inspectors stand in `explain.hints.callables`."""

from __future__ import annotations

from typing import Final

from pytest_gpuleak.model.codes.entry import Code, Sighting

CALLABLES: Final = (
    Code(
        "GL301",
        "mutable default argument",
        "A list or dict as a default argument, to which calls add.",
        """
          import torch


        - def collect(tensor, into=[]):
        + def collect(tensor, into=None):
        +     into = [] if into is None else into
              into.append(tensor)
              return into


          def test_collect():
              assert collect(torch.ones(64, 64))
        """,
        "A default is made once, when the function is defined, and is one object for all calls.",
        "Make the default `None`, and a new container in the body.",
    ),
    Code(
        "GL302",
        "cache made by hand, in a closure",
        "A decorator that keeps results in a dict of its closure.",
        """
        + import pytest
          import torch


          def memoise(function):
              kept = {}

              def wrapper(size):
                  if size not in kept:
                      kept[size] = function(size)
                  return kept[size]

        +     wrapper.clear = kept.clear
              return wrapper


          @memoise
          def table(size):
              return torch.ones(size, size)


        + @pytest.fixture(autouse=True)
        + def without_tables():
        +     yield
        +     table.clear()
        +
        +
          def test_table():
              assert table(1024)[0, 0] == 1
        """,
        "The dict lives as long as the decorated function, and nothing outside the closure can empty it.",
        "Give it a way to be cleared and call that in teardown; or use `functools.lru_cache`, which has one.",
        (
            Sighting(
                "beartype 0.22.9",
                "https://github.com/beartype/beartype/issues/673",
                "Every function ever decorated was a key of a permanent memo, and a closure keeps what it closes over.",
            ),
        ),
    ),
    Code(
        "GL303",
        "stored function closes over it",
        "A lambda or an inner function that is added to a list of callbacks.",
        """
          import torch

          CALLBACKS = []


          def test_callback():
              batch = torch.ones(64, 64)
        -     CALLBACKS.append(lambda: batch)
        +     callback = lambda: batch
        +     CALLBACKS.append(callback)
        +     CALLBACKS.remove(callback)
        """,
        "A function keeps each variable of the enclosing function that it uses, as long as it is stored.",
        "Take the function out in teardown, or let it refer to plain values.",
    ),
    Code(
        "GL304",
        "stored bound method keeps its object",
        "`listeners.append(self.update)`, with nothing that takes it out.",
        """
        + import weakref
        +
          import torch

          LISTENERS = []


          class Encoder:
              def __init__(self):
                  self.weight = torch.ones(64, 64)

              def update(self):
                  pass


          def test_listener():
        -     LISTENERS.append(Encoder().update)
        +     LISTENERS.append(weakref.WeakMethod(Encoder().update))
        """,
        "A bound method refers to its object, and the object to all that it has.",
        "Take it out in teardown, or store a `weakref.WeakMethod`.",
    ),
    Code(
        "GL305",
        "stored partial keeps its arguments",
        "A `functools.partial` with a tensor among its arguments, in something that stays.",
        """
          import functools

          import torch

          JOBS = []


          def test_job():
              JOBS.append(functools.partial(print, torch.ones(64, 64)))
        +     JOBS.pop()()
        """,
        "A partial keeps the arguments that it was made with, as long as it is stored.",
        "Take it out in teardown, or give it plain values.",
    ),
)
