"""The options and the markers' arguments as a table: what each sets, and the kind of its value.

Each option is described once, in `options.ROWS`; the command line, the ini, the marker's arguments and the text of
every usage error follow from that table and the kinds of `values`. Loaded where a value or a marker is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.session.config.options import ALLOW_MARKER, POLICY_MARKER, ROWS, RUN_ROWS
from pytest_gpuleak.session.config.values import KINDS, Kind, complaint_of, parse_reason, show

if TYPE_CHECKING:
    import pytest


class Option(NamedTuple):
    """One option, wherever it may be given.

    Attributes:
        name: the marker's argument; `--gpu-leak-NAME` and `gpu_leak_NAME` derive from it.
        target: the field of `Policy` that it sets.
        kind: the kind of its value.
        default: the default, as a user would write it.
        help: what it does.
        marker: whether the `gpu_leak` marker takes it.
    """

    name: str
    target: str
    kind: Kind
    default: str
    help: str
    marker: bool = True

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--gpu-leak-" + self.name.replace("_", "-")

    @property
    def ini(self) -> str:
        """Its name in the ini, and its attribute of `config.option`."""
        return "gpu_leak_" + self.name


_TARGETS = {
    "tensors": "growing_tensors",
    "mb": "growing_bytes",
    "retained_mb": "retained_bytes",
    "reserved_mb": "reserved_bytes",
    "host_mb": "host_bytes",
    "confirm_limit": "confirm_limit_s",
    "process_mb": "process_bytes",
}
"""Fields of `Policy` that are not called as the option that sets them."""

_NOT_ON_A_MARKER = {"confirm_limit", "reserved_mb", "host", "process_mb"}

OPTIONS = tuple(
    Option(name, _TARGETS.get(name, name), KINDS[kind], default, text, name not in _NOT_ON_A_MARKER)
    for name, kind, default, text in ROWS
)
"""Every option that sets a field of `Policy`, in the order of the help."""

RUN_OPTIONS = tuple(
    Option(name, {"max_mb": "budget_bytes"}.get(name, name), KINDS[kind], default, text, marker=False)
    for name, kind, default, text in RUN_ROWS
)
"""Every option that sets a field of `Settings`, in the order of the help."""

MARKER_ARGUMENTS = {
    POLICY_MARKER: {option.name: option.kind for option in OPTIONS if option.marker},
    ALLOW_MARKER: {"reason": Kind("TEXT", 'a text that is not empty: reason="..."', parse_reason)},
}
"""The kinds of the arguments that each marker takes."""


def complaint_about(mark: pytest.Mark) -> str | None:
    """Why a marker of ours is not accepted; None where it is."""
    known = MARKER_ARGUMENTS[mark.name]
    if mark.args:
        return f"positional argument {show(mark.args[0])} is not accepted, only keyword arguments: {', '.join(known)}"
    required = {"reason": None} if mark.name == ALLOW_MARKER else {}
    return complaint_of({**required, **mark.kwargs}, known)
