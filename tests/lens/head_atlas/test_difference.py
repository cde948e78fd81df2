"""The difference between two atlases against its definition, written out over documents."""

import math

import pytest
import torch

import regard
from regard.errors import Error
from regard.lens import Atlas
from regard.lens.head_atlas.layer_reading import DISTANCES
from regard.lens.head_atlas.reading import DocumentRead
from regard.lens.head_atlas.state import State
from regard.lens.head_atlas.sums import GROUPS
from regard.lens.naming.discoveries import false_discovery_rates, upper_tail

HEADS = ((0, 0), (0, 1), (1, 0))
ABOUT = {"model": "a", "corpus_fingerprint": "c", "length": 64, "documents": 41, "seed": 0}
QUANTILE = {6: 2.446912, GROUPS - 1: 2.039513}  # of Student's t, 97.5 %, by degrees of freedom


def documents(count, seed):
    """Numbers of each document: queries, share and three controls; queries and length moved."""
    draw = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.rand(shape, generator=draw, dtype=torch.float64)

    queries = 5 + (13 * drawn(count, 1, 1)).floor().expand(-1, len(HEADS), -1)
    own = drawn(count, 1, 1)  # what a document does to all heads
    lead = (0.4 + 0.2 * own + 0.1 * drawn(count, len(HEADS), 1)) * queries
    controls = 0.3 * drawn(count, len(HEADS), 3) * queries
    moved = (2 + own + 0.1 * drawn(count, len(HEADS), 1)) * queries
    relation = torch.cat([queries, lead, controls], -1)
    return {
        "relation.previous_token": relation,
        "relation.resting": relation[..., :2],
        "moved": torch.cat([queries, moved], -1),
    }


def atlas_of(numbers, heads=HEADS, **about):
    state = State({**ABOUT, "effects": 0.0, **about}, ["0/1"])
    plain = {"rows": (1,), "rest": (3,), "profile": (len(DISTANCES),)}
    for number in range(len(numbers["moved"])):
        read = DocumentRead(
            number=number,
            clustered={name: own[number, : len(heads)] for name, own in numbers.items()},
            plain={name: torch.ones(len(heads), *shape) for name, shape in plain.items()},
        )
        state.add(read, heads)
    return Atlas(state, tokens={}, sources={})


def score(total):
    """A share of its queries, or a lead over its strongest control; and its derivatives."""
    queries, share, *controls = (float(one) for one in total)
    share /= queries
    if not controls:
        return share, [-share / queries, 1 / queries]
    control = max(controls) / queries
    by_share, by_control = 1 / (1 - control), (share - 1) / (1 - control) ** 2
    derivatives = [-(by_share * share + by_control * control) / queries, by_share / queries]
    derivatives += [by_control / queries * (one == max(controls)) for one in controls]
    return (share - control) / (1 - control), derivatives


def by_definition(before, after, head, groups):
    """Difference and half of its interval; each group of documents has one residual."""
    (one, of_one), (other, of_other) = (score(own[:, head].sum(0)) for own in (before, after))
    residuals = [0.0] * groups
    for number in range(len(before)):
        for own, derivatives, sign in ((after, of_other, 1), (before, of_one, -1)):
            values = own[number, head].tolist()
            residuals[number % groups] += sign * math.fsum(
                value * by for value, by in zip(values, derivatives, strict=True)
            )
    variance = math.fsum(one**2 for one in residuals) * groups / (groups - 1)
    return other - one, QUANTILE[groups - 1] * math.sqrt(variance)


@pytest.mark.parametrize(("count", "groups"), [(7, 7), (41, GROUPS)])
def test_a_difference_and_its_interval_are_those_of_the_definition(count, groups):
    before, after = documents(count, 1), documents(count, 2)
    difference = atlas_of(before).diff(atlas_of(after))
    assert difference.groups == groups
    for column, name in (("previous_token", "relation.previous_token"), ("moved", "moved")):
        for place, (layer, head) in enumerate(HEADS):
            (own,) = (one for one in difference.of(layer, head) if one.column == column)
            wanted, margin = by_definition(before[name], after[name], place, groups)
            assert own.difference == pytest.approx(wanted, abs=1e-10)
            assert own.margin == pytest.approx(margin, rel=1e-3)  # of the quantile
            (row,) = (
                one for one in difference.rows if (one["layer"], one["head"]) == (layer, head)
            )
            assert (row[column], row[f"{column}_margin"]) == (own.difference, own.margin)


def test_what_a_document_does_to_both_cancels():
    before = documents(7, 1)
    after = {name: own.clone() for name, own in before.items()}
    after["moved"][:, 1, 1] += 0.125 * after["moved"][:, 1, 0]  # one head moves more everywhere
    one = atlas_of(before)
    difference = one.diff(atlas_of(after))
    change = difference.changes[0]
    assert (change.layer, change.head, change.column) == (0, 1, "moved")
    assert change.difference == pytest.approx(0.125, abs=1e-10)
    assert change.margin < 1e-9 < 0.05 < one.rows[1]["moved_margin"]
    assert [(row["layer"], row["head"]) for row in difference.rows if row["discovery"]] == [(0, 1)]
    assert {own.difference for own in difference.changes[1:]} == {0.0}


def test_rates_correct_for_every_head_and_column():
    difference = atlas_of(documents(7, 1)).diff(atlas_of(documents(7, 3)))
    tested = [one for one in difference.changes if one.t is not None]
    assert len(tested) == 3 * len(HEADS)
    assert [abs(one.t) for one in tested] == sorted((abs(one.t) for one in tested), reverse=True)
    p_values = torch.tensor([2 * upper_tail(abs(one.t), 6) for one in tested], dtype=torch.float64)
    rates = false_discovery_rates(p_values).tolist()
    assert [one.rate for one in tested] == pytest.approx(rates, abs=1e-12)
    assert difference.discoveries(rates[3]) == tested[: sum(rate <= rates[3] for rate in rates)]
    untested = [one for one in difference.changes if one.t is None]
    assert {one.column for one in untested} >= {"rest_first", "window"}
    assert {(one.margin, one.rate) for one in untested} == {(None, None)}
    with pytest.raises(ValueError, match="rate is 2"):
        difference.discoveries(2)


def test_heads_whose_role_changed_come_first():
    before = documents(7, 1)
    after = {name: own.clone() for name, own in before.items()}
    after["moved"][:, 0, 1] += after["moved"][:, 0, 0]  # the strongest evidence
    relation = after["relation.previous_token"]
    relation[:, 2, 1] = relation[:, 2, 2:].amax(-1)  # the lead is gone
    difference = atlas_of(before).diff(atlas_of(after))
    first, second = difference.rows[:2]
    assert (first["layer"], first["head"], first["role_changed"]) == (1, 0, True)
    assert (first["role_before"], first["column"]) == ("previous token", "previous_token")
    assert (second["layer"], second["head"], second["column"]) == (0, 0, "moved")
    assert abs(second["t"]) > abs(first["t"])
    lines = str(difference).splitlines()
    assert lines[0] == "a, before and after: 2 of 3 heads changed, 1 of them in role"
    assert "1.0  previous token → " in lines[2]
    assert [*difference.frame()["column"][:2]] == ["previous_token", "moved"]


def test_atlases_of_other_things_are_refused():
    numbers = documents(5, 1)
    one = atlas_of(numbers)
    for about, words in (
        ({"corpus_fingerprint": "d"}, "the tokens of the corpus .*'c' before and 'd' after"),
        ({"length": 32}, "the length of a window"),
        ({"documents": 6}, "the number of documents"),
        ({"heads": HEADS[:2]}, "3 of 2 layers before and 2 of 1 layer after"),
    ):
        with pytest.raises(Error, match=words):
            one.diff(atlas_of(numbers, **about))
    with pytest.raises(Error, match="has read 5 of the documents and the other 4: read or join"):
        one.diff(atlas_of({name: own[:4] for name, own in numbers.items()}))


def test_effects_on_other_documents_are_not_compared():
    numbers = documents(5, 1)
    numbers["effect"] = numbers["moved"]
    one = atlas_of(numbers)
    assert any(own.column == "effect" for own in one.diff(atlas_of(numbers)).changes)
    assert not any(own.column == "effect" for own in one.diff(atlas_of(numbers, seed=1)).changes)


def test_a_planted_change_is_found_and_a_copy_has_none(tmp_path):
    things = ("a kite", "a hat", "tea", "fun", "it", "a dog", "ten hats")
    texts = [f"Tom had {what}. Tom wanted {what}." for what in things]
    base, changed = regard.models.open(), regard.models.open()
    layer, head, width = 3, 1, 32
    weight = dict(changed.module.named_parameters())[f"h.{layer}.attn.c_proj.weight"]
    with torch.no_grad():
        weight[:, head * width : (head + 1) * width] *= 0.5
    before = regard.lens.atlas(base, texts, effects=0.0, probes=False)
    before.save(tmp_path)
    copy = Atlas.load(tmp_path)
    assert not copy.diff(before).discoveries()
    assert {one.difference for one in copy.diff(before).changes} == {0.0}
    difference = copy.diff(regard.lens.atlas(changed, texts, effects=0.0, probes=False))
    assert {(one.layer, one.head) for one in difference.discoveries()} == {(layer, head)}
    moved = difference.changes[0]
    assert (moved.column, moved.after / moved.before) == ("moved", pytest.approx(0.5))
