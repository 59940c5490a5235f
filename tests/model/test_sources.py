"""Which files are the user's own."""

from __future__ import annotations

import os
import pathlib
import sysconfig

import pytest

import pytest_gpuleak
from pytest_gpuleak.model.source_files import below_packages, is_user_file

LIBRARY = pathlib.Path(sysconfig.get_paths()["stdlib"])
PURE = pathlib.Path(sysconfig.get_paths()["purelib"])


@pytest.mark.parametrize(
    ("path", "root", "expected"),
    [
        ("/home/me/project/app/model.py", "/home/me/project", True),
        ("/home/me/elsewhere/helpers.py", "/home/me/project", True),
        ("/home/me/project/.venv/lib/python3.11/site-packages/torch/nn.py", "/home/me/project", False),
        (str(LIBRARY / "functools.py"), "/home/me/project", False),
        (str(PURE / "torch" / "tensor.py"), "/home/me/project", False),
        (str(PURE / "mine" / "model.py"), str(PURE / "mine"), True),
        ("<string>", "/home/me/project", False),
        ("<frozen importlib._bootstrap>", "/home/me/project", False),
        (str(pathlib.Path(pytest_gpuleak.__file__).parent / "session" / "rerun" / "rerun.py"), "/", False),
    ],
)
def test_is_user_file(path: str, root: str, expected: bool) -> None:
    assert is_user_file(path, root) is expected


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_an_installed_file_begins_with_its_package(folder: str) -> None:
    assert below_packages(os.path.join(os.sep, "usr", folder, "vllm", "a.py")) == os.path.join("vllm", "a.py")  # noqa: PTH118
    assert below_packages(os.path.join("app", "a.py")) == os.path.join("app", "a.py")  # noqa: PTH118
