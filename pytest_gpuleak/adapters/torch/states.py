"""Keep torch as the tests have it: its modules in place, and after a re-run CUDA's random generators and torch's settings."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.dependencies import entries_restored
from pytest_gpuleak.adapters.torch.lookup import find_module, loaded_torch, torch_module
from pytest_gpuleak.heap.collector import get_objects, whole_heap
from pytest_gpuleak.heap.safe_access import is_subclass, module_dict, plain_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.adapters.protocol import Restore


_SETTINGS = (
    ("get_default_dtype", "set_default_dtype"),
    ("is_grad_enabled", "set_grad_enabled"),
    ("get_num_threads", "set_num_threads"),
)
"""The functions that read and write each process setting."""


def keep_states() -> list[Restore]:
    """Note torch's settings, and the generators of CUDA devices: their tuple is untracked, so no walk finds them."""
    torch = loaded_torch()
    if torch is None:
        return []
    restores: list[Restore] = []
    with contextlib.suppress(Exception):  # a test's stand-in, or a lost device
        cuda = torch_module("torch.cuda")
        restores += map(_keep_generator, cuda.default_generators if cuda.is_initialized() else ())
    for read, write in _SETTINGS:
        with contextlib.suppress(Exception):
            restores.append(_keep_setting(getattr(torch, read), getattr(torch, write)))
    return restores


def _keep_generator(generator: Any) -> Restore:
    state = generator.get_state()
    return lambda: generator.set_state(state)


def _keep_setting(read: Callable[[], Any], write: Callable[[Any], object]) -> Restore:
    saved = read()

    def restore() -> None:
        if read() != saved:  # setting the number of threads costs time
            write(saved)

    return restore


@contextlib.contextmanager
def torch_in_place() -> Iterator[None]:
    """Restore the loaded torch in `sys.modules` within the context, and the former entries of torch afterwards."""
    torch = loaded_torch()
    if torch is None or (sys.modules.get("torch") is torch and sys.modules.get("torch._C") is vars(torch).get("_C")):
        yield
        return
    with entries_restored("torch"):
        sys.modules.update(_modules(torch))
        yield


def _modules(torch: Any) -> dict[str, Any]:
    """Return the loaded torch's modules on the heap by name; of two with a name, the module in its package."""
    found: dict[str, Any] = {"torch": torch}
    with whole_heap():
        modules = [value for value in get_objects() if is_subclass(type(value), types.ModuleType)]
    for module in modules:
        namespace = module_dict(module) or {}
        name = plain_text(namespace.get("__name__")) or ""
        is_part = name.startswith("torch.") and namespace.get("__spec__") is not None
        if is_part and (name not in found or find_module(torch, name) is module):
            found[name] = module
    return found
