"""The hint on a reference cycle, which frees its memory only when the garbage collector runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Holder


def hint_for_cycle(holder: Holder) -> str:
    """Return which reference to cut so that reference counts free the memory at once."""
    types = {step.type for step in holder.path}
    if "traceback" in types:
        return (
            "An exception kept in a local variable refers to the frame of that variable by its traceback: delete the "
            "variable when it is no longer needed (`del error`), or keep `str(error)`."
        )
    return (
        "The memory is freed only when the garbage collector runs: let one of these references, such as one back to an "
        "owner, be a `weakref.ref`, or cut it when the object is closed."
    )
