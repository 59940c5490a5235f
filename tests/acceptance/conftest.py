"""What every whole run shares."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def warm() -> None:
    """Has runs in processes of their own find the plugin imported, but for tests that have the fixture `cold`."""
