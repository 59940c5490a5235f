"""All codes, and each one's page as Markdown."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.model.codes.caches import CACHES
from pytest_gpuleak.model.codes.callables import CALLABLES
from pytest_gpuleak.model.codes.frameworks import FRAMEWORKS
from pytest_gpuleak.model.codes.kinds import KINDS
from pytest_gpuleak.model.codes.places import PLACES
from pytest_gpuleak.model.codes.pytest_objects import PYTEST_OBJECTS
from pytest_gpuleak.model.codes.recorders import RECORDERS
from pytest_gpuleak.model.codes.running import RUNNING
from pytest_gpuleak.model.codes.tensors import TENSORS

if TYPE_CHECKING:
    from pytest_gpuleak.model.codes.entry import Code

TOPICS: Final = {
    "Kinds of findings": KINDS,
    "Caches": CACHES,
    "What torch keeps": TENSORS,
    "Stored functions": CALLABLES,
    "What still runs or waits": RUNNING,
    "What the standard library keeps": RECORDERS,
    "What pytest keeps": PYTEST_OBJECTS,
    "Places that outlive a test": PLACES,
    "What other frameworks keep": FRAMEWORKS,
}
CODES: Final[dict[str, Code]] = {code.id: code for topic in TOPICS.values() for code in topic}

_WIDTH = 80


def title_of(code: str) -> str:
    """Return a code with its title; the code alone where it is one of a later release."""
    return f"{code} {CODES[code].title}" if code in CODES else code


def page(code: Code) -> str:
    """Write the page of a code."""
    parts = [
        f"# {code.id} {code.title}",
        _prose(code.pattern),
        "## What leaks",
        f"```python\n{code.leaks}```",
        "## Why",
        _prose(code.why),
        "## The fix",
        _prose(code.fix),
        f"```python\n{code.fixed}```",
    ]
    if code.seen:
        sightings = [f"- {_prose(f'{one.release}: {one.text}', indent='  ')}\n  <{one.url}>" for one in code.seen]
        parts += ["## Where it was found", "\n".join(sightings)]
    return "\n\n".join(parts) + "\n"


def _prose(text: str, indent: str = "") -> str:
    return textwrap.fill(
        " ".join(text.split()), _WIDTH - len(indent), break_on_hyphens=False, break_long_words=False
    ).replace("\n", "\n" + indent)
