import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.view.tokens import readable, visible


@given(st.text())
def test_nothing_invisible_is_left(token):
    shown = visible(token)
    assert shown
    assert all(unicodedata.category(sign)[0] not in "CZ" for sign in shown)


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("\x1b[31m", "<U+001B>[31m"),
        ("\u202eabc", "<U+202E>abc"),
        ("\u0301", "◌\u0301"),
        ("\u00a0", "<U+00A0>"),
        ("😀", "😀"),
        ("שלום", "שלום"),
    ],
)
def test_control_characters_are_written_out(token, shown):
    assert visible(token) == shown


@given(st.text(st.characters(exclude_characters="␣∅◌", exclude_categories=["M"]), min_size=1))
def test_readable_differs_in_spaces_only(token):
    assert readable(token).replace(" ", "␣") == visible(token)
