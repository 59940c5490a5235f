"""Trace during a re-run which line creates which storage."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpuleak.adapters.protocol import ArrayFramework, OriginLog


@contextlib.contextmanager
def traced(
    frameworks: Sequence[ArrayFramework], is_user_file: Callable[[str], bool], logs: list[OriginLog]
) -> Iterator[None]:
    """Let every imported framework note the lines that create storages; one log per framework goes to `logs`."""
    with contextlib.ExitStack() as stack:
        for framework in frameworks:
            if framework.array_type() is not None:
                logs.append(stack.enter_context(framework.trace_origins(is_user_file)))
        yield
