"""Build the CUDA stand-in for an installed torch, and install what carries its operators out.

    python -m tests.cuda_standin.build TORCH_LIB OUT [--site-packages FOLDER]

TORCH_LIB is the folder `torch/lib` of a CUDA build of torch, OUT the folder for LD_LIBRARY_PATH. With --site-packages the
modules that `CUDA_STANDIN_VALUES=1` switches on are copied to this folder. Needs gcc, nm and readelf. Bad input gives one
line and the exit status 1, or 3 where the build of torch is not known.
"""

from __future__ import annotations

import argparse
import collections
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "runtime" / "standin.c"
TOOLS = {"gcc": "gcc", "nm": "binutils", "readelf": "binutils"}
"""The programs that a build runs, and the package of each."""
CUDA_VERSIONS = {12: 12040, 13: 13000}
"""The version that the runtime states, by the major version that torch was built with."""
CUDNN_VERSION = 90100
LOOKED_UP = ("libcuda.so.1", "libnvidia-ml.so.1")
"""Libraries that torch and NVML's binding open by name, so that no library states the need of them."""
OF_TORCH = ("libtorch", "libc10", "libcaffe2")
OF_THE_SYSTEM = re.compile(
    r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp[-\w]*|torch\w*|c10\w*|shm|caffe2\w*)\.so|ld-linux"
)
UNVERSIONED = re.compile(r"cu[A-Z]|cusparseLt|nccl|nvshmem")
"""Names of NVIDIA's libraries that have no symbol versions."""
RETURNS_TEXT = re.compile(r"(String|ErrorName|ncclGetLastError)$")
"""Names of functions that return a string. Torch prints it, so that 0 would end in a segmentation fault."""
LOOKED_UP_NAME = re.compile(rb"\0((?:cu|nvml)[A-Z]\w{3,60})(?=\0)")
"""A name of the driver or of NVML among the strings of a library."""


UNKNOWN_TORCH = 3
"""The exit status for a build of torch that is not known: there is nothing to test, and nothing has failed."""


class BuildError(Exception):
    """What keeps the stand-in from being built, in one line."""


class UnknownTorchError(BuildError):
    """The build of torch is one that the runtime has no answers for."""


class Needs(NamedTuple):
    """What the libraries of a torch ask of NVIDIA's: the files, and the names by the symbol version of each."""

    files: set[str]
    names: dict[str, set[str]]


def output(*command: str | Path) -> str:
    """Run a program and return what it printed. Raises `BuildError` with the last line of its errors."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BuildError(f"{Path(command[0]).name} failed: {last}")
    return done.stdout


def check_tools() -> None:
    """Raise `BuildError` where a program is missing."""
    missing = [f"{tool} (package {package})" for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        raise BuildError(f"not found on PATH: {', '.join(missing)}")


def libraries_of(folder: Path) -> list[Path]:
    """Return the shared libraries of torch in a folder. Raises `BuildError` where it has none that uses CUDA."""
    found = sorted(path for path in folder.glob("lib*.so") if path.name.startswith(OF_TORCH))
    if not found:
        raise BuildError(f"{folder} has no libraries of torch: give the folder torch/lib of an installed torch")
    if not any(path.name == "libc10_cuda.so" for path in found):
        raise UnknownTorchError(f"{folder} belongs to a torch without CUDA")
    return found


def needs_of(libraries: list[Path]) -> Needs:
    """Read from the libraries of torch what they ask of NVIDIA's."""
    files: set[str] = set()
    names: dict[str, set[str]] = collections.defaultdict(set)
    for library in libraries:
        needed = re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", library))
        files |= {file for file in needed if not OF_THE_SYSTEM.match(file)}
        for line in output("nm", "-D", "--undefined-only", library).splitlines():
            name, _, version = line.split()[-1].partition("@")
            version = version.lstrip("@")
            if version.startswith(("libcu", "libnv")) or version == "NVSHMEM":
                names[version].add(name)
            elif not version and UNVERSIONED.match(name):
                names[""].add(name)
        if library.name == "libc10_cuda.so":
            looked_up = {name.decode() for name in LOOKED_UP_NAME.findall(library.read_bytes())}
            names[""] |= {name for name in looked_up if not name.startswith(("cuda", "cub"))}
    return Needs(files, names)


def cuda_major(files: set[str]) -> int:
    """Return the major version of CUDA that torch was built with. Raises `BuildError` where the runtime has no layout of it."""
    majors = [int(found[1]) for file in files if (found := re.fullmatch(r"libcudart\.so\.(\d+)", file))]
    if not majors:
        raise UnknownTorchError("torch's libraries need no libcudart: its version of CUDA is not known")
    if majors[0] not in CUDA_VERSIONS:
        known = " and ".join(map(str, CUDA_VERSIONS))
        raise UnknownTorchError(f"torch was built with CUDA {majors[0]}, and the stand-in knows {known}")
    return majors[0]


def stubs_for(names: set[str]) -> str:
    """Write a function in C for each name: it returns success, or a text where torch expects one."""
    lines = ["extern long standin_stub(const char *, int *);"]
    for name in sorted(names):
        if RETURNS_TEXT.search(name) and name != "cuGetErrorString":
            lines.append(f'const char *{name}(void) {{ return "stand-in"; }}')
        else:
            lines.append(f'long {name}(void) {{ static int seen; return standin_stub("{name}", &seen); }}')
    return "\n".join(lines) + "\n"


def versions_for(names: dict[str, set[str]]) -> str:
    """Write the linker's script that gives each name the symbol version it is asked for with."""
    lines = [
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names[version]))} }};"
        for version in sorted(names)
        if version
    ]
    return "\n".join(lines) + "\n"


def build(torch_lib: Path, out: Path) -> str:
    """Build the runtime into a folder. Returns one line on what it consists of; raises `BuildError`."""
    check_tools()
    needs = needs_of(libraries_of(torch_lib))
    major = cuda_major(needs.files)
    out.mkdir(parents=True, exist_ok=True)
    runtime, stubs, versions, target = (
        out / name for name in ("runtime.o", "stubs.c", "versions.map", "libcudastandin.so")
    )
    settings = [f"-DCUDA_MAJOR={major}", f"-DCUDA_VERSION={CUDA_VERSIONS[major]}", f"-DCUDNN_VERSION={CUDNN_VERSION}"]
    # Hidden by default: only what is marked as the interface is seen by torch.
    output("gcc", "-c", "-fPIC", "-O2", "-w", "-fvisibility=hidden", *settings, "-o", runtime, SOURCE)
    defined = {line.split()[-1] for line in output("nm", "--defined-only", "--extern-only", runtime).splitlines()}
    asked = set[str]().union(*needs.names.values())
    stubs.write_text(stubs_for(asked - defined), "utf-8")
    versions.write_text(versions_for(needs.names), "utf-8")
    script = f"-Wl,--version-script={versions}"
    output("gcc", "-shared", "-fPIC", "-O2", "-w", "-o", target, runtime, stubs, script, "-lpthread", "-ldl")
    for name in sorted({*needs.files, *LOOKED_UP}):
        link = out / name
        link.unlink(missing_ok=True)
        link.symlink_to(target.name)
    return f"CUDA {major}: {len(needs.files)} files, {len(asked)} names, {len(asked - defined)} of them stubs"


def install_values(site_packages: Path) -> None:
    """Copy the modules that carry operators out to where the interpreter loads them. Raises `BuildError`."""
    if not site_packages.is_dir():
        raise BuildError(f"{site_packages} is no folder")
    shutil.copy(HERE / "values.py", site_packages / "cuda_standin_values.py")
    shutil.copy(HERE / "hook.py", site_packages / "cuda_standin_hook.py")
    (site_packages / "cuda_standin.pth").write_text("import cuda_standin_hook\n", "utf-8")


def main() -> int:
    """Build and install what the command line asks for, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torch_lib", type=Path, metavar="TORCH_LIB")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--site-packages", type=Path, help="the folder to copy the modules for values to")
    options = parser.parse_args()
    try:
        built = build(options.torch_lib, options.out)
        if options.site_packages is not None:
            install_values(options.site_packages)
    except (BuildError, OSError) as error:
        sys.stderr.write(f"cuda-standin: {error}\n")
        return UNKNOWN_TORCH if isinstance(error, UnknownTorchError) else 1
    sys.stdout.write(f"cuda-standin: {built}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
