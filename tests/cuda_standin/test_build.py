"""What `build.py` says of input that it can build nothing from. Needs no torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda_standin import build

ROOT = Path(__file__).parents[2]


def run_build(*arguments: str | Path, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cuda_standin.build", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_missing_programs_are_named(tmp_path: Path) -> None:
    status, said = run_build(tmp_path, tmp_path / "out", PATH=str(tmp_path))
    expected = "cuda-standin: not found on PATH: gcc (package gcc), nm (package binutils), readelf (package binutils)\n"
    assert (status, said) == (1, expected)


needs_programs = pytest.mark.skipif(
    any(shutil.which(program) is None for program in build.TOOLS), reason="gcc, nm or readelf is not installed"
)


@needs_programs
def test_a_folder_without_torch(tmp_path: Path) -> None:
    status, said = run_build(tmp_path, tmp_path / "out")
    assert status == 1
    assert (
        said == f"cuda-standin: {tmp_path} has no libraries of torch: give the folder torch/lib of an installed torch\n"
    )


@needs_programs
def test_a_torch_without_cuda(tmp_path: Path) -> None:
    (tmp_path / "libtorch.so").touch()
    assert run_build(tmp_path, tmp_path / "out") == (3, f"cuda-standin: {tmp_path} belongs to a torch without CUDA\n")


@needs_programs
def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "libc10_cuda.so").write_text("text")
    status, said = run_build(tmp_path, tmp_path / "out")
    assert (status, said.count("\n")) == (1, 1)
    assert said.startswith("cuda-standin: readelf failed: ")


def test_a_version_of_cuda_that_is_not_known() -> None:
    with pytest.raises(build.UnknownTorchError, match="built with CUDA 14, and the stand-in knows 12 and 13"):
        build.cuda_major({"libcudart.so.14", "libcublas.so.14"})
    with pytest.raises(build.UnknownTorchError, match="need no libcudart"):
        build.cuda_major({"libcublas.so.13"})


def test_stubs_return_a_text_where_torch_prints_it() -> None:
    stubs = build.stubs_for({"cublasGetStatusString", "cufftPlan1d"})
    assert 'const char *cublasGetStatusString(void) { return "stand-in"; }' in stubs
    assert "long cufftPlan1d(void)" in stubs


def test_versions_leave_out_names_without_a_version() -> None:
    assert (
        build.versions_for({"": {"cuInit"}, "libcudart.so.13": {"cudaFree"}})
        == "libcudart.so.13 { global: cudaFree; };\n"
    )


@needs_programs
@pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="scripts/test-cuda runs nothing here"
)
def test_the_script_says_which_program_is_missing_and_skips(tmp_path: Path) -> None:
    for tool in ("dirname", "uname", "nm", "readelf", "timeout"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    done = subprocess.run(
        [str(shutil.which("bash")), "scripts/test-cuda"],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "skipped: gcc was not found (on Debian: apt install gcc binutils coreutils)\n"


def test_the_scripts_help_says_what_the_quick_run_leaves_out() -> None:
    done = subprocess.run(
        ["scripts/test-cuda", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert "--quick leaves out: tests/gpu with one device;" in done.stdout
    assert not any(line.startswith("#") for line in done.stdout.splitlines())
