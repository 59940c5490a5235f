"""One sentence on the edit that frees what a holder keeps. No hint is better than a wrong one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpuleak.findings import Holder

KEPT_INSTANCE = "kept by pytest"
"""Part of the root's text of a test class instance (`holders.roots`)."""


def hint_for(holder: Holder | None) -> str | None:
    """The hint for a holder, or None where no pattern is recognised."""
    if holder is not None and holder.kind == "fixture" and KEPT_INSTANCE in holder.root:
        return (
            "pytest keeps the instance of a test class until the session ends, and with it what the test put on "
            "`self`: delete the attribute in teardown_method, or use a fixture or a local variable."
        )
    return None
