"""Hints on places that outlive a test: globals, class attributes, registries. Asked after all other hints."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.hints.pattern import Pattern
from pytest_gpuleak.explain.hints.trail import code

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail

_TEARDOWN: Final = {
    "setUp": "tearDown",
    "asyncSetUp": "asyncTearDown",
    "setUpClass": "tearDownClass",
    "setUpModule": "tearDownModule",
    "setup_method": "teardown_method",
    "setup_class": "teardown_class",
    "setup_function": "teardown_function",
    "setup_module": "teardown_module",
}
"""Teardown functions by their setup functions, in unittest's and pytest's names."""

_LIBRARIES: Final = frozenset(
    {"torch", "torchvision", "torchaudio", "numpy", "jax", "tensorflow", "keras", "cupy", "_pytest"}
)
"""Packages, beside the standard library, whose globals no user edits."""


_NATIVE_REGISTRY: Final = re.compile(r" \(inside (?P<type>[\w.]*Registry)\)")
"""A registry of classes in an extension module, such as JAX's of pytree nodes, from which nothing is taken out."""


def _is_users_place(trail: Trail, length: int | None = None) -> bool:
    """Tell whether the user edits the root, and the first `length` steps are attributes and items."""
    package = trail.root.partition(".")[0]
    if trail.kind not in ("module", "class") or package in _LIBRARIES or _is_of_python(trail):
        return False
    return trail.is_plain_until(len(trail.steps) if length is None else length)


def _is_of_python(trail: Trail) -> bool:
    return trail.root.partition(".")[0] in sys.stdlib_module_names


def _is_left_in_users_place(trail: Trail, _: int) -> bool:
    return not trail.growing and _is_users_place(trail)


def registered_class(trail: Trail) -> str | None:
    """Recognise a class defined in a function that a registry of classes keeps."""
    for index, step in enumerate(trail.steps):
        if not (trail.named and step.type.startswith("class ") and "<locals>" in step.type):
            continue
        name = code(step.type.removeprefix("class ").rpartition(".")[2])
        if trail.is_item(index - 1):
            return (
                f"The class {name}, defined in a function, stays registered in {trail.container_of(index)}: define "
                "it once in a module, or take it out of the registry in teardown."
            )
        native = _NATIVE_REGISTRY.fullmatch(trail.edge(index - 1))
        if native is not None:
            return (
                f"The class {name}, defined in a function, stays registered in a {code(native['type'])}: define it once in "
                "a module."
            )
    return None


def made_in_setup(trail: Trail) -> str | None:
    """Recognise what an xunit-style setup created and its teardown did not remove."""
    setup = "" if trail.origin is None else trail.origin.function.rpartition(".")[2]
    if setup not in _TEARDOWN or not _is_users_place(trail):
        return None
    return f"{trail.owner(0)} still keeps what {code(setup)} made: let {code(_TEARDOWN[setup])} take it out again."


def growing_container(trail: Trail) -> str | None:
    """Recognise a list, dict, set or deque below a global or class attribute to which each run adds, or such an array."""
    if trail.growing and not trail.steps and _is_users_place(trail):
        return (
            f"Each run puts a larger array into {trail.owner(0)} (`torch.cat`, `numpy.append`): reset it in teardown, or keep "
            "no more of the older one than is needed."
        )
    index = trail.container()
    if not trail.growing or index is None:
        return None
    owner = trail.owner(index)
    if trail.kind == "module" and _is_of_python(trail) and trail.is_plain_until(index + 1) and "._" not in owner:
        return (
            f"Each run adds to {owner}, which stays until Python ends: take out in teardown what was put there "
            "(`remove()`, `removeHandler()`)."
        )
    if not _is_users_place(trail, index + 1):
        return None
    if trail.has_graph:
        return (
            f"Each run adds to {trail.owner(index)}, and what it adds keeps its autograd graph: store what `.item()` or "
            "`.detach()` returns, or empty it in teardown."
        )
    return (
        f"Each run adds to {trail.owner(index)} and nothing takes it out: empty it in teardown (after the `yield` of a "
        "fixture), or store plain values."
    )


def growing_chain(trail: Trail) -> str | None:
    """Recognise objects of one class, or tuples, that each refer to the one before: each run adds a link."""
    index = trail.grows_at
    if (
        index is not None
        and trail.type(index) == trail.type(index + 1) == "tuple"
        and _is_users_place(trail, index + 1)
    ):
        first = next(at for at in range(index + 1) if all(trail.type(link) == "tuple" for link in range(at, index + 1)))
        return (
            f"Each run puts the tuple in {trail.owner(first)} into a new one, which keeps it by {code(trail.edge(index))}: "
            "reset it in teardown, or keep no more of the older one than is needed."
        )
    index = _growing_attribute(trail)
    if index is None or trail.type(index) != trail.type(index + 1):
        return None
    return (
        f"Each run adds an object to the chain behind {trail.owner(index)}, and each keeps the one before by "
        f"{code(trail.edge(index))}: cut that reference when the older one is no longer needed, or reset the first in teardown."
    )


def growing_attributes(trail: Trail) -> str | None:
    """Recognise an object that each run gives a further attribute, such as a module's buffer under a new name."""
    index = _growing_attribute(trail)
    if index is None:
        return None
    return (
        f"Each run gives {trail.owner(index)} an attribute more, here {code(trail.edge(index))}: delete it in teardown, "
        "or keep such values in one place that is emptied."
    )


class_attribute: Final = Pattern(
    "The class attribute {owner} stays as long as its class: take out in teardown what was put there "
    "(in `tearDownClass` or `teardown_class` for a class of tests).",
    kinds=("class",),
    holds=_is_left_in_users_place,
)
"""A class attribute that was set and not deleted."""


module_global: Final = Pattern(
    "The global {owner} keeps it and nothing takes it out: do so in teardown (after the `yield` of a fixture), or mark "
    "the test with `allow_gpu_leak` if it is meant to stay.",
    kinds=("module",),
    holds=_is_left_in_users_place,
)
"""A global that was set, or filled, and stays."""


def _growing_attribute(trail: Trail) -> int | None:
    index = trail.grows_at
    if index is None or not trail.edge(index).startswith("."):
        return None
    return index if _is_users_place(trail, index + 1) else None
