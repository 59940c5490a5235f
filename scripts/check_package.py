"""Builds wheel and sdist, and checks what a user gets: metadata, data files, types, and tests that pass from the sdist.

    python scripts/check_package.py                      # in a temporary folder
    python scripts/check_package.py --keep dist          # and keep what was built
    python scripts/check_package.py --tag v0.2.0         # and the tag must name the version

Needs what requirements/core.txt and requirements/checks.txt name. Prints one line a fault; the exit status is 1 where
there is one.
"""

from __future__ import annotations

import argparse
import email
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PTH = "pytest_gpuleak.pth"
"""The file beside the package."""
IN_WHEEL = ("py.typed", "reports/schema/report-1.schema.json", "reports/templates/report.html",
            "reports/rules.toml", "model/codes/kinds.toml", "hookspecs.py")  # fmt: skip
"""What the wheel must have of the package beside its modules."""
IN_SDIST = ("README.md", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs/", "examples/", "tests/",
            "scripts/test", "requirements/core.txt", ".ci/run")  # fmt: skip
TESTS = ("-m", "not torch and not slow", "tests/acceptance/api", "tests/cli", "tests/model")
"""The tests that are run from the sdist, against the installed wheel."""


def main() -> int:
    """Build, check, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="the folder that what was built is copied to")
    parser.add_argument("--tag", help="the tag of the release, such as v0.2.0")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuleak-package-") as temporary:
        folder = Path(temporary)
        wheel, sdist = build(folder / "dist")
        faults = [*check_wheel(wheel), *check_sdist(sdist)]
        if options.tag is not None and options.tag != f"v{version()}":
            faults.append(f"the tag {options.tag} does not name the version, which is {version()}")
        if not faults:
            faults += check_tests(wheel, sdist, folder)
        for fault in faults:
            print(f"package: {fault}")
        if not faults:
            print(f"package: {wheel.name} and {sdist.name} are complete, and the tests pass from the sdist")
            if options.keep is not None:
                options.keep.mkdir(parents=True, exist_ok=True)
                for file in (wheel, sdist):
                    shutil.copy(file, options.keep)
    return 1 if faults else 0


def version() -> str:
    """Return the version that the sources state."""
    text = (ROOT / "pytest_gpuleak/model/version.py").read_text("utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found is not None, text
    return found.group(1)


def build(folder: Path) -> tuple[Path, Path]:
    """Build both, the wheel from the sdist as PyPI's users would."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def check_wheel(wheel: Path) -> list[str]:
    """Return what is wrong with the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata_name,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        (entries_name,) = [name for name in names if name.endswith(".dist-info/entry_points.txt")]
        metadata = email.message_from_string(archive.read(metadata_name).decode())
        entries = archive.read(entries_name).decode()
    faults = [
        f"the wheel has no {wanted}"
        for wanted in IN_WHEEL
        if not any(name.startswith(f"pytest_gpuleak/{wanted}") for name in names)
    ]
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "pytest_gpuleak").rglob("*.py")}
    faults += [f"the wheel has no {module}" for module in sorted(modules - set(names))]
    faults += [
        f"the wheel has {name}, which is no part of it"
        for name in names
        if not name.startswith(("pytest_gpuleak/", f"pytest_gpuleak-{version()}.dist-info/")) and name != PTH
    ]
    if PTH not in names:
        faults.append(f"the wheel has no {PTH}, which lets agents into the processes of `subprocess`")
    if metadata["Version"] != version():
        faults.append(f"the wheel's version is {metadata['Version']}, the sources' {version()}")
    for field in ("Summary", "Requires-Python", "Description-Content-Type"):
        if not metadata[field]:
            faults.append(f"the wheel's metadata has no {field}")
    if "torch" in {requirement for requirement in metadata.get_all("Requires-Dist", []) if "extra" not in requirement}:
        faults.append("the wheel requires torch, which is the user's")
    for entry in ("gpuleak = pytest_gpuleak.plugin", "gpuleak = pytest_gpuleak.cli:main"):
        if entry not in entries:
            faults.append(f"the wheel has no entry point {entry}")
    return faults


def check_sdist(sdist: Path) -> list[str]:
    """Return what is wrong with the sdist."""
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    return [f"the sdist has no {wanted}" for wanted in IN_SDIST if not any(name.startswith(wanted) for name in names)]


def check_tests(wheel: Path, sdist: Path, folder: Path) -> list[str]:
    """Run tests of the unpacked sdist against the wheel, in a fresh environment; return what failed."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (unpacked,) = [path for path in folder.glob("pytest_gpuleak-*") if path.is_dir()]
    shutil.rmtree(unpacked / "pytest_gpuleak")  # the wheel's is to be tested
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    bin_folder = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    python = str(bin_folder / "python")
    requirements = str(unpacked / "requirements/core.txt")
    subprocess.run([python, "-m", "pip", "install", "-q", "-r", requirements, str(wheel)], check=True)
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *TESTS],
        cwd=unpacked,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return []
    print(done.stdout[-4000:], done.stderr[-2000:])
    return ["tests from the sdist failed, see above"]


if __name__ == "__main__":
    sys.exit(main())
