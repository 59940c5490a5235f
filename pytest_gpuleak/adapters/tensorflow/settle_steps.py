"""Wait for TensorFlow's operations that run in the background and hold their tensors until they end.

`tf.keras.backend.clear_session()` is no step: it drops the state of models that live on, so only the user's hook
`pytest_gpuleak_settle` may call it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.tensorflow.devices import has_gpus
from pytest_gpuleak.adapters.tensorflow.lookup import eager_context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuleak.adapters.protocol import SettleStep


@dataclasses.dataclass(frozen=True)
class ExecutorStep:
    """Wait until the executors have run what was given to them."""

    collects: bool = False

    def steps(self) -> Iterator[None]:
        """Wait once. An operation's error, which the wait would raise, is left to the test that asks for its result."""
        context: Any = eager_context()
        if context is None:
            return
        try:
            context.sync_executors()
        except Exception:  # noqa: BLE001 - the next reading reports a failed device
            return
        yield


def background_steps() -> list[SettleStep]:
    """Return the step where something may run in the background: operations on a GPU, or in an executor of its own."""
    context: Any = eager_context()
    try:
        busy = has_gpus() or bool(context.is_async())
    except Exception:  # noqa: BLE001 - another version: nothing is known to wait for
        return []
    return [ExecutorStep()] if busy else []
