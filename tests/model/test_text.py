from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuleak.model.text import clean_text, count_of, format_bytes, shorten_middle, width_of, wrap_text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain", "plain"),
        ("größe λ 模型", "größe λ 模型"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x1b[31mred\x1b[0m\x07", r"\x1b[31mred\x1b[0m\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("a\u202egpj.exe", r"a\u202egpj.exe"),
        ("\u2028\u200b\xa0", r"\u2028\u200b\xa0"),
        ("\udc80", r"\udc80"),
        ("\x00", r"\x00"),
    ],
)
def test_what_cannot_be_printed_is_shown_escaped(text: str, cleaned: str) -> None:
    assert clean_text(text, 100) == cleaned


def test_cut_at_the_limit() -> None:
    assert clean_text("x" * 10, 10) == "x" * 10
    assert clean_text("x" * 11, 10) == "x" * 7 + "..."
    assert clean_text("\n" * 10, 10) == r"\n\n\n\..."
    assert clean_text("abc", 2) == "..."


def test_a_subclass_s_own_methods_are_not_asked() -> None:
    class Hostile(str):
        def isprintable(self) -> bool:
            raise RuntimeError

        def __getitem__(self, key: object) -> str:
            raise RuntimeError

        def __len__(self) -> int:
            raise RuntimeError

    assert clean_text(Hostile("ab\n"), 10) == r"ab\n"
    assert type(clean_text(Hostile("ab"), 10)) is str


@given(st.text(st.characters()), st.integers(3, 50))
def test_any_text_comes_out_printable_and_short(text: str, limit: int) -> None:
    cleaned = clean_text(text, limit)
    assert cleaned.isprintable()
    assert len(cleaned) <= limit
    cleaned.encode("utf-8")
    assert clean_text(cleaned, limit) == cleaned


@given(st.text(), st.integers(10, 50))
def test_shortened_text_keeps_both_ends(text: str, limit: int) -> None:
    short = shorten_middle(text, limit)
    assert width_of(short) <= limit
    if short != text:
        head, tail = short.split(" ... ")[0], short.split(" ... ")[-1]
        assert text.startswith(head)
        assert text.endswith(tail)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1024 * 1024 - 1, "1.0 MiB"),
        (4 * 1024**2, "4.0 MiB"),
        (13 * 1024**3, "13.0 GiB"),
        (5000 * 1024**4, "5000.0 TiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_counts() -> None:
    assert [count_of(number, "tensor") for number in (0, 1, 2)] == ["0 tensors", "1 tensor", "2 tensors"]


@pytest.mark.parametrize("rest", ["boo of x.py", "boo of \u00fc.py"])
@pytest.mark.parametrize("width", range(20, 60))
def test_no_line_begins_like_a_command_of_githubs_runner(width: int, rest: str) -> None:
    lines = wrap_text(f"it raised in setup: {'x' * 17} ::error::{rest}", width, indent="  ", further="    ")
    assert not any(line.lstrip().startswith("::") for line in lines)
    assert "error" in "".join(lines)
