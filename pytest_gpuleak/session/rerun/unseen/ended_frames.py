"""Tell which objects lie in frames that have ended, as a failed test's do: no test that follows comes by them."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.heap.collector import get_referrers
from pytest_gpuleak.heap.frames import belongs_to_plugin, local_variables, running_frames, suspended_frames

if TYPE_CHECKING:
    from collections.abc import Collection


class EndedFrames:
    """The frames that have ended by now. The whole heap must be visible, and no generator of ours may refer to a value.

    `ignore` has the ids of the caller's containers.
    """

    def __init__(self, ignore: Collection[int]) -> None:
        running = [one.frame for one in running_frames(())]
        self._ignored = frozenset(ignore)
        self._running = {id(frame) for frame in running}
        self._in_use = {id(value) for frame in running for _, value in local_variables(frame)}

    def alone_hold(self, value: object) -> bool:
        """Tell whether frames that have ended, and the dicts of their variables, alone refer to an object."""
        if id(value) in self._in_use:
            return False
        holders = self._holders(value)
        found = bool(holders)
        for one in holders:
            found = found and (self._has_ended(one) or (type(one) is dict and self._are_variables(one, id(holders))))
        holders.clear()
        return found

    def _are_variables(self, names: object, ignored: int) -> bool:
        holders = self._holders(names, ignored)
        found = bool(holders) and all(map(self._has_ended, holders))
        holders.clear()
        return found

    def _has_ended(self, holder: object) -> bool:
        return type(holder) is FrameType and id(holder) not in self._running and not suspended_frames([holder])

    def _holders(self, value: object, ignored: int = 0) -> list[Any]:
        found = []
        for one in get_referrers(value):
            own = type(one) is FrameType and belongs_to_plugin(one.f_globals)
            if not own and id(one) != ignored and id(one) not in self._ignored:
                found.append(one)
        return found
