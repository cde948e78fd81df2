"""What knocking links out does is what interventions on the whole text do, each made by hand."""

import math
from dataclasses import dataclass

import pytest
import torch

import regard
from regard.gpt import GPT, BPETokenizer, CharTokenizer, GPTConfig, link_effects

LAYERS, HEADS = 2, 3
TEXTS = ["Zoë has a hat. The hat is Zoë's; no, Ann's.", "(Ann saw née. It was née, or Ann.)"]


@dataclass(frozen=True)
class Linked:
    kind: str
    decided: tuple
    deciding: tuple
    decoys: tuple = ()
    alternatives: tuple = ()


@dataclass(frozen=True)
class Text:
    text: str
    links: tuple


def span(text, word, occurrence=0):
    start = -1
    for _ in range(occurrence + 1):
        start = text.index(word, start + 1)
    return start, start + len(word)


FIRST, SECOND = TEXTS
STORIES = [
    Text(
        FIRST,
        (
            # Stated out of the order of their queries; one has two deciding words.
            Linked("name", span(FIRST, "Zoë", 1), (span(FIRST, "Zoë"), span(FIRST, "has"))),
            Linked("thing", span(FIRST, "hat", 1), (span(FIRST, "hat"),), (), ("Zoë", "mat", "h")),
        ),
    ),
    Text("Nothing follows here.", ()),
    Text(
        SECOND,
        (
            Linked(
                "name", span(SECOND, "Ann", 1), (span(SECOND, "Ann"),), (), ("Ben", "Nina", "Ann")
            ),
            Linked("thing", span(SECOND, "née", 1), (span(SECOND, "née"),)),
            # The first query of all, which sees itself alone.
            Linked("thing", (1, 2), ((0, 1),)),
        ),
    ),
]


def characters():
    return CharTokenizer("".join([*TEXTS, "Nothing follows here.", "Ben", "Nina", "mat"]))


def pairs():
    """Tokens of several characters, and of bytes that are parts of one."""
    return BPETokenizer.train(["Zo has a hat. The hat Ann saw", "Ann saw Ben"], vocab_size=271)


def draw(tokenizer):
    torch.manual_seed(0)
    config = GPTConfig(
        vocab_size=tokenizer.vocab_size, context=61, layers=LAYERS, heads=HEADS, dim=HEADS * 10
    )
    model = GPT(config).double().eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.mul_(10)  # so that heads look somewhere, and it matters
    return model


def by_hand(model, tokenizer, story, link, **where):
    """Whether it is right, log-probability and log-odds, by the whole text and its definition."""
    ids = tokenizer.encode(story.text)
    owner, data = [], b""
    for number, token in enumerate(ids):
        piece = tokenizer.tokens([token])[0]
        raw = bytes([int(piece[3:5], 16)]) if piece.startswith("<0x") else piece.encode()
        owner += [number] * len(raw)
        data += raw
    assert data.decode() == story.text

    def tokens(place):
        first, stop = (len(story.text[:end].encode()) for end in place)
        return set(owner[first:stop])

    decided = min(tokens(link.decided))
    keys = sorted(set().union(*map(tokens, link.deciding)))
    with regard.intervene(model) as change:
        if where:
            layers, heads = where["layers"], where["heads"]
            change.knock_out(keys=keys, queries=decided - 1, layers=layers, heads=heads)
        logits = model(torch.tensor(ids))[decided - 1]
    probabilities = logits.softmax(dim=-1).tolist()
    own = ids[decided]
    others = set()
    start, stop = link.decided
    for word in link.alternatives:
        changed = tokenizer.encode(story.text[:start] + word + story.text[stop:])
        assert changed[:decided] == ids[:decided]
        others.add(changed[decided])
    others.discard(own)
    against = sum(probabilities[other] for other in others)
    odds = math.log(probabilities[own] / against) if others else math.nan
    return float(logits.argmax() == own), math.log(probabilities[own]), odds


@pytest.mark.parametrize(
    ("make", "size"),  # all copies at a time, or five and more
    [
        pytest.param(characters, 2**27, marks=pytest.mark.thorough),
        (pairs, 5 * 8 * LAYERS * HEADS * 10 * 37),
    ],
)
def test_each_number_is_that_of_an_intervention_by_hand(make, size, monkeypatch):
    monkeypatch.setattr("regard.gpt._link_effects._BYTES", size)
    tokenizer = make()
    model = draw(tokenizer)
    effects = link_effects(model, tokenizer, STORIES)
    linked = [(story, link) for story in STORIES for link in story.links]
    assert effects.counts == {"name": 2, "thing": 3}
    places = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    for number, (story, link) in enumerate(linked):
        right, *unchanged = by_hand(model, tokenizer, story, link)
        assert effects.correct.values[number] == right
        for change, value, which in zip(
            (effects.log_probability, effects.log_odds), unchanged, (1, 2), strict=True
        ):
            actual = [float(change.unchanged.values[number])]
            wanted = [value]
            actual += [float(change.heads.values[number][place]) for place in places]
            wheres = [{"layers": layer, "heads": head} for layer, head in places]
            actual += change.layers.values[number].tolist()
            wheres += [{"layers": layer, "heads": None} for layer in range(LAYERS)]
            actual += [float(change.model.values[number])]
            wheres += [{"layers": None, "heads": None}]
            wanted += [by_hand(model, tokenizer, story, link, **w)[which] - value for w in wheres]
            # Both in float64; sums over at most 61 keys and 30 channels in other orders.
            assert actual == pytest.approx(wanted, abs=1e-9, nan_ok=True)
    by_head = effects.log_probability.heads.values
    assert (by_head.abs() > 1e-3).float().mean() > 0.5  # there is something to compare
    assert effects.log_odds.unchanged.values.isnan().tolist() == [True, False, False, True, True]
    assert effects.log_odds.unchanged.mean.isfinite().all()


def test_the_weights_are_those_of_recordings():
    tokenizer = characters()
    model = draw(tokenizer)
    effects = link_effects(model, tokenizer, STORIES)
    parts = []
    for story in STORIES[::2]:
        with regard.record(model, tokens=tokenizer) as recording:
            model(torch.tensor([tokenizer.encode(story.text)]))
        parts.append(regard.lens.link_weights(recording, story.links))
    merged = regard.lens.SpanWeights.merge(parts)
    torch.testing.assert_close(effects.weights.spans.values, merged.spans.values)
    assert effects.weights.spans.kinds == merged.spans.kinds
    frame = effects.frame()
    assert len(frame) == 2 * LAYERS * HEADS
    row = frame[(frame.kind == "thing") & (frame.layer == 1) & (frame["head"] == 2)].iloc[0]
    assert row.effect == float(effects.log_probability.heads.mean[1, 1, 2])
    assert row.odds_effect == float(effects.log_odds.heads.mean[1, 1, 2])
    assert row.weight == float(merged.spans.mean[1, 1, 2])


def test_texts_that_can_t_be_measured_are_refused():
    tokenizer = characters()
    model = draw(tokenizer)
    with pytest.raises(ValueError, match="these 1 texts have none"):
        link_effects(model, tokenizer, STORIES[1:2])
    long = Text(FIRST * 2, STORIES[0].links)
    with pytest.raises(ValueError, match=r"texts\[1\] has 86 tokens, .* at most 61"):
        link_effects(model, tokenizer, [STORIES[0], long])
    outside = Text(FIRST, (Linked("late", (40, 99), ((0, 3),)),))
    with pytest.raises(ValueError, match=r"links\[0\] \(late\) has the span \(40, 99\)"):
        link_effects(model, tokenizer, [outside])
    config = GPTConfig(
        vocab_size=tokenizer.vocab_size, context=61, layers=2, heads=3, dim=30, window=7
    )
    with pytest.raises(ValueError, match="see at most 7"):
        link_effects(GPT(config), tokenizer, STORIES)
