"""Note the lines that create TensorFlow's tensors while a suspect is run again."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.tensorflow.lookup import TENSORS, eager_context, loaded_names
from pytest_gpuleak.adapters.tensorflow.reading import storage
from pytest_gpuleak.heap.threads import started_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.adapters.creation_lines import OriginTable
    from pytest_gpuleak.adapters.protocol import OriginLog

_EXECUTE = "tensorflow.python.eager.execute"
_CONSTANTS = "tensorflow.python.framework.constant_op"
_CONVERT = "convert_to_eager_tensor"


@contextlib.contextmanager
def trace_origins(is_user_file: Callable[[str], bool]) -> Iterator[OriginLog]:
    """Run the body while each eager operation, and each constant, notes what it makes, in this and new threads."""
    from pytest_gpuleak.adapters.creation_lines import OriginTable

    table = OriginTable(is_user_file)
    context = eager_context()
    execute = loaded_names(_EXECUTE)
    if context is None or "execute_with_callbacks" not in execute:
        yield table
        return
    noting = [True]

    def note(  # noqa: PLR0913 - TensorFlow calls it with these
        op_type: object, inputs: Any, attrs: object, outputs: Any, op_name: object = None, graph: object = None
    ) -> Any:
        del op_type, attrs, op_name
        if graph is None and noting:
            _note(table, inputs, outputs)
        # A checkpoint pops from the list that an operation of a graph returns: TensorFlow hands callbacks a tuple of the
        # results, and returns what they return.
        return [*outputs]

    with contextlib.ExitStack() as stack:
        stack.callback(noting.clear)  # a thread that still runs keeps its callback, which does nothing from here on
        stack.enter_context(_called_back(context, execute, note))
        stack.enter_context(started_threads(lambda: context.add_op_callback(note)))
        stack.enter_context(_noted_constants(table))
        yield table


@contextlib.contextmanager
def _called_back(context: Any, execute: dict[str, Any], note: Callable[..., Any]) -> Iterator[None]:
    """Call `note` for the operations of this thread, as `op_callbacks.add_op_callback` arranges it."""
    before = execute.get("execute")
    context.add_op_callback(note)
    execute["execute"] = execute["execute_with_callbacks"]
    try:
        yield
    finally:
        with contextlib.suppress(KeyError):  # the test has cleared all callbacks
            context.remove_op_callback(note)
        if execute.get("execute") is execute["execute_with_callbacks"] and not context.op_callbacks:
            execute["execute"] = before


@contextlib.contextmanager
def _noted_constants(table: OriginTable) -> Iterator[None]:
    """Note what `tf.constant` and `tf.convert_to_tensor` make, which is no operation."""
    constants = loaded_names(_CONSTANTS)
    convert = constants.get(_CONVERT)
    if convert is None:
        yield
        return

    def noting(value: Any, *arguments: Any, **options: Any) -> Any:
        made = convert(value, *arguments, **options)
        _note(table, (value,), (made,))
        return made

    constants[_CONVERT] = noting
    try:
        yield
    finally:
        if constants.get(_CONVERT) is noting:
            constants[_CONVERT] = convert


def _note(table: OriginTable, given: Any, made: Any) -> None:
    # A creating line is only evidence: without it the user's re-run must not fail.
    with contextlib.suppress(Exception):
        cls = TENSORS.get()
        known = {storage(array) for array in given or () if type(array) is cls}
        for array in made or ():
            if type(array) is cls:
                key = storage(array)
                if key in known:
                    table.note_if_unknown(key)
                else:
                    table.note(key)
