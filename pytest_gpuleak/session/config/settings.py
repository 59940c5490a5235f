"""Read the run's settings from the command line and the ini."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.policy import Policy, Settings
from pytest_gpuleak.reports.formats import why_not_accepted
from pytest_gpuleak.session.config.given_values import find_given, is_enabled, read_value
from pytest_gpuleak.session.config.values import show
from pytest_gpuleak.session.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuleak.session.config.given_values import Given

FAILING = ("strict", "fail_stale", "no_init_at_collection")
"""Options that fail a run, which `--gpu-leak-warn` switches off."""

_POLICY_FIELDS = {option.name: option.target for option in OPTIONS if option.target in Policy._fields}


def read_settings(config: pytest.Config) -> Settings:
    """Read the run's settings. Raises pytest.UsageError for a value or a report path that is not accepted."""
    enabled = is_enabled(config)
    # An xdist worker writes no report, and may run on a machine without the folder.
    writes = enabled and not hasattr(config, "workerinput")
    named: dict[str, Any] = {}
    of_the_run: dict[str, Any] = {}
    for option in OPTIONS:
        given = find_given(config, option.name)
        if given is None:
            continue
        if option.name in _POLICY_FIELDS:
            named[option.name] = given.value
        elif option.kind == "paths":
            of_the_run[option.target] = _report_paths(given) if writes else ()
        elif option.kind in ("file", "folder") and given.value is not None:
            of_the_run[option.target] = given.folder / given.value
        else:
            of_the_run[option.target] = given.value
    if of_the_run.get("warn"):
        of_the_run.update(dict.fromkeys(FAILING, False))
    return Settings(**{**of_the_run, "enabled": enabled, "policy": build_policy(named), "named": named})


def read_scan(config: pytest.Config) -> str:
    """Read only the detection strategy. Raises pytest.UsageError for a value that is not accepted."""
    return read_value(config, "scan") or Policy().scan


def build_policy(named: Mapping[str, Any]) -> Policy:
    """Build the policy from values by the options' names."""
    policy = Policy(**{_POLICY_FIELDS[name]: value for name, value in named.items()})
    if "host_mb" in named:
        policy = policy._replace(array_bytes=policy.host_bytes)
    # Where only one of the pair is named, growth is judged by it alone.
    if "mb" in named and "tensors" not in named:
        return policy._replace(growing_tensors=None)
    if "tensors" in named and "mb" not in named:
        return policy._replace(growing_bytes=None)
    return policy


def _report_paths(given: Given) -> tuple[Path, ...]:
    paths = {given.folder / text: text for text in given.value}
    for path, text in paths.items():
        why = why_not_accepted(path, folder_is_made=True)
        if why is not None:
            raise pytest.UsageError(f"{given.place}: {show(text)} {why}")
    return tuple(paths)
