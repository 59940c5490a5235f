from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuleak.model.policy import Policy, Settings
from pytest_gpuleak.model.text import MIB, parse_size
from pytest_gpuleak.session.config.settings import build_policy
from pytest_gpuleak.session.config.values import kind_of
from pytest_gpuleak.session.options import OPTIONS, Option


@pytest.mark.parametrize(
    ("given_size", "size"),
    [
        (0, 0),
        (3, 3 * MIB),
        (0.5, MIB // 2),
        ("0", 0),
        ("1", MIB),
        (" 2.5 ", 5 * MIB // 2),
        (".5", MIB // 2),
        ("512KiB", 512 * 1024),
        ("1.5GiB", 3 * 512 * MIB),
        ("1.5 gib", 3 * 512 * MIB),
        ("100 MB", 100 * MIB),
        ("7kb", 7 * 1024),
        ("1TiB", MIB * MIB),
        ("2 GB", 2048 * MIB),
        ("17B", 17),
        ("1.4B", 1),
    ],
)
def test_size_in_bytes(given_size: object, size: int) -> None:
    assert parse_size(given_size) == size
    assert type(parse_size(given_size)) is int


@pytest.mark.parametrize(
    "bad",
    [
        -1,
        -0.5,
        math.nan,
        math.inf,
        2**70,
        1e300,
        True,
        False,
        None,
        [1],
        b"1",
        "",
        " ",
        "-1",
        "+1",
        "nan",
        "inf",
        "1e3",
        "1_000",
        "1,5",
        "1.2.3",
        ".",
        ".MiB",
        "MiB",
        "1M",
        "1XB",
        "1 parsec",
        "1MiB2",
        "1 Mi B",
        "٣",
        "9" * 5000,
    ],
)
def test_what_is_no_size(bad: object) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse_size(bad)


@given(st.text() | st.integers() | st.floats() | st.from_regex(r"\d+(\.\d+)? ?[kKmMgG]i?[bB]", fullmatch=True))
def test_any_text_or_number_is_a_size_or_a_value_error(value: object) -> None:
    try:
        size = parse_size(value)
    except ValueError:
        return
    assert size >= 0


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.ini)
def test_the_default_in_the_help_is_the_policy_s_or_the_settings_own(option: Option) -> None:
    settings = Settings(enabled=False, policy=Policy())
    own = {**settings._asdict(), **settings.policy._asdict()}[option.target]
    assert kind_of(option).parse(option.default) == own if option.default else not own


def test_every_field_of_the_policy_and_the_settings_has_an_option() -> None:
    # Of several options, of the marker `allow_gpu_leak`, and of `--gpu-leak-host-mb`.
    made = {"policy", "named", "allowed", "array_bytes"}
    targets = [option.target for option in OPTIONS]
    assert sorted(targets) == sorted({*Policy._fields, *Settings._fields} - made)


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.marker], ids=lambda option: option.name)
def test_what_the_marker_takes_is_of_a_test_s_policy(option: Option) -> None:
    assert getattr(build_policy({option.name: kind_of(option).parse(option.default)}), option.target) is not None
