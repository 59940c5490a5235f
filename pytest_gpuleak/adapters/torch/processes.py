"""Recognise the processes that torch starts: workers that compile kernels, and workers of DataLoaders."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.torch.lookup import torch_module
from pytest_gpuleak.heap.safe_access import field_of, pid_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class TorchProcesses:
    """Recognises processes by their command lines and torch's own tables."""

    def is_helper(self, command: Sequence[str]) -> bool:
        """Return whether it compiles kernels for ``torch.compile`` (torch/_inductor/compile_worker/subproc_pool.py)."""
        return any("_inductor/compile_worker/" in part.replace("\\", "/") for part in command) or any(
            part.startswith("--pickler=torch._inductor.") for part in command
        )

    def helper_pids(self) -> set[int]:
        """Return workers forked for ``torch.compile`` (torch/_inductor/async_compile.py, ``_pool_set``)."""
        pools = getattr(torch_module("torch._inductor.async_compile"), "_pool_set", ())
        pids: set[int] = set()
        with contextlib.suppress(Exception):  # torch's private table, whose form may change
            for pool in list(pools):
                pids.update(field_of(pool, "_processes") or ())
        return pids

    def pool_workers(self) -> dict[int, str]:
        """Return workers of DataLoaders in use or with persistent workers (torch/utils/data/dataloader.py)."""
        kind = getattr(torch_module("torch.utils.data.dataloader"), "_MultiProcessingDataLoaderIter", None)
        pids: set[int] = set()
        if kind is not None:
            with contextlib.suppress(Exception):  # as above
                for value in gc.get_objects():
                    if type(value) is kind:
                        pids.update(pid for pid in map(pid_of, field_of(value, "_workers") or ()) if pid is not None)
        return dict.fromkeys(pids, "DataLoader")
