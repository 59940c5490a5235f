"""Wrap frameworks in guards: an error of a framework costs what it touches, and is noted as a stage's."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.guarded import METHODS, GuardedArrays
from pytest_gpuleak.engine.stages import Stage
from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.protocol import ArrayFramework, Framework
    from pytest_gpuleak.engine.stages import Guard, Safeguards

_MAX_NAME = 60
_OPTIONAL = ("creation_lines", "parts")
_HARMLESS = ("storage", "storage_users", "trace_origins", *_OPTIONAL)
"""Methods that nothing is missed without: the array then counts as its storage's only user, or has no line."""


def guard_framework(framework: Framework, safeguards: Safeguards) -> Framework:
    """Return a framework of a conftest.py behind guards. Raises TypeError if its arrays lack a method."""
    from pytest_gpuleak.adapters.guarded_framework import GuardedFramework  # most runs have none

    name = _name_of(framework)

    def guard(member: str) -> Guard:
        stage = Stage(f"{member}() of the framework {name!r}", "tests are judged without it")
        return safeguards.guard(stage, code=code_of(inspect.getattr_static(framework, member, None)))

    return GuardedFramework(framework, name, guard, lambda arrays: guard_arrays(arrays, safeguards))


def guard_arrays(framework: ArrayFramework, safeguards: Safeguards) -> ArrayFramework:
    """Return a reader of a framework's arrays behind guards; unchanged if it has guards already."""
    if type(framework) is GuardedArrays:
        return framework
    name = _name_of(framework)
    stages = {
        method: Stage(
            f"{method}() of the arrays {name!r}",
            "arrays that it cannot tell of are not judged",
            method not in _HARMLESS,
        )
        for method in (*METHODS, *_OPTIONAL, "hold(...).alive")
    }
    codes = {method: code_of(getattr(framework, method, None)) for method in METHODS}
    return GuardedArrays(framework, name, lambda method: safeguards.guard(stages[method], code=codes.get(method)))


def _name_of(framework: object) -> str:
    given = getattr(framework, "name", None)
    return clean_text(given if type(given) is str else type(framework).__name__, _MAX_NAME)


def code_of(function: object) -> types.CodeType | None:
    """Return the code of a plain function or method, decorated or not; None for any other callable."""
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    return code if type(code) is types.CodeType else None
