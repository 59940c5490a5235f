"""Share the frameworks of one pytest run: the plugin's own, and later a conftest.py's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.adapters.registry import own_frameworks

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.frameworks import Frameworks

_FRAMEWORKS: pytest.StashKey[Frameworks] = pytest.StashKey()


def shared_frameworks(config: pytest.Config) -> Frameworks:
    """Return the run's frameworks, created on the first call."""
    found = config.stash.get(_FRAMEWORKS, None)
    if found is None:
        found = config.stash[_FRAMEWORKS] = own_frameworks()
    return found
