"""TensorFlow's and Keras's leaks and clean tests, each in a test of its own, in a few runs of pytest."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


LEAKS = """
    import functools, threading
    import numpy as np
    import tensorflow as tf

    KEPT, TAPES = [], []
    CACHE = {}

    def build():
        return tf.keras.Sequential([tf.keras.layers.Input((10,)), tf.keras.layers.Dense(10)])

    class Service:
        def __init__(self):
            self.weights = tf.Variable(tf.zeros((100, 100)))

        @functools.lru_cache
        def scale(self, number):
            return number

    def test_variable_with_its_value():
        variable = tf.Variable(tf.ones((256, 256)))
        KEPT.append((variable, variable.read_value(), tf.reshape(variable.read_value(), (-1,))))

    def test_constant():
        KEPT.append(tf.constant(np.ones((64, 64), "f4")))

    def test_model():
        KEPT.append(build())

    def test_optimizer():
        variable = tf.Variable(tf.ones((20, 20)))
        optimizer = tf.keras.optimizers.Adam()
        optimizer.apply_gradients([(tf.ones((20, 20)), variable)])
        KEPT.append(optimizer)

    def test_function_with_a_capture():
        table = tf.random.normal((128, 128))

        @tf.function
        def look_up(x):
            return x @ table

        look_up(tf.ones((2, 128)))
        KEPT.append(look_up)

    def test_function_that_captured_once():
        if "apply" not in CACHE:
            table = tf.random.normal((600, 600))
            CACHE["apply"] = tf.function(lambda x: x @ table)
        CACHE["apply"](tf.ones((1, 600)))

    def test_tape():
        variable = tf.Variable(tf.ones((64, 64)))
        with tf.GradientTape(persistent=True) as tape:
            tf.reduce_sum(variable @ variable)
        TAPES.append(tape)

    def test_ragged_and_sparse():
        KEPT.append(tf.RaggedTensor.from_row_lengths(tf.ones(500), [200, 300]))
        KEPT.append(tf.sparse.from_dense(tf.eye(30)))

    def test_strings():
        KEPT.append(tf.constant(["abc"] * 100))

    def test_dataset_iterator():
        iterator = iter(tf.data.Dataset.from_tensor_slices(np.ones((1000, 25), "f4")).batch(10))
        next(iterator)
        KEPT.append(iterator)

    def test_cached_method():
        Service().scale(1)

    def test_thread():
        thread = threading.Thread(target=lambda: KEPT.append(tf.ones((40, 40))))
        thread.start()
        thread.join()

    def test_layer_kept_once():
        if "layer" not in CACHE:
            CACHE["layer"] = tf.keras.layers.Dense(1024)
            CACHE["layer"].build((None, 1024))
"""
EXPECTED = {
    "test_variable_with_its_value": ("growing", 1, 256 * 256 * 4, "test_it.KEPT"),
    "test_constant": ("growing", 1, 64 * 64 * 4, "test_it.KEPT"),
    "test_model": ("growing", 2, 110 * 4, "test_it.KEPT"),
    "test_function_with_a_capture": ("growing", 1, 128 * 128 * 4, "test_it.KEPT"),
    "test_function_that_captured_once": ("retained", 1, 600 * 600 * 4, "test_it.CACHE"),
    "test_strings": ("growing", 1, 2400, "test_it.KEPT"),
    "test_cached_method": ("growing", 1, 40_000, "test_it.Service.scale"),
    "test_thread": ("growing", 1, 6400, "test_it.KEPT"),
    "test_layer_kept_once": ("retained", 2, 1025 * 1024 * 4, "test_it.CACHE"),
}


def test_leaks(run: Runner) -> None:
    found = run(LEAKS)
    assert set(found.verdicts.values()) == {"leaked"}
    for name, expected in EXPECTED.items():
        if name == "test_model" and version("keras").startswith("2."):
            continue  # Keras 2 has a counter in each model, too
        finding = found.finding(name)
        assert (finding["kind"], finding["count"], finding["bytes"], finding["holder"]["root"]) == expected, name
    for name in ("test_optimizer", "test_ragged_and_sparse", "test_dataset_iterator"):
        assert found.finding(name)["holder"]["root"] == "test_it.KEPT", name
    assert found.finding("test_constant")["tensors"][0]["created"]["code"] == (
        'KEPT.append(tf.constant(np.ones((64, 64), "f4")))'
    )
    tape = found.finding("test_tape")
    assert tape["holder"]["text"].startswith("test_it.TAPES[")
    assert "`tf.GradientTape` kept in `test_it.TAPES`" in tape["hint"]
    captured = found.finding("test_function_that_captured_once")
    assert captured["hint"].startswith("The `tf.function` `test_it.CACHE['apply']` keeps what it captured")


CLEAN = """
    import numpy as np
    import pytest
    import tensorflow as tf

    CONSTANT = tf.ones((256, 256))
    VARIABLE = tf.Variable(tf.ones((256, 256)))
    DRAWN = []

    @tf.function
    def step(x):
        return x @ VARIABLE

    def build():
        return tf.keras.Sequential([tf.keras.layers.Input((10,)), tf.keras.layers.Dense(10)])

    def test_operations():
        tf.ones((256, 256)) @ CONSTANT

    def test_views_of_what_is_older():
        tf.reshape(CONSTANT, (-1,))
        VARIABLE.read_value()

    def test_assignments():
        VARIABLE.assign(tf.random.normal((256, 256)))
        VARIABLE.assign_add(CONSTANT)

    def test_first_trace():
        step(CONSTANT)

    def test_gradient_of_a_function():
        with tf.GradientTape() as tape:
            result = step(CONSTANT)
        tape.gradient(result, VARIABLE)

    def test_compiled_function():
        tf.function(lambda x: x * 2 + 1, jit_compile=True)(CONSTANT)

    def test_loop_in_a_function():
        @tf.function
        def count(limit):
            number = tf.constant(0)
            while number < limit:
                number += 1
            return number

        assert int(count(tf.constant(5))) == 5

    def test_model_is_dropped():
        build()(tf.ones((1, 10)))

    def test_predict():
        build().predict(np.ones((8, 10)), verbose=0)

    def test_eager_fit_and_clear_session():
        model = build()
        model.compile("sgd", "mse", run_eagerly=True)
        model.fit(np.ones((8, 10)), np.ones((8, 10)), verbose=0)
        tf.keras.backend.clear_session()

    def test_names_are_counted_from_one():
        assert tf.keras.layers.Dense(1).name == "dense"

    def test_names_are_counted_on():
        assert tf.keras.layers.Dense(1).name == "dense_1"

    def test_model_is_saved_and_loaded(tmp_path):
        build().save(tmp_path / "model.keras")
        tf.keras.models.load_model(tmp_path / "model.keras")

    def test_checkpoint(tmp_path):
        tf.train.Checkpoint(v=tf.Variable(tf.ones((25, 25)))).write(str(tmp_path / "c"))

    def test_dataset():
        for _ in tf.data.Dataset.range(100).cache().map(lambda x: x + 1).batch(3).prefetch(1):
            pass

    def test_python_in_a_graph():
        tf.py_function(lambda x: x + 1, [tf.ones(3)], tf.float32)
        tf.map_fn(lambda x: x * 2, tf.ones((10, 3)))

    def test_first_graph_api():
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.constant(np.ones((256, 256))))

    def test_an_error_of_an_operation():
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.ones((2, 3)) @ tf.ones((2, 3))

    def test_seeds():
        tf.random.set_seed(1)
        DRAWN.append(float(tf.random.uniform(())))
        assert len(set(DRAWN)) == 1
"""


def test_clean_tests_stay_clean(run: Runner) -> None:
    found = run(CLEAN)
    assert found.result.ret == 0
    for name, test in found.tests.items():
        assert test["outcome"] == "passed", name
        assert not any(finding["failed"] for finding in test["findings"]), name
        assert {finding["kind"] for finding in test["findings"]} <= {"cycle"}, name


FIT = """
    import numpy as np
    import pytest
    import tensorflow as tf

    def test_fit():
        model = tf.keras.Sequential([tf.keras.layers.Input((10,)), tf.keras.layers.Dense(10)])
        model.compile("adam", "mse")
        model.fit(np.ones((8, 10)), np.ones((8, 10)), verbose=0)
"""


def test_what_keras_fit_leaves_in_the_gradient_registry_is_named(run: Runner) -> None:
    found = run(FIT)
    (finding,) = [one for one in found.tests["test_fit"]["findings"] if one["failed"]]
    assert finding["kind"] == "growing"
    assert finding["holder"]["root"] == "tensorflow.python.framework.ops.gradient_registry"
    assert "tensorflow issue 97697" in finding["hint"]


TRACES = """
    import tensorflow as tf

    COUNT = [0]

    @tf.function
    def step(x):
        return tf.ones((10,)) * x

    @tf.function
    def once(x):
        return x + 1

    def test_a_number_as_argument():
        COUNT[0] += 1
        step(COUNT[0])

    def test_a_shape_that_is_new_in_each_run():
        COUNT[0] += 1
        once(tf.ones(COUNT[0]))

    def test_first_trace():
        once(tf.constant(1.0))

    def test_traced_before():
        once(tf.constant(2.0))

    def test_function_that_is_dropped():
        tf.function(lambda x: x)(tf.ones(3))
"""


def test_a_trace_more_in_each_run_is_noted(run: Runner) -> None:
    found = run(TRACES)
    assert found.result.ret == 0
    assert found.verdicts == {
        "test_a_number_as_argument": "noted",
        "test_a_shape_that_is_new_in_each_run": "noted",
        "test_first_trace": "clean",
        "test_traced_before": "clean",
        "test_function_that_is_dropped": "clean",
    }
    finding = found.finding("test_a_number_as_argument")
    assert (finding["kind"], finding["failed"]) == ("recompiled", False)
    assert [part["text"] for part in finding["contributions"]] == ["step"]


RERUN = """
    import tensorflow as tf

    KEPT, DRAWN = [], []

    def test_leaks_and_names():
        KEPT.append(tf.ones(100))
        tf.keras.layers.Dense(1)
        DRAWN.append(float(tf.random.get_global_generator().uniform(())))

    def test_the_next_is_named_as_without_a_rerun():
        assert tf.keras.layers.Dense(1).name == NAME
        assert float(tf.random.get_global_generator().uniform(())) == DRAWS[1]
"""


def test_a_rerun_does_not_count_names_or_draw_numbers(run: Runner) -> None:
    head = """
    import tensorflow as tf

    tf.keras.backend.clear_session()
    tf.random.set_global_generator(tf.random.Generator.from_seed(3))
    DRAWS = [float(tf.random.get_global_generator().uniform(())) for _ in range(2)]
    tf.random.set_global_generator(tf.random.Generator.from_seed(3))
    NAME = "dense_1"
    """
    found = run(head + RERUN)
    assert found.verdicts["test_leaks_and_names"] == "leaked"
    assert found.tests["test_the_next_is_named_as_without_a_rerun"]["outcome"] == "passed"


def test_a_scan_finds_what_epochs_find(run: Runner) -> None:
    suite = """
    import tensorflow as tf

    KEPT = []

    def test_keeps():
        KEPT.append(tf.Variable(tf.ones((256, 256))))

    def test_frees():
        tf.Variable(tf.ones((256, 256))).read_value()
    """
    found = run(suite, "--gpu-leak-scan=scan")
    assert found.verdicts == {"test_keeps": "leaked", "test_frees": "clean"}
    assert found.finding("test_keeps")["bytes"] == 256 * 256 * 4


@pytest.mark.skipif(sys.platform != "linux", reason="reads malloc's heap")
def test_the_pool_for_tensors_on_the_cpu_is_no_growth(run: Runner) -> None:
    found = run(
        """
        import numpy as np
        import tensorflow as tf

        KEPT = []

        def test_first():
            tf.reduce_sum(tf.ones((100, 100)))

        def test_uses_much_for_a_moment():
            tf.reduce_sum(tf.ones((5000, 2000)) + 1)

        def test_leaks_beside():
            KEPT.append(np.ones(2**18))
        """,
        apart=True,
    )
    assert found.verdicts == {
        "test_first": "clean",
        "test_uses_much_for_a_moment": "clean",
        "test_leaks_beside": "leaked",
    }
    assert (
        "suspect_s" not in found.tests["test_uses_much_for_a_moment"]
        or not found.tests["test_uses_much_for_a_moment"]["suspect_s"]
    )
