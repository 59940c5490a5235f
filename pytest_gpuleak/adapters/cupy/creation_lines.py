"""Note the lines that create CuPy arrays while a suspect is run again."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.creation_lines import OriginTable
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.threads import started_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.adapters.protocol import OriginLog


@contextlib.contextmanager
def trace_origins(is_user_file: Callable[[str], bool]) -> Iterator[OriginLog]:
    """Run the body under a hook of the pools (memory_hook.pyx) that notes each block's line, in new threads too."""
    hook_class: Any = safe_access.loaded_class("cupy.cuda.memory_hook", "MemoryHook")
    if hook_class is None:
        yield {}
        return
    table = OriginTable(is_user_file)
    active = [True]

    class NoteOrigins(hook_class):  # type: ignore[misc] # the class is known at run time alone
        name = "pytest-gpuleak"

        def malloc_postprocess(self, **block: Any) -> None:
            address = block.get("mem_ptr")
            if active and type(address) is int and address:
                table.note(address)

    with NoteOrigins(), started_threads(lambda: NoteOrigins().__enter__()):
        yield table
    active.clear()  # a thread that still runs keeps its hook, which does nothing from here on
