from dataclasses import fields, replace

import pytest

from regard.record import HeadScores
from regard.record.roles import ENOUGH, LEAD, NEAR, WIDE, PatternScores, Role, lead, role_of

UNIFORM = PatternScores(
    previous_token=0.1,
    first_token=0.1,
    current_token=0.1,
    induction=0.05,
    induction_control=0.05,
    induction_queries=ENOUGH,
    duplicate_token=0.05,
    duplicate_token_control=0.05,
    duplicate_token_queries=ENOUGH,
    spread=1.0,
    entropy=2.0,
    distance=20.0,
)
PLAIN = replace(UNIFORM, spread=0.5)  # no lead anywhere, neither spread nor near


def share(named):
    """The least share whose lead reaches the threshold."""
    uniform = getattr(UNIFORM, named)
    return uniform + LEAD * (1 - uniform)


@pytest.mark.parametrize(
    ("named", "role"),
    [
        ("previous_token", Role.PREVIOUS),
        ("first_token", Role.FIRST),
        ("current_token", Role.CURRENT),
        ("induction", Role.INDUCTION),
        ("duplicate_token", Role.DUPLICATE),
    ],
)
def test_a_head_is_named_after_a_share_that_leads_by_enough(named, role):
    assert role_of(replace(PLAIN, **{named: share(named) + 1e-9}), UNIFORM) is role
    assert role_of(replace(PLAIN, **{named: share(named) - 1e-9}), UNIFORM) is Role.MIXED


def test_the_greatest_lead_wins():
    assert role_of(replace(PLAIN, previous_token=0.4, first_token=0.5), UNIFORM) is Role.FIRST
    assert role_of(replace(PLAIN, previous_token=0.5, first_token=0.4), UNIFORM) is Role.PREVIOUS
    assert role_of(replace(PLAIN, induction=0.5, duplicate_token=0.4), UNIFORM) is Role.INDUCTION


def test_repeats_come_before_where_the_head_rests_meanwhile():
    assert role_of(replace(PLAIN, first_token=0.9, induction=0.4), UNIFORM) is Role.INDUCTION


@pytest.mark.parametrize("named", ["induction", "duplicate_token"])
def test_repeats_name_no_head_that_attends_to_the_same_keys_from_other_queries(named):
    control = 0.5
    led = control + LEAD * (1 - control)
    column = replace(PLAIN, **{named: led - 1e-9, f"{named}_control": control})
    assert role_of(column, UNIFORM) is Role.MIXED
    actual = replace(PLAIN, **{named: led + 1e-9, f"{named}_control": control})
    assert (
        role_of(actual, UNIFORM)
        is {"induction": Role.INDUCTION, "duplicate_token": Role.DUPLICATE}[named]
    )


@pytest.mark.parametrize("named", ["induction", "duplicate_token"])
def test_repeats_name_no_head_after_too_few_queries(named):
    few = replace(PLAIN, **{named: 0.9, f"{named}_queries": ENOUGH - 1})
    assert role_of(few, UNIFORM) is Role.MIXED


def test_without_repeats_no_head_is_named_after_them():
    none = dict.fromkeys(
        ["induction", "induction_control", "duplicate_token", "duplicate_token_control"]
    )
    assert role_of(replace(PLAIN, **none, first_token=0.6), replace(UNIFORM, **none)) is Role.FIRST


def test_without_a_lead_a_head_is_spread_local_or_mixed():
    assert role_of(UNIFORM, UNIFORM) is Role.SPREAD
    assert role_of(replace(PLAIN, spread=WIDE), UNIFORM) is Role.SPREAD
    near = NEAR * UNIFORM.distance
    assert role_of(replace(PLAIN, distance=near - 1e-9), UNIFORM) is Role.LOCAL
    assert role_of(replace(PLAIN, distance=near), UNIFORM) is Role.MIXED


def test_one_token_leaves_no_choice():
    assert role_of(PatternScores(), PatternScores()) is Role.ALONE


def test_on_a_short_text_a_large_share_is_no_lead():
    uniform = replace(UNIFORM, first_token=0.5)
    assert role_of(replace(PLAIN, first_token=0.55), uniform) is Role.MIXED


@pytest.mark.parametrize(
    ("share", "uniform", "expected"),
    [(1.0, 0.3, 1.0), (0.3, 0.3, 0.0), (0.0, 0.5, -1.0), (1.0, 1.0, 0.0)],
)
def test_lead_is_the_part_of_what_a_uniform_head_leaves(share, uniform, expected):
    assert lead(share, uniform) == expected


def test_every_role_has_a_meaning_of_its_own():
    assert len({role.meaning for role in Role}) == len(Role)


def test_a_role_that_rests_on_a_share_is_called_as_the_score_is():
    scores = {field.name for field in fields(HeadScores)}
    shares = {role for role in Role if role.score is not None}
    assert shares == {
        Role.INDUCTION, Role.DUPLICATE, Role.PREVIOUS, Role.CURRENT, Role.FIRST,
    }  # fmt: skip
    assert {role.value.replace(" ", "_") for role in shares} <= scores
    assert not {role.value.replace(" ", "_") for role in set(Role) - shares} & scores
