# Sourced by the scripts of this project: finds a Python, and keeps virtual environments in step with requirements/.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
# The leak corpus, where it lies beside the checkout: some tests run its cases.
[ -n "${GPULEAK_CORPUS:-}" ] || [ ! -f "$root/../shared/corpus/run.py" ] || export GPULEAK_CORPUS=$root/../shared/corpus
# Several processes of tests run at a time. Threads of torch's that share the cores with them spin while they wait for one
# another, and took three fifths of the processor time of the tests that train a model. NumPy's OpenBLAS reads it too.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
unset PYTEST_ADDOPTS PYTEST_DISABLE_PLUGIN_AUTOLOAD PYTHONPATH PYTHONHOME

say() { printf 'gpuleak: %s\n' "$*"; }
die() {
  say "$*" >&2
  exit 1
}

# A pyenv shim may be on PATH and fail when run, and a system Python may lack venv: only a trial tells.
usable() {
  "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' </dev/null >/dev/null 2>&1
}

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

# find_version 3.12: the command of a Python of this version; fails where there is none.
find_version() {
  local candidate
  for candidate in "python$1" "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/$1".*/"bin/python$1"; do
    if usable "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  return 1
}

# The Python for everything that needs torch: $PYTHON, else python3.11, else python3, else any other that will do.
find_python() {
  local candidate version
  if [ -n "${PYTHON:-}" ]; then
    usable "$PYTHON" || die "PYTHON=$PYTHON is not a Python from 3.10 up with the modules venv and ensurepip"
    printf '%s\n' "$PYTHON"
    return
  fi
  for candidate in python3.11 python3; do
    if usable "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  for version in 3.12 3.13 3.14 3.10; do
    find_version "$version" && return
  done
  die "found no Python from 3.10 up with the modules venv and ensurepip (on Debian: apt install python3-venv)"
}

# create_venv FOLDER PYTHON: an empty virtual environment of this Python, unless there is one.
create_venv() {
  local inside=$1/bin/python
  if ! usable "$inside" || [ "$(version_of "$inside")" != "$(version_of "$2")" ]; then
    "$2" -m venv --clear "$1"
  fi
}

# ensure_venv FOLDER PYTHON FILE: a virtual environment with this project and what requirements/FILE names.
# Quick where it is there already: a stamp tells whether anything that it was made from has changed since.
ensure_venv() {
  local folder=$1 python=$2 file=$3 stamp
  local inside=$folder/bin/python
  stamp=$("$python" - "$file" "$root" "$root/pyproject.toml" "$root"/requirements/*.txt <<'PY'
import hashlib, pathlib, sys

parts = [sys.version, *sys.argv[1:3], *(pathlib.Path(path).read_text("utf-8") for path in sys.argv[3:])]
print(hashlib.sha256("\0".join(parts).encode()).hexdigest())
PY
  )
  if [ "$(cat "$folder/gpuleak.stamp" 2>/dev/null)" = "$stamp" ] && usable "$inside"; then
    return
  fi
  rm -f "$folder/gpuleak.stamp"
  create_venv "$folder" "$python"
  say "installing requirements/$file into ${folder#"$root"/} (Python $(version_of "$inside")); this is done once"
  if "$inside" -m pip install --quiet -r "$root/requirements/$file" -e "$root"; then
    printf '%s\n' "$stamp" >"$folder/gpuleak.stamp"
  elif [ "$file" = core.txt ]; then
    die "pip could not install requirements/core.txt"
  else
    # Without a stamp, so that it is tried again the next time.
    say "pip could not install requirements/$file (see above); going on with requirements/core.txt, without torch" >&2
    "$inside" -m pip install --quiet -r "$root/requirements/core.txt" -e "$root" ||
      die "pip could not install requirements/core.txt either"
  fi
}

has_torch() { "$1" -c 'import torch' </dev/null >/dev/null 2>&1; }

# compile_package PYTHON: compile once what each process would compile again where PYTHONDONTWRITEBYTECODE is set.
compile_package() {
  [ -z "${PYTHONDONTWRITEBYTECODE:-}" ] ||
    env -u PYTHONDONTWRITEBYTECODE "$1" -m compileall -q "$root/pytest_gpuleak" "$root/tests" || true
}

# keep_bytecode PYTHON: compile once what hundreds of runs inside the tests would each compile again where
# PYTHONDONTWRITEBYTECODE is set. The tests themselves run with it as it is: they write files that change within a second.
# One file is collected, in a worker of pytest-xdist, for what pytest rewrites in each run: conftest.py, the plugin and xdist
# (0.3 s in each process of a run with -n). A part collects its own files.
keep_bytecode() {
  [ -n "${PYTHONDONTWRITEBYTECODE:-}" ] || return 0
  compile_package "$1"
  env -u PYTHONDONTWRITEBYTECODE "$1" -m pytest -q -n1 -k none_has_this_name "$root/tests/test_laws.py" >/dev/null 2>&1 || true
}

# ensure_others PYTHON: environments inside .venv, which must be there, for the tests without torch on every other Python.
# Sets `others` and `missing`, the versions that this machine has and lacks.
ensure_others() {
  local version other
  others=()
  missing=()
  for version in 3.10 3.11 3.12 3.13 3.14 3.15; do
    [ "$version" = "$(version_of "$1")" ] && continue
    if other=$(find_version "$version"); then
      ensure_venv "$root/.venv/core-$version" "$other" core.txt
      others+=("$version")
    else
      missing+=("$version")
    fi
  done
}
