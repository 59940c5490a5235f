"""Codes of the standard library's objects that keep what they are given. Their inspectors: `explain.hints.runtime`."""

from __future__ import annotations

from typing import Final

from pytest_gpuleak.model.codes.entry import Code, Sighting

RECORDERS: Final = (
    Code(
        "GL501",
        "mock keeps the arguments of its calls",
        "A `Mock` that outlives the test and is called with tensors.",
        """
          from unittest import mock

          import torch

        - CLIENT = mock.Mock()
        -

          def test_send():
        -     CLIENT.send(torch.ones(64, 64))
        +     client = mock.Mock()
        +     client.send(torch.ones(64, 64))
        """,
        "A mock records each call with its arguments, so that a test can ask for them.",
        "Make a new mock for each test, or call its `reset_mock()` in teardown.",
    ),
    Code(
        "GL502",
        "log record keeps what was logged",
        'A handler that stores records, and a call such as `logger.warning("loss %s", loss)`.',
        """
          import logging.handlers

          import torch

          HANDLER = logging.handlers.MemoryHandler(10_000)
          LOGGER = logging.getLogger("training")
          LOGGER.addHandler(HANDLER)


          def test_log():
        -     LOGGER.warning("loss is %s", torch.ones(64, 64))
        +     LOGGER.warning("loss is %s", torch.ones(64, 64).sum().item())
        """,
        "A record keeps its arguments, or its exception: text is made of them only when the record is written.",
        "Log plain values (`loss.item()`, a shape, `str(error)`), or empty the handler in teardown.",
    ),
    Code(
        "GL503",
        "stored exception keeps its traceback",
        "An exception, a traceback or what `pytest.raises` gave, in a list or attribute that stays.",
        """
          import torch

          ERRORS = []


          def step():
              batch = torch.ones(64, 64)
              raise ValueError(f"cannot use {batch.shape}")


          def test_error():
              try:
                  step()
              except ValueError as error:
        -         ERRORS.append(error)
        +         ERRORS.append(str(error))
        """,
        "An exception refers to its traceback, the traceback to each frame it passed, and a frame to its locals.",
        "Keep `str(error)`, `error.with_traceback(None)` or `traceback.format_exc()`.",
    ),
    Code(
        "GL504",
        "stored exception with a tensor as argument",
        "`raise ValueError(tensor)`, and the exception is stored.",
        """
          import torch

          ERRORS = []


          def test_refusal():
        -     ERRORS.append(ValueError("cannot use", torch.ones(64, 64)))
        +     ERRORS.append(ValueError("cannot use", tuple(torch.ones(64, 64).shape)))
        """,
        "An exception keeps the arguments that it was made with.",
        "Make it with plain values, such as a shape, or keep `str(error)`.",
    ),
    Code(
        "GL505",
        "context variable not reset",
        "`variable.set(...)` without `variable.reset(token)`.",
        """
          import contextvars

          import torch

          BATCH = contextvars.ContextVar("batch")


          def test_context():
        -     BATCH.set(torch.ones(1024, 1024))
        +     token = BATCH.set(torch.ones(1024, 1024))
        +     BATCH.reset(token)
        """,
        "Tests run in one context: a value that was set stays until another one takes its place.",
        "Keep the token that `set()` returns, and call `reset(token)` in teardown.",
    ),
    Code(
        "GL506",
        "finaliser keeps its function and arguments",
        "`weakref.finalize(self, self.close)`, or a tensor among its arguments.",
        """
          import weakref

          import torch


          class Pool:
              def __init__(self):
                  self.buffer = torch.ones(64, 64)
        -         weakref.finalize(self, self.close)
        +         weakref.finalize(self, Pool.close)

        -     def close(self):
        +     @staticmethod
        +     def close():
                  pass


          def test_pool():
              Pool()
        """,
        """
        A finaliser keeps its function and arguments until its object dies. Where these refer to the object, as a bound
        method does, the object never dies.
        """,
        "Give it a static method or a function, and plain values; or call its `detach()`.",
    ),
    Code(
        "GL507",
        "atexit keeps the function",
        "`atexit.register()` of a bound method, or of a function that closes over a tensor.",
        """
          import atexit

          import torch


          def test_exit():
              batch = torch.ones(64, 64)
        -     atexit.register(lambda: batch.shape)
        +     callback = lambda: batch.shape
        +     atexit.register(callback)
        +     atexit.unregister(callback)
        """,
        "What was registered stays, with all that it refers to, until Python ends.",
        "Give it to `atexit.unregister()` in teardown, or register a function of plain values.",
        (
            Sighting(
                "mosaicml 0.11.1 (composer)",
                "https://github.com/mosaicml/composer/pull/1769",
                "Each engine had its state, with model, optimizer and data, closed at exit, and stayed until then.",
            ),
        ),
    ),
    Code(
        "GL508",
        "patch started and never stopped",
        "`mock.patch(...).start()` without `stop()`.",
        """
          import types
          from unittest import mock

          import torch

          SETTINGS = types.SimpleNamespace(bias=None)


          def test_patched():
        -     mock.patch.object(SETTINGS, "bias", torch.ones(64, 64)).start()
        +     with mock.patch.object(SETTINGS, "bias", torch.ones(64, 64)):
        +         assert SETTINGS.bias is not None
        """,
        "A patch that is active keeps the new value and the one that it replaced.",
        "Patch by `with`, or call `stop()` in teardown (`addCleanup(patcher.stop)`).",
    ),
    Code(
        "GL509",
        "signal handler not restored",
        "`signal.signal()` with a function that refers to a tensor.",
        """
          import signal

          import torch


          def test_handler():
              batch = torch.ones(1024, 1024)
        -     signal.signal(signal.SIGTERM, lambda number, frame: batch.shape)
        +     before = signal.signal(signal.SIGTERM, lambda number, frame: batch.shape)
        +     signal.signal(signal.SIGTERM, before)
        """,
        "The process keeps a signal's handler until another one is set.",
        "Keep the handler that `signal.signal()` returned, and set it again in teardown.",
    ),
    Code(
        "GL510",
        "profile or trace function still set",
        "`sys.setprofile()` or `sys.settrace()` without a call that undoes it.",
        """
          import sys

          import torch


          def test_profile():
              sizes = torch.ones(1024, 1024)
              sys.setprofile(lambda frame, event, argument: sizes.shape)
        +     sys.setprofile(None)
        """,
        "The interpreter keeps the function, and calls it for every call of every later test.",
        "Call `sys.setprofile(None)` or `sys.settrace(None)` in teardown.",
    ),
)
