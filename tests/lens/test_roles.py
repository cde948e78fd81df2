from dataclasses import fields

import pytest

from regard.lens import HeadScores
from regard.lens.naming.roles import ENOUGH, LEAD, MOSTLY, NEAR, WIDE, Evidence, Role, role_of

RELATIONS = (
    *(Role.INDUCTION, Role.DUPLICATE),
    *(Role.PREVIOUS, Role.NEXT, Role.CURRENT, Role.SEPARATOR),
)


def evidence(score, margin=0.0, queries=29):
    return Evidence(score=score, margin=margin, queries=queries)


PLAIN = dict.fromkeys(RELATIONS, evidence(0.0)) | {
    Role.SPREAD: evidence(WIDE - 1e-9),
    Role.LOCAL: evidence(1 - NEAR - 1e-9),
}  # no lead anywhere, neither spread nor near


@pytest.mark.parametrize("role", RELATIONS)
def test_a_head_is_named_after_a_lead_of_which_the_whole_interval_is_high_enough(role):
    assert role_of(PLAIN | {role: evidence(LEAD + 0.1, 0.1 - 1e-9)}) == (role, None)
    between = (Role.BETWEEN, role)
    assert role_of(PLAIN | {role: evidence(LEAD + 0.1, 0.1 + 1e-9)}) == between
    assert role_of(PLAIN | {role: evidence(LEAD - 0.1, 0.1 + 1e-9)}) == between
    assert role_of(PLAIN | {role: evidence(LEAD - 0.1, 0.1 - 1e-9)}) == (Role.MIXED, None)


@pytest.mark.parametrize("role", RELATIONS)
def test_many_queries_near_the_limit_are_between_two_names_and_few_are_too_short_a_text(role):
    """As of 133 queries, with 0.22 ± 0.03: more text would move neither the score nor the limit."""
    assert role_of(PLAIN | {role: evidence(0.22, 0.03, 133)}) == (Role.BETWEEN, role)
    assert role_of(PLAIN | {role: evidence(LEAD, LEAD, 29)}) == (Role.BETWEEN, role)
    assert role_of(PLAIN | {role: evidence(LEAD, LEAD + 1e-9, 29)}) == (Role.TOO_SHORT, role)
    assert role_of(PLAIN | {role: evidence(0.74, None, 6)}) == (Role.TOO_SHORT, role)


@pytest.mark.parametrize("role", RELATIONS)
def test_without_an_interval_no_head_is_named(role):
    assert role_of(PLAIN | {role: evidence(0.9, None, 5)}) == (Role.TOO_SHORT, role)
    assert role_of(PLAIN | {role: evidence(LEAD - 1e-9, None, 5)}) == (Role.MIXED, None)


def test_the_greatest_lead_wins():
    pair = {Role.NEXT: evidence(0.5), Role.PREVIOUS: evidence(0.4)}
    assert role_of(PLAIN | pair) == (Role.NEXT, None)
    pair = {Role.INDUCTION: evidence(0.5), Role.DUPLICATE: evidence(0.4)}
    assert role_of(PLAIN | pair) == (Role.INDUCTION, None)
    pair = {Role.INDUCTION: evidence(0.5, 0.4), Role.DUPLICATE: evidence(0.4)}
    assert role_of(PLAIN | pair) == (Role.DUPLICATE, None)


def test_repeats_come_before_where_the_head_rests_meanwhile():
    resting = PLAIN | {Role.FIRST: evidence(0.9)}
    assert role_of(resting | {Role.INDUCTION: evidence(0.4)}) == (Role.INDUCTION, None)
    assert role_of(resting | {Role.INDUCTION: evidence(0.4, 0.3)}) == (Role.FIRST, Role.INDUCTION)


def test_the_first_token_comes_last_and_takes_half_of_the_weight():
    """Other relations are measured beside it, and a head that rests a little has a shape."""
    for role in RELATIONS:
        pair = {Role.FIRST: evidence(0.99), role: evidence(0.3)}
        assert role_of(PLAIN | pair) == (role, None)
    assert role_of(PLAIN | {Role.FIRST: evidence(MOSTLY)}) == (Role.FIRST, None)
    assert role_of(PLAIN | {Role.FIRST: evidence(MOSTLY - 1e-9)}) == (Role.MIXED, None)
    near = {Role.LOCAL: evidence(1 - NEAR), Role.FIRST: evidence(0.22, 0.03, 133)}
    assert role_of(PLAIN | near) == (Role.LOCAL, None)
    few = PLAIN | {Role.FIRST: evidence(0.9, None, 6)}
    assert role_of(few) == (Role.TOO_SHORT, Role.FIRST)


def test_without_repeats_no_head_is_named_after_them():
    places = {role: PLAIN[role] for role in set(PLAIN) - {Role.INDUCTION, Role.DUPLICATE}}
    assert role_of(places) == (Role.MIXED, None)
    assert role_of(places | {Role.FIRST: evidence(0.6)}) == (Role.FIRST, None)


def test_without_a_lead_a_head_is_spread_local_or_mixed():
    spread, local = {Role.SPREAD: evidence(WIDE)}, {Role.LOCAL: evidence(1 - NEAR)}
    assert role_of(PLAIN | spread | local) == (Role.SPREAD, None)
    assert role_of(PLAIN | local) == (Role.LOCAL, None)
    assert role_of(PLAIN) == (Role.MIXED, None)
    few = {Role.INDUCTION: evidence(0.4, 0.3)}
    assert role_of(PLAIN | spread | few) == (Role.SPREAD, Role.INDUCTION)


def test_a_short_text_is_too_short_to_tell():
    short = dict.fromkeys(PLAIN, evidence(1.0, None, ENOUGH - 1))
    assert role_of(short)[0] is Role.TOO_SHORT
    nothing = dict.fromkeys(PLAIN, evidence(0.0, None, ENOUGH - 1))
    assert role_of(nothing) == (Role.TOO_SHORT, None)


def test_one_token_leaves_no_choice():
    assert role_of({}) == (Role.ALONE, None)


def test_every_role_has_a_meaning_of_its_own():
    assert len({role.meaning for role in Role}) == len(Role)


def test_a_role_that_rests_on_a_share_is_called_as_the_score_is():
    scores = {field.name for field in fields(HeadScores)}
    named = {*RELATIONS, Role.FIRST}
    assert {role for role in Role if role.score is not None} == named
    assert {role.value.replace(" ", "_") for role in named} <= scores
    assert not {role.value.replace(" ", "_") for role in set(Role) - named} & scores
