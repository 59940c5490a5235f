"""What the engine asks of a detection strategy. `epochs` and `heap_scan` hold the two that there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Detector(Protocol):
    """Tells which arrays were born since a moment and are still alive.

    Between calls a detector holds ids and plain metadata, never an array. The lists it returns hold strong
    references: whoever asks for one must drop it before user code runs again.
    """

    mode: Literal["epoch", "scan"]

    @property
    def sees_only_young(self) -> bool:
        """Whether the functions of `heap.collector` see what was born since `open` or `cut` and nothing else."""

    def start(self) -> None:
        """Begin to watch the process."""

    def stop(self) -> None:
        """Leave the process as it was found. Safe to call twice."""

    def open(self) -> None:
        """Everything alive now is old."""

    def take_and_age(self) -> list[object]:
        """The arrays born since the last `open` or `cut` and alive; from here on they too are old."""

    def look(self) -> list[object]:
        """The arrays born since the last `open` or `cut` and alive; the border stays where it is."""

    def find(self, identities: set[int]) -> list[object]:
        """The arrays alive anywhere on the heap whose id is in `identities`."""

    def close(self) -> None:
        """The test is over: do what keeps the process's memory as it would be without the plugin."""

    def whole_heap(self) -> AbstractContextManager[None]:
        """Within it `heap.collector.get_objects` and `heap.collector.get_referrers` see every object."""
