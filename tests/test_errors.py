"""Messages are one line of printable characters, whatever was put into them."""

import pytest

from widebnn.errors import LONGEST, StoreError, WidebnnError, check_integer, readable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("naïve 😀", "naïve 😀"),
        ("a" * LONGEST, "a" * LONGEST),
        ("a\nb", r"a\nb"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\u202eabc", r"\u202eabc"),
        ("\ud800", r"\ud800"),
        ("\0", r"\x00"),
    ],
)
def test_what_cannot_be_printed_is_escaped(text, shown):
    assert readable(text) == shown
    for kind in (WidebnnError, StoreError):
        assert str(kind(text)) == shown


@pytest.mark.parametrize("middle", ["x" * 900, "x" * 100_000, "\n" * 500])
def test_long_messages_keep_their_beginning_and_their_end(middle):
    short = readable(f"{'first ' * 50}{middle}{' last' * 50}")
    assert len(short) == LONGEST and " ... " in short
    assert short.startswith("first first") and short.endswith("last last")


def test_numbers_that_no_machine_counts_to_are_refused():
    assert check_integer("seed", 2**63 - 1, 0) == 2**63 - 1
    with pytest.raises(WidebnnError, match="seed must be at most 9223372036854775807, got 1000"):
        check_integer("seed", 10**30, 0)
    with pytest.raises(WidebnnError, match="depth must be at most 10, got 11"):
        check_integer("depth", 11, 1, 10)
