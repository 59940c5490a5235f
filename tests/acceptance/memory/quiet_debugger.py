"""A debugger for `--pdb` that asks nothing: it continues at once."""

from __future__ import annotations

import pdb  # noqa: T100 - it is what pytest wants a subclass of
from typing import Any


class QuietDebugger(pdb.Pdb):
    """Continues at once."""

    def interaction(self, *_: Any) -> None:
        self.set_continue()
