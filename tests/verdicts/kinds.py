"""The table of all kinds of tests whose verdict is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.verdicts import held_by_python, held_by_torch, in_pytest

if TYPE_CHECKING:
    from tests.verdicts.kind import Kind

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (*held_by_python.KINDS, *held_by_torch.KINDS, *in_pytest.KINDS) if kind.available
}
"""By name; those that need what is not installed are left out."""
