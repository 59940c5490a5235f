"""Eager tensors and variables: size, device, memory that they share."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuleak.adapters.tensorflow.framework import TensorFlowArrays
from pytest_gpuleak.adapters.tensorflow.operations import trace_origins

pytestmark = [pytest.mark.tensorflow]


@pytest.fixture(scope="module")
def tf() -> Any:
    return pytest.importorskip("tensorflow")


def read(*arrays: Any) -> list[Any]:
    return TensorFlowArrays().read_many(arrays)


@pytest.mark.parametrize(
    ("make", "shape", "dtype", "size"),
    [
        (lambda tf: tf.ones((4, 5)), (4, 5), "float32", 80),
        (lambda tf: tf.constant(3), (), "int32", 4),
        (lambda tf: tf.cast(tf.ones(3), tf.bfloat16), (3,), "bfloat16", 6),
        (lambda tf: tf.constant([True, False]), (2,), "bool", 2),
        (lambda tf: tf.constant(1 + 2j), (), "complex128", 16),
        (lambda tf: tf.constant(["a", "b" * 100]), (2,), "string", 48),
        (lambda tf: tf.Variable(tf.ones((8, 8))).handle, (8, 8), "float32", 256),
        (lambda tf: tf.Variable([1.0, 2.0], shape=tf.TensorShape(None)).handle, (2,), "float32", 8),
        (lambda tf: tf.Variable([[1.0, 2.0]], shape=(1, None)).handle, (1, 2), "float32", 8),
    ],
)
def test_sizes(tf: Any, make: Any, shape: tuple[int, ...], dtype: str, size: int) -> None:
    array = make(tf)
    (found,) = read(array)
    assert (found.shape, found.dtype, found.device, found.bytes, found.storage_bytes) == (
        shape,
        dtype,
        "cpu",
        size,
        size,
    )
    assert found.identity == id(array)


def test_what_has_no_memory_of_a_known_size_is_left_out(tf: Any) -> None:
    dataset = tf.data.Dataset.range(3)
    initializer = tf.lookup.KeyValueTensorInitializer(["a"], [1])
    table = tf.lookup.StaticHashTable(initializer, -1)
    arrays = [
        tf.zeros((0, 3)),
        dataset._variant_tensor,
        iter(dataset)._iterator_resource,
        table.resource_handle,
        tf.queue.FIFOQueue(3, tf.float32).queue_ref,
    ]
    assert read(*arrays) == [None] * len(arrays)


def test_tensors_that_share_memory_have_one_key(tf: Any) -> None:
    tensor = tf.random.normal((30, 30))
    same = [tensor, tf.reshape(tensor, (-1,)), tf.identity(tensor)]
    other = tensor + 1
    assert len({found.storage for found in read(*same)}) == 1
    assert TensorFlowArrays().storage(other) != TensorFlowArrays().storage(tensor)
    assert {TensorFlowArrays().hold(one).storage for one in same} == {TensorFlowArrays().storage(tensor)}


def test_a_variable_and_its_value_have_one_key(tf: Any) -> None:
    variable = tf.Variable(tf.random.normal((30, 30)))
    value = variable.read_value()
    assert len({found.storage for found in read(variable.handle, value, tf.reshape(value, (-1,)))}) == 1
    assert len({found.storage for found in read(value, variable.handle)}) == 1
    variable.assign_add(tf.ones((30, 30)))  # which gives the variable memory of its own
    assert len({found.storage for found in read(variable.handle, value)}) == 2


def test_the_place_of_the_memory_is_told_on_the_host(tf: Any) -> None:
    arrays, tensor = TensorFlowArrays(), tf.random.normal((30, 30))
    assert arrays.memory(tensor) == (arrays.storage(tensor), 3600, False)
    variable = tf.Variable(tensor)
    assert arrays.memory(variable.handle) == arrays.memory(variable.read_value())
    assert arrays.memory(tf.constant(["text"])) is None
    assert arrays.memory(tf.data.Dataset.range(3)._variant_tensor) is None


def test_a_variable_keeps_its_key(tf: Any) -> None:
    variable = tf.Variable(tf.ones((30, 30)))
    (before,) = read(variable.handle)
    variable.assign(tf.zeros((30, 30)))
    (after,) = read(variable.handle)
    assert before.storage == after.storage
    assert TensorFlowArrays().storage_users(variable.handle) == 1
    assert TensorFlowArrays().storage_users(tf.ones((30, 30))) is None


def test_reading_is_not_recorded_by_a_tape(tf: Any) -> None:
    variable = tf.Variable(tf.ones((30, 30)))
    with tf.GradientTape() as tape:
        value = variable.read_value()
        assert len({found.storage for found in read(variable.handle, value)}) == 1
        result = value * 3.0
    assert tape.watched_variables() == (variable,)
    assert float(tf.reduce_sum(tape.gradient(result, variable))) == 2700.0


def test_reading_is_unseen_by_a_users_callback(tf: Any) -> None:
    from tensorflow.python.framework import op_callbacks

    variable = tf.Variable(tf.ones((30, 30)))
    value = variable.read_value()
    seen: list[object] = []

    def note(op_type: object, *arguments: object, **options: object) -> None:
        seen.append(op_type)

    op_callbacks.add_op_callback(note)
    try:
        read(variable.handle, value)
    finally:
        op_callbacks.remove_op_callback(note)
    assert seen == []


def test_a_variable_without_a_value_is_read(tf: Any) -> None:
    from tensorflow.python.ops import resource_variable_ops

    make: Any = resource_variable_ops._variable_handle_from_shape_and_dtype
    handle = make((30, 30), tf.float32, None, "empty", graph_mode=False)
    found, other = read(handle, tf.ones((30, 30)))
    assert (found.shape, found.storage != other.storage) == ((30, 30), True)


def test_creating_lines(tf: Any) -> None:
    function = tf.function(lambda x: x * 2)
    function(tf.ones(3))
    with trace_origins(lambda file: file == __file__) as log:
        made = {
            "an operation": tf.random.normal((9, 9)),
            "a constant": tf.constant([1.5] * 9),
            "a variable": tf.Variable(tf.ones((9, 9))).handle,
            "a function": function(tf.ones(3)),
        }
        viewed = tf.reshape(made["an operation"], (-1,))
    arrays = TensorFlowArrays()
    lines = {name: log[arrays.storage(array)].code for name, array in made.items()}
    assert lines == {
        "an operation": '"an operation": tf.random.normal((9, 9)),',
        "a constant": '"a constant": tf.constant([1.5] * 9),',
        "a variable": '"a variable": tf.Variable(tf.ones((9, 9))).handle,',
        "a function": '"a function": function(tf.ones(3)),',
    }
    assert log[arrays.storage(viewed)].code == lines["an operation"]
    assert function.experimental_get_tracing_count() == 1


def test_tracing_leaves_tensorflow_as_it_was(tf: Any) -> None:
    from tensorflow.python.eager import context, execute
    from tensorflow.python.framework import constant_op, op_callbacks

    before = execute.execute, constant_op.convert_to_eager_tensor
    with trace_origins(lambda file: False):
        tf.ones(3)
        op_callbacks.clear_op_callbacks()
    assert (execute.execute, constant_op.convert_to_eager_tensor) == before
    assert not context.context().op_callbacks


def test_operations_return_what_they_return_without_the_tracing(tf: Any) -> None:
    kinds: list[type] = []

    def note_kinds() -> None:
        kinds.append(type(tf.ones(4) + 1))
        kinds.append(type(tf.raw_ops.Split(axis=0, value=tf.ones(4), num_split=2)))
        kinds.append(type(tf.unique(tf.ones(4))))

    note_kinds()
    tf.function(note_kinds)()
    before = kinds.copy()
    kinds.clear()
    with trace_origins(lambda file: False):
        note_kinds()
        tf.function(note_kinds)()
    assert kinds == before
    assert kinds[1] is kinds[4] is list
