"""The base of the objects that are registered with pytest."""

from __future__ import annotations


class Hooks:
    """An object with hooks, which names nothing but them.

    For each name that an object has, pluggy asks whether it is a hook, and pytest whether it is a fixture
    (`FixtureManager.parsefactories`, _pytest/fixtures.py): for the forty of an ordinary object a millisecond each run.
    """

    def __dir__(self) -> list[str]:
        return [name for name in dir(type(self)) if name.startswith("pytest_")]
