"""The table of all kinds of tests whose verdict is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.planted import among_others, held_by_python, held_by_torch, hinted, in_order, in_pytest, of_codes, read_cold

if TYPE_CHECKING:
    from tests.planted.kind import Kind

KINDS: dict[str, Kind] = {
    kind.name: kind
    for module in (among_others, held_by_python, held_by_torch, in_pytest, in_order, read_cold, hinted, of_codes)
    for kind in module.KINDS
    if kind.available
}
"""By name; those that need what is not installed are left out."""
