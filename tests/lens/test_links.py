"""The weight on the words that decide is that of its definition, character by character."""

import math
import re
from dataclasses import dataclass
from enum import Enum

import pytest
import torch
from support.recordings import D, H, Model, recorded

import regard
from regard.lens import SpanValues
from regard.lens.spans import weights as span_weights
from regard.lens.spans.links import place_links
from regard.record import RecordError


class Why(Enum):
    """A kind of link as an enumeration has it."""

    NAME = "a name comes again"


@dataclass(frozen=True)
class Linked:
    """A link by words: each the number of an occurrence of it, from 0."""

    kind: object
    decided: tuple
    deciding: tuple = ()
    decoys: tuple = ()


TEXT = 'Zoë met Ann and Ben. "Well," Ben said to Zoë, "Ann is née Bo-Li." So Ann went with Ben.'
# Tokens of several characters and of parts of one, as a byte-level tokenizer shows them.
TOKENS = ["Zo", "<0xC3>", "<0xAB>", " met", " Ann", " and", " B", "en", ".", ' "', "Well", ',"']
TOKENS += [" Ben", " said", " to", " Zo<0xC3>", "<0xAB>", ",", ' "', "Ann", " is", " n", "é", "e"]
TOKENS += [" Bo", "-", "Li", '."', " So", " A", "nn", " went", " with", " Ben", "."]


def span(word, occurrence=0):
    places = [match.span() for match in re.finditer(re.escape(word), TEXT)]
    return places[occurrence]


LINKS = [
    Linked(Why.NAME, span("Ben", 1), (span("Ben"),), (span("Ann"), span("Zoë"))),
    Linked("mark", span('"', 1), (span('"'),)),
    Linked(Why.NAME, span("Zoë", 1), (span("Zoë"),), (span("Ann"), span("Ben"), span("Ben", 1))),
    Linked("sum", span("Ann", 2), (span("Ann", 1), span("Bo-Li")), (span("said"),)),
    Linked(Why.NAME, span("Ben", 2), (span("Ben", 1),), (span("Ann", 2), span("Ann", 2))),
]


def holders():
    """Of each character, the tokens that hold a byte of it."""
    pieces = [
        re.sub(rb"<0x(..)>", lambda m: bytes.fromhex(m[1].decode()), token.encode())
        for token in TOKENS
    ]
    owner = [number for number, piece in enumerate(pieces) for _ in piece]
    result, at = [], 0
    for sign in TEXT:
        size = len(sign.encode())
        result.append(set(owner[at : at + size]))
        at += size
    assert b"".join(pieces).decode() == TEXT
    return result


def tokens_of(place):
    return set().union(*holders()[slice(*place)])


def by_definition(weights, link):
    """Weights on a deciding word, a decoy and a control word, of one head ``(L, S)``."""
    decided = min(tokens_of(link.decided))
    row = weights[decided - 1].tolist()

    def distinct(places):
        found = []
        for place in places:
            word = {key for key in tokens_of(place) if key < decided}
            if word and word not in found:
                found.append(word)
        return found

    deciding = distinct(link.deciding)
    decoys = [word for word in distinct(link.decoys) if word not in deciding]
    taken = set().union(*deciding, *decoys)
    names = {TEXT[slice(*place)] for place in (*link.deciding, *link.decoys)}
    controls = []
    for match in re.finditer(r"\w+(?:['’-]\w+)*|[^\w\s]", TEXT):
        word = tokens_of(match.span())
        distance = decided - max(word)
        near = any(
            (decided - max(other)) / 2 <= distance <= 2 * (decided - max(other))
            and match[0].isalnum() == any(c.isalnum() for k in other for c in TOKENS[k])
            for other in deciding
        )
        free = distance >= 1 and not word & taken and 0 not in word and match[0] not in names
        if near and free and word not in controls:
            controls.append(word)

    def mean(words):
        sums = [math.fsum(row[key] for key in word) for word in words]
        return math.fsum(sums) / len(sums) if sums else math.nan

    return [mean(words) for words in (deciding, decoys, controls)]


@pytest.fixture
def recording():
    inputs = 1.5 * torch.randn(2, 2, 1, H, len(TOKENS), D)
    return recorded(inputs, tokens=TOKENS)


@pytest.mark.parametrize("numbers", [2**22, 3 * H * len(TOKENS)])  # all rows at a time, or three
def test_weights_are_those_of_the_definition(recording, numbers, monkeypatch):
    monkeypatch.setattr(span_weights, "_NUMBERS", numbers)
    weights = regard.lens.link_weights(recording, LINKS)
    parts = (weights.spans, weights.decoys, weights.controls)
    for number, link in enumerate(LINKS):
        for layer, dense in enumerate(recording.dense()):
            for head in range(H):
                wanted = by_definition(dense[0, head].double(), link)
                actual = [float(part.values[number, layer, head]) for part in parts]
                # Weights are computed in float32, by kernels whose sums have other orders.
                assert actual == pytest.approx(wanted, abs=2e-6, nan_ok=True)
    assert weights.counts == {"name": 3, "mark": 1, "sum": 1}
    assert weights.layers == (0, 1)
    assert weights.heads == tuple(range(H))
    # What the numbers stand on: kinds with and without decoys, and controls.
    assert weights.decoys.mean.isnan().all(dim=(1, 2)).tolist() == [False, True, False]
    assert not weights.controls.values[[0, 2, 3, 4]].isnan().any()


def test_a_link_lies_on_the_tokens_that_hold_its_characters():
    placed = place_links(TOKENS, LINKS)
    assert [link.query for link in placed] == [11, 10, 14, 28, 32]
    assert placed[0].deciding == ((6, 8),)
    assert placed[2].deciding == ((0, 3),)
    assert placed[3].keys == [19, 24, 25, 26]
    assert placed[4].decoys == ((29, 31),)


def test_the_place_of_a_text_among_tokens_that_spell_more(recording):
    inputs = torch.randn(1, 2, 1, H, len(TOKENS) + 2, D)
    longer = recorded(inputs, tokens=["<begin>", *TOKENS, "<end>"])
    weights = regard.lens.link_weights(longer, LINKS[:1], text=TEXT)
    expected = longer.dense()[0][0, :, 12, [7, 8]].sum(dim=-1).double()
    torch.testing.assert_close(weights.spans.mean[0, 0], expected, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=r"must occur once .* 0 times; they begin 'Zoë met"):
        regard.lens.link_weights(recording, LINKS, text=TEXT + "!")


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (Linked("late", (5, 8), ((80, 99),)), r"links\[1\] \(late\) has the span \(80, 99\)"),
        (Linked("empty", (5, 5), ((0, 3),)), r"\(5, 5\), which must lie within the 87 characters"),
        (Linked("first", (0, 3), ((0, 3),)), r"no deciding word in a token before .*, token 0"),
        (Linked("none", span("Ben", 1)), r"links\[1\] \(none\) has no deciding word"),
    ],
)
def test_links_that_do_not_fit_the_tokens_are_refused_by_name(recording, link, message):
    with pytest.raises(ValueError, match=message):
        regard.lens.link_weights(recording, [LINKS[0], link])


def test_what_can_t_be_held_against_links_is_refused(recording):
    with pytest.raises(TypeError, match=r"links\[0\] must have kind, decided, deciding and decoys"):
        regard.lens.link_weights(recording, [(0, 3)])
    inputs = torch.randn(1, 2, 1, H, len(TOKENS), D)
    with pytest.raises(RecordError, match="record with record"):
        regard.lens.link_weights(recorded(inputs), LINKS)
    with pytest.raises(RecordError, match=r"query 11, .* was not recorded in layer0"):
        regard.lens.link_weights(recorded(inputs, tokens=TOKENS, rows=[1, 3]), LINKS)
    several = torch.randn(1, 2, 2, H, len(TOKENS), D)
    with pytest.raises(RecordError, match="record one text at a time"):
        regard.lens.link_weights(recorded(several, tokens=TOKENS), LINKS)


def test_no_links_are_no_numbers(recording):
    weights = regard.lens.link_weights(recording, [])
    assert weights.counts == {}
    assert weights.spans.mean.shape == weights.controls.interval.shape == (0, 2, H)
    assert len(weights.frame()) == 0
    assert repr(weights).startswith("kind")
    assert "0 spans" in weights._repr_html_()


def test_some_heads_of_a_layer():
    inputs = torch.randn(2, 2, 1, H, len(TOKENS), D)
    model = Model(["layer0", "layer1"])
    with regard.record(model, tokens=TOKENS, layers=1, heads=[2, 0]) as recording:
        model(inputs=inputs, is_causal=True)
    weights = regard.lens.link_weights(recording, LINKS)
    assert (weights.layers, weights.heads) == ((1,), (0, 2))
    assert recording.layers[0].heads == (2, 0)
    expected = recording.dense()[0][0, [1, 0], 11, 6:8].sum(dim=-1).double()
    torch.testing.assert_close(weights.spans.values[0, 0], expected, rtol=0, atol=1e-6)


def test_means_and_intervals_of_merged_texts_are_those_of_their_links(recording):
    other = recorded(1.5 * torch.randn(2, 2, 1, H, len(TOKENS), D), tokens=TOKENS)
    parts = [
        regard.lens.link_weights(recording, LINKS),
        regard.lens.link_weights(other, LINKS[2:]),
        regard.lens.link_weights(other, LINKS[:1]),
    ]
    merged = regard.lens.SpanWeights.merge(parts)
    assert merged.counts == {"name": 6, "mark": 1, "sum": 2}
    assert merged.spans.texts == (0,) * 5 + (1,) * 3 + (2,)
    values = torch.cat([part.spans.values for part in parts])
    names = [0, 2, 4, 5, 7, 8]
    mean = values[names].mean(dim=0)
    torch.testing.assert_close(merged.spans.mean[0], mean)
    # The deviations of a text's links go together: three texts.
    sums = [(values[some] - mean).sum(dim=0) for some in ([0, 2, 4], [5, 7], [8])]
    error = (sum(s.square() for s in sums) * 3 / 2).sqrt() / len(names)
    torch.testing.assert_close(merged.spans.interval[0], 1.96 * error)
    assert merged.spans.interval[1].isnan().all()  # one link
    frame = merged.frame()
    assert len(frame) == 3 * 2 * H
    row = frame[(frame.kind == "sum") & (frame.layer == 1) & (frame["head"] == 2)].iloc[0]
    assert row.weight == pytest.approx(float(values[[3, 6], 1, 2].mean()))
    heads_of_others = recorded(torch.randn(1, 2, 1, H, len(TOKENS), D), tokens=TOKENS)
    with pytest.raises(ValueError, match="merge those of the same heads"):
        regard.lens.SpanWeights.merge([merged, regard.lens.link_weights(heads_of_others, LINKS)])


def test_links_of_one_text_vary_by_themselves_and_what_is_missing_counts_nowhere():
    values = torch.tensor([2.0, 3.0, torch.nan, 7.0, 5.0], dtype=torch.float64)
    one = SpanValues(values, ("a", "a", "a", "a", "b"), (4,) * 5)
    assert one.mean.tolist() == [4, 5]
    # The standard error of the mean of 2, 3 and 7.
    assert float(one.interval[0]) == pytest.approx(1.96 * (7 / 3) ** 0.5)
    assert one.interval[1].isnan()
