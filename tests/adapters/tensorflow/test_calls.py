"""`watch()` and `holders()` for TensorFlow's tensors and variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import pytest_gpuleak

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


@pytest.fixture(scope="module")
def tf() -> Any:
    return pytest.importorskip("tensorflow")


def test_watch_tells_what_a_block_leaves(tf: Any, app: Any) -> None:
    with pytest_gpuleak.watch() as leaks:
        app.HISTORY.append(tf.Variable(tf.ones((100, 100))))
    assert leaks.bytes == 40_000
    assert [leak.holder.text for leak in leaks if leak.holder is not None] == ["leaky_app.HISTORY[0]._handle"]


def test_an_unchanged_block_leaves_nothing(tf: Any) -> None:
    with pytest_gpuleak.watch() as leaks:
        tf.reduce_sum(tf.ones((100, 100)))
    assert not leaks


def test_holders_of_a_tensor_and_of_a_variable(tf: Any, make_module: Callable[[str, str], types.ModuleType]) -> None:
    module: Any = make_module("tensor_app", "LOSSES = []\nMODEL = {}\n")
    module.LOSSES.append(tf.ones(100))
    module.MODEL["weights"] = tf.Variable(tf.ones(100))
    assert pytest_gpuleak.holders(module.LOSSES[0])[0].text == "tensor_app.LOSSES[0]"
    assert pytest_gpuleak.holders(module.MODEL["weights"])[0].text == "tensor_app.MODEL['weights']"


def test_a_function_that_leaks_is_told(tf: Any, app: Any) -> None:
    with pytest.raises(pytest_gpuleak.LeakError, match=r"leaky_app\.HISTORY"):
        pytest_gpuleak.assert_no_leak(lambda: app.HISTORY.append(tf.ones(100)), repeat=1)
