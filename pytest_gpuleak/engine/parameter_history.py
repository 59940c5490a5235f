"""Remember which tests leave a constant number of arrays in the objects that they are parametrized with."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pytest_gpuleak.adapters.protocol import StorageHandle
    from pytest_gpuleak.model.findings import Finding

ALIKE: Final = 3
"""Tests of a function that must have been run again, and not grown, before the others are not run again."""


class ParameterHistory:
    """What re-runs have shown by function of parametrized tests, of which objects may make every one a suspect."""

    def __init__(self) -> None:
        self._constant: Counter[str] = Counter()
        self._grows: set[str] = set()
        self._left: dict[int, list[StorageHandle]] = {}
        self._asked: tuple[str, frozenset[int]] | None = None

    def is_constant(self, nodeid: str, parameters: Collection[object]) -> bool:
        """Tell whether no re-run is needed: others of its function did not grow, and parameters keep no old array."""
        identities = frozenset(map(id, parameters))
        self._asked = nodeid, identities
        function = _function(nodeid)
        if function in self._grows or self._constant[function] < ALIKE:
            return False
        return not any(handle.alive() for identity in identities for handle in self._left.get(identity, ()))

    def note(self, parameters: Collection[object], handles: Iterable[StorageHandle]) -> None:
        """Note what a test that was not run again has left in its parameters."""
        left = list(handles)
        self._left.update(dict.fromkeys(map(id, parameters), left))
        self._asked = None

    def learn(self, nodeid: str, findings: Collection[Finding]) -> None:
        """Take in the verdict on a test for which `is_constant` said no."""
        asked, self._asked = self._asked, None
        if asked is None or asked[0] != nodeid:
            return
        for identity in asked[1]:
            self._left.pop(identity, None)
        if any(finding.failed or finding.kind == "growing" for finding in findings):
            self._grows.add(_function(nodeid))
        elif findings and all(one.kind == "retained" and one.why_unconfirmed is None for one in findings):
            self._constant[_function(nodeid)] += 1


def _function(nodeid: str) -> str:
    return nodeid.partition("[")[0]
