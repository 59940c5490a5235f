"""The fingerprint of a finding: equal on every machine and in every order of the tests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Holder

FINGERPRINT_DIGITS = 16

MAX_EDGE_READ = 2_000
"""Characters of a root or reference that enter a fingerprint. Limited, since a dict key may be megabytes of text."""

_ID = r"0x[0-9a-fA-F]+|(?<![0-9A-Za-z])[0-9a-f]{8}(?:(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]*)(?![0-9A-Za-z])"
"""An address, a UUID, or another number in hexadecimal digits of eight digits and more."""


def fingerprint(kind: str, holder: Holder | None) -> str:
    """Return a hex digest of kinds, names and references, without what may differ: paths, addresses, ids, numbers.

    The root's name keeps its digits: ``HISTORY_V1`` and ``HISTORY_V2`` are two leaks. References below it do not, of which a
    run may add ``[12]`` or ``.buffer_12``, nor what counts up (``Thread-4``, torch.compile's ``__compiled_fn_3``, and what
    TorchScript puts into the names of all classes but the first of a name: ``___torch_mangle_7.Net``).
    """
    parts = [kind]
    if holder is not None:
        parts += [holder.kind, _name(holder.root), *(_nameless(step.edge) for step in holder.path)]
    return digest_of(*parts, digits=FINGERPRINT_DIGITS)


def digest_of(*parts: str, digits: int = 32) -> str:
    """Return a hex digest of texts, in their order."""
    import hashlib

    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:digits]


def _nameless(text: str) -> str:
    return re.sub(rf"{_ID}|\d+", "#", _stable(text))


def _name(root: str) -> str:
    text = re.sub(r"\[[^\]]*\]?", lambda item: _nameless(item[0]), _stable(root))  # a test's parameters
    return re.sub(rf"{_ID}|(?<!\w)\d+(?:_\d+)?|(?<=__compiled_fn_)\w+", "#", text)


def _stable(text: str) -> str:
    without_paths = re.sub(r"(['\"])[^'\"]*[/\\][^'\"]*\1", "'path'", text[:MAX_EDGE_READ])
    return re.sub(r"\b___torch_mangle_\d+\.", "", without_paths)
