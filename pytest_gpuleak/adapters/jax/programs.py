"""List the programs that JAX has compiled and keeps."""

from __future__ import annotations

from contextlib import suppress

from pytest_gpuleak.adapters.jax.lookup import loaded_backends


def program_names() -> list[str]:
    """Return the names of the compiled programs that are alive: ``jit_step``."""
    names: list[str] = []
    for client in loaded_backends():
        with suppress(Exception):  # a plugin that does not list its programs
            for program in client.live_executables():
                names.append(_name(program))
    return names


def _name(program: object) -> str:
    try:
        return str(program.hlo_modules()[0].name)  # type: ignore[attr-defined] # a LoadedExecutable of jaxlib
    except Exception:  # noqa: BLE001 - a program loaded from a file may have no module
        return "a program without a name"
