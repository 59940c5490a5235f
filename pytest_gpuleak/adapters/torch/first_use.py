"""Learn when torch initialises a device first, without importing torch: by a call queued in `torch.cuda`.

`_lazy_init` runs what `_queued_calls` lists, pairs of a function and the traceback of who queued it, once the device is
initialised and before it returns (torch/cuda/__init__.py, torch/xpu/__init__.py). C++ (`torch.zeros(device="cuda")`)
comes through it as well. `is_available()` and `device_count()` initialise nothing, and do not.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_KINDS: Final = {"torch.cuda": "cuda", "torch.xpu": "xpu"}


class TorchFirstUse:
    """Calls `tell` with a module's name and its type of device, within that module's `_lazy_init`, its lock held.

    `look` queues the call, and the finder does when the module is executed: in the middle of a collection, or again by a
    reload. A stub in its place has no queue and is left alone.
    """

    def __init__(self, tell: Callable[[str, str], object]) -> None:
        self._tell = tell
        self._calls = {name: (partial(self._call, name), ["queued by pytest-gpuleak\n"]) for name in _KINDS}
        self._queues: list[list[Any]] = []
        sys.meta_path.insert(0, self)
        self.look()

    def look(self) -> None:
        """Queue the call where it is missing. A device that is initialised already is told now."""
        for name, call in self._calls.items():
            namespace = safe_access.module_dict(safe_access.loaded_module(name)) or {}
            queue = namespace.get("_queued_calls")
            if type(queue) is not list:
                continue
            if namespace.get("_initialized") is True and not _in_bad_fork(namespace):
                self._call(name)
            elif not any(one is call for one in queue):
                queue.insert(0, call)  # first: one before it that raises would keep it from being called
                self._queues.append(queue)

    def stop(self) -> None:
        """Take the calls and the finder away."""
        with suppress(ValueError):
            sys.meta_path.remove(self)
        ours = [id(call) for call in self._calls.values()]
        for queue in self._queues:
            queue[:] = [one for one in queue if id(one) not in ours]
        self._queues.clear()

    def _call(self, name: str) -> None:
        with suppress(Exception):  # torch would fail to initialise
            self._tell(name, _KINDS[name])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a watched module by the other finders, and look once it is executed."""
        if fullname not in _KINDS:
            return None
        finders = (finder for finder in list(sys.meta_path) if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in finders if hasattr(finder, "find_spec"))
        spec = next((spec for spec in found if spec is not None), None)
        loader: Any = None if spec is None else spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is not None:

            def execute_and_look(module: ModuleType) -> None:
                del loader.exec_module  # what looks at the loader later finds the interpreter's own
                execute(module)
                with suppress(Exception):  # the import is the user's
                    self.look()

            with suppress(AttributeError):  # a loader with slots
                loader.exec_module = execute_and_look
        return spec


def _in_bad_fork(namespace: dict[str, Any]) -> bool:
    """Tell whether another process, from which this one was forked, has initialised the device."""
    forked = namespace.get("_is_in_bad_fork")
    return type(forked) is BuiltinFunctionType and bool(forked())
