"""What suspended greenlets hold in their frames."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest

from pytest_gpuleak.explain.explain import explain

greenlet: Any = pytest.importorskip("greenlet")

pytestmark = pytest.mark.usefixtures("small_heap")


class Thing:
    """What is held."""


def outer(thing: Thing) -> None:
    inner([thing])


def inner(things: list[Thing]) -> None:
    greenlet.getcurrent().parent.switch(things)


def test_locals_of_each_frame_are_named_and_nothing_is_kept(app: Any) -> None:
    app.WORKER = greenlet.greenlet(outer)
    things = app.WORKER.switch(Thing())
    found = explain([things], ignore={id(sys._getframe())})[0].holder
    assert (found.kind, found.text) == ("module", "leaky_app.WORKER.gr_frame.f_locals['things']")
    box = [things[0]]
    things.clear()
    found = explain(box, ignore={id(sys._getframe()), id(things)})[0].holder
    assert found.text == "leaky_app.WORKER.gr_frame.f_back.f_locals['thing']"
    gone = weakref.ref(box[0])
    app.WORKER.switch()
    box.clear()
    gc.collect()
    assert app.WORKER.dead
    assert gone() is None
