"""Know whether each re-run of a suspect has added something, of whatever kind."""

from __future__ import annotations

from typing import Generic, TypeVar

_Things = TypeVar("_Things")


class AddedByReruns(Generic[_Things]):
    """Collect what each re-run has added: of one kind, which is counted or listed."""

    def __init__(self) -> None:
        self._added: list[_Things] = []

    @property
    def grows(self) -> bool:
        """Whether each re-run so far has added something."""
        return bool(self._added) and all(self._added)

    def forget_reruns(self) -> None:
        """Forget all re-runs, because a re-run could not be recorded to its end."""
        self._added.clear()
