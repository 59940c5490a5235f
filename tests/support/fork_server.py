"""A process that has imported pytest, and the modules that its arguments name, and forks for each run or program (`forked.py`).

Each line of its standard input asks for a run. It answers with a line that has the new process's id, and with one that has
its exit status. It is run as a script, and has imported nothing of this project but what it is asked to.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import random
import re
import runpy
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

PLUGINS = ("xdist.plugin", "xdist.looponfail", "pytest_timeout")
"""What pytest loads in each run, where it is installed."""
PACKAGE = "pytest_gpuleak"
ON_DEMAND = re.compile(r"^(?:import|from) (?:click|jinja2|psutil)\b|^if __name__ ==", re.MULTILINE)
"""What a module of the package has that few runs import: it brings a library with it."""


def read_line() -> bytes:
    """Read a request, or nothing where there will be none; nothing is read ahead, which a fork would read as well."""
    line = b""
    while not line.endswith(b"\n"):
        read = os.read(0, 1)
        if not read:
            return b""
        line += read
    return line


def wait_for_a_run() -> dict[str, Any]:
    """Return the request that this process was forked for. The server itself stays inside until its input ends."""
    while line := read_line():
        pid = os.fork()
        if pid == 0:
            request = json.loads(line)
            assert isinstance(request, dict)
            return request
        # Whoever asked may be gone.
        with contextlib.suppress(BrokenPipeError):
            os.write(1, b"%d\n" % pid)
            os.write(1, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def become(request: dict[str, Any], installed: list[str]) -> None:
    """Set up what a new process would have found: streams, variables, folder, arguments, and where modules are."""
    streams = [(os.devnull, os.O_RDONLY), *((path, os.O_WRONLY) for path in request["output"])]
    for number, (path, flags) in enumerate(streams):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = dict.fromkeys([request["folder"], *map(os.path.abspath, named), *installed])
    sys.orig_argv[:] = request["arguments"]
    sys.argv[:] = request["arguments"][1:]
    random.seed()


def import_all(modules: list[str]) -> None:
    """Import these modules, and of the package all that a run under the plugin may import."""
    for module in modules:
        if module != PACKAGE:
            importlib.import_module(module)
    if PACKAGE not in modules:
        return
    root = Path(__file__).resolve().parents[2]
    sys.path.insert(0, str(root))
    importlib.import_module("tests.support.distributions").remember()
    rewrite_roots()
    files = [file for file in sorted((root / PACKAGE).rglob("*.py")) if not ON_DEMAND.search(file.read_text("utf-8"))]
    names = [".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for file in files]
    for name in (*PLUGINS, *(name for name in names if not name.startswith((f"{PACKAGE}.cli", f"{PACKAGE}.child")))):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    del sys.path[0]


def rewrite_roots() -> None:
    """Import pytest's own plugins, and as pytest would the packages of others, or it warned that it could not do so."""
    from _pytest.assertion import install_importhook
    from _pytest.config import get_config

    config = get_config()
    hook = install_importhook(config)
    for name in dict.fromkeys(plugin.partition(".")[0] for plugin in (PACKAGE, *PLUGINS)):
        hook.mark_rewrite(name)
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    config._ensure_unconfigure()  # which takes the hook away


def end(status: int) -> NoReturn:
    """End as the interpreter does, but that it takes no module apart: with torch that was half of a short run."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Serve, and be pytest or the program asked for in each process forked."""
    if os.fork():  # the server is not the child of whoever started it
        os._exit(0)
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    installed = [entry for entry in sys.path[1:] if entry not in map(os.path.abspath, filter(None, named))]
    modules = sys.argv[1:]
    import_all(["pytest", *modules])
    become(wait_for_a_run(), installed)
    try:
        if sys.argv[0] == "-mpytest":
            runpy.run_module("pytest", run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        if PACKAGE not in modules or not isinstance(ended.code, int):
            raise  # runs with the fixture `cold` show how the interpreter itself ends
        end(ended.code)


if __name__ == "__main__":
    main()
