"""Restore TensorFlow's seeds and Keras's counters of names after a re-run."""

from __future__ import annotations

import contextlib
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.tensorflow.lookup import eager_context, loaded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.adapters.protocol import Restore

_GENERATOR = "tensorflow.python.ops.stateful_random_ops"
_KERAS_STATE = "keras.src.backend.common.global_state"
_TRACKER = "GLOBAL_STATE_TRACKER"
_NAMES = "object_name_uids"
_KERAS_2 = ("keras.src.backend", "tf_keras.src.backend")
_NAMES_BY_GRAPH = "PER_GRAPH_OBJECT_NAME_UIDS"
"""Keras 2's counters of names, weakly by graph."""

_SEEDS = "global_seed_generator"


def keep_states() -> list[Restore]:
    """Note the seeds of operations, the state of the global generators, and Keras's counters of names."""
    restores: list[Restore] = []
    generators: tuple[Callable[[], Any], ...] = (
        lambda: vars(loaded_names(_GENERATOR)["global_generator"])["_state_var"],  # if a test has made one
        lambda: _keras_state()[_SEEDS].state,
    )
    variables: Iterator[Callable[[], Restore | None]] = (partial(_keep_variable, find) for find in generators)
    for keep in (_keep_seeds, *variables, _keep_names, _keep_names_by_graph):
        with contextlib.suppress(Exception):  # another version's state
            restore = keep()
            if restore is not None:
                restores.append(restore)
    return restores


def _keep_seeds() -> Restore | None:
    context: Any = eager_context()
    if context is None:
        return None
    seed, generator = context._seed, context._rng
    state = generator.getstate() if generator is not None else None

    def restore() -> None:
        context._seed, context._rng = seed, generator
        if generator is not None:
            generator.setstate(state)

    return restore


def _keep_variable(find: Callable[[], Any]) -> Restore | None:
    variable = find()
    value = variable.numpy()
    del variable

    def restore() -> None:
        find().assign(value)

    return restore


def _keep_names() -> Restore | None:
    """Note how many layers of each kind Keras has named: a later test's ``dense_1`` must not become ``dense_2``."""
    names = _keras_state().get(_NAMES)
    counted = None if names is None else dict(names)

    def restore() -> None:
        current = _keras_state().get(_NAMES)
        if current is not None:
            current.clear()
            current.update(counted or {})

    return restore


def _keep_names_by_graph() -> Restore | None:
    tables = [table for module in _KERAS_2 if (table := loaded_names(module).get(_NAMES_BY_GRAPH)) is not None]
    counted = [(weakref.ref(graph), dict(names)) for table in tables for graph, names in list(table.items())]
    if not tables:
        return None

    def restore() -> None:
        before = {id(graph): names for reference, names in counted if (graph := reference()) is not None}
        for table in tables:
            for graph, names in list(table.items()):
                names.clear()
                names.update(before.get(id(graph), {}))

    return restore


def _keras_state() -> dict[str, Any]:
    tracker = loaded_names(_KERAS_STATE).get(_TRACKER)
    return {} if tracker is None else vars(tracker)
