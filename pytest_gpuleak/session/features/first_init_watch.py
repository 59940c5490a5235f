"""Watch for the first initialisation of a device from before the first conftest.py on. A test costs nothing."""

from __future__ import annotations

import os
from _thread import get_ident
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.nvml.driver import has_context
from pytest_gpuleak.session.frameworks import shared_frameworks

if TYPE_CHECKING:
    import pytest

    from pytest_gpuleak.model.first_init import FirstInit


class InitWatch:
    """Notes the first initialisation in this process, from its stack; a fork of this process notes nothing."""

    def __init__(self, early_config: pytest.Config) -> None:
        self.found: FirstInit | None = None
        self._root = str(early_config.rootpath)
        self._process = os.getpid()
        self._thread = get_ident()
        self._collected = False
        self._watches = shared_frameworks(early_config).watch_first_use(self._note)
        early_config.add_cleanup(self.stop)

    def look(self) -> None:
        """Look for what the frameworks' own calls did not tell: torch put in place by user code, or another library.

        That takes tenths of a millisecond, so it is done where a phase ends, and not for each test.
        """
        if os.getpid() != self._process:
            return
        for watch in self._watches:
            watch.look()
        if self.found is None and has_context():
            self._note(None, "cuda")

    def end_collection(self) -> None:
        """Look, and take what comes next for the tests'."""
        self.look()
        self._collected = True

    def stop(self) -> None:
        """Restore what watching has changed."""
        for watch in self._watches:
            watch.stop()

    def _note(self, by: str | None, device: str) -> None:
        if self.found is not None or os.getpid() != self._process:
            return
        from pytest_gpuleak.session.features.first_init_stack import describe_stack

        self.found = describe_stack(device, by, self._thread, self._root, collected=self._collected)
