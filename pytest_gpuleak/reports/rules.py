"""The kinds of findings as rules, for SARIF and code quality reports. `rules.toml` has their texts."""

from __future__ import annotations

import dataclasses
from importlib import resources

from pytest_gpuleak.model.findings import KIND_CODES
from pytest_gpuleak.model.text import clean_text, parse_toml

STALE_RULE = "gpu-leak/stale"
"""Rule of a baseline's entry whose leak is gone."""

UNSHOWN_RULE = "gpu-leak/unshown"
"""Rule of a finding that a report fails to render. `RULES` does not list it: it is no statement on the code."""

_KIND_LIMIT = 40


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rule."""

    id: str
    name: str
    title: str
    text: str
    advice: str

    @property
    def help(self) -> str:
        """Return text and advice as Markdown, and where the page of the kind's code is."""
        code = KIND_CODES.get(self.id.rpartition("/")[2])
        return f"{self.text}\n\n{self.advice}" + (f"\n\n`gpuleak explain {code}` tells more." if code else "")


def rule_id(kind: str) -> str:
    """Return the id of the rule for a kind of finding."""
    return f"gpu-leak/{clean_text(kind, _KIND_LIMIT)}"


def _read() -> tuple[Rule, ...]:
    rows = parse_toml((resources.files("pytest_gpuleak.reports") / "rules.toml").read_text(encoding="utf-8"))
    return tuple(
        Rule(rule_id(kind), **{field: " ".join(text.split()) for field, text in row.items()})
        for kind, row in rows.items()
    )


RULES = _read()
"""Every rule; the last is that of stale entries."""

RULE_INDEX = {rule.id: index for index, rule in enumerate(RULES)}
