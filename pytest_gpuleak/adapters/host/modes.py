"""Create the host probes by the names that `--gpu-leak-host` accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.adapters.probe_protocol import HostProbe

NAMES = ("heap", "tracemalloc", "pympler", "rss")
"""The names that `host_probes` accepts."""


def host_probes(names: Sequence[str], root: str = "") -> list[HostProbe]:
    """Return these probes in order, not started; `root` is pytest's rootdir. Raises ValueError for other names."""
    return [_make(name, root) for name in dict.fromkeys(names)]


def _make(name: str, root: str) -> HostProbe:
    if name == "heap":
        from pytest_gpuleak.adapters.host.probes import HeapProbe

        return HeapProbe()
    if name == "tracemalloc":
        from pytest_gpuleak.adapters.host.tracemalloc_probe import TracemallocProbe

        return TracemallocProbe(root)
    if name == "pympler":
        from pytest_gpuleak.adapters.host.pympler_probe import PymplerProbe

        return PymplerProbe()
    if name == "rss":
        from pytest_gpuleak.adapters.host.probes import ResidentSetProbe

        return ResidentSetProbe()
    raise ValueError(f"{name!r} is none of {', '.join(NAMES)}")
