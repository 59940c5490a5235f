"""Carry operators out on the CPU once torch is imported, with `CUDA_STANDIN_VALUES=1`.

Installed as `cuda_standin_hook` beside a `.pth` file, by which each interpreter of the virtual environment imports it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec


def install() -> None:
    """Have `cuda_standin_values` imported when torch has been."""
    import importlib
    import importlib.abc
    import importlib.machinery

    class AfterTorch(importlib.abc.MetaPathFinder):
        """Finds torch as usual, and adds the import of the values to its loader."""

        def find_spec(
            self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
        ) -> ModuleSpec | None:
            if name != "torch":
                return None
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            if spec is None or spec.loader is None:
                return spec
            loader = spec.loader
            load = loader.exec_module

            def load_with_values(module: types.ModuleType) -> None:
                # Both are taken off first: what looks at torch's loader later finds the interpreter's own.
                sys.meta_path.remove(self)
                del loader.__dict__["exec_module"]
                load(module)
                importlib.import_module("cuda_standin_values")

            loader.__dict__["exec_module"] = load_with_values
            return spec

    sys.meta_path.insert(0, AfterTorch())


if os.environ.get("CUDA_STANDIN_VALUES") == "1":
    install()
