"""Scores of heads are those of their definitions."""

import math
from dataclasses import asdict

import pytest
import torch
import torch.nn.functional as F
from support.recordings import WORDS, B, D, H, L, recorded, two_layers

import regard
from regard.gpt import load
from regard.lens.naming.repeats import Repeats
from regard.record import RecordError


def sinks_of(weights):
    """The keys whose mean weight from other queries is above 0.3, of those that many see."""
    length = len(weights)
    seers = [[i for i in range(length) if i != j and weights[i][j] > 0] for j in range(length)]
    fewest = max(6, max(map(len, seers)) / 5)
    return {
        j
        for j, own in enumerate(seers)
        if len(own) >= fewest and sum(weights[i][j] for i in own) / len(own) > 0.3
    }


def by_definition(whole, names):
    """The scores of one head on one text, entry by entry, beside its sinks."""
    length, sinks = len(whole), sinks_of(whole)
    left = [[0.0 if j in sinks else w for j, w in enumerate(row)] for row in whole]
    weights = [[w / sum(row) for w in row] if sum(row) else row for row in left]
    rows = [i for i in range(1, length) if sum(w > 0 for w in weights[i]) > 1]

    def mean(numbers):
        numbers = list(numbers)
        return sum(numbers) / len(numbers) if numbers else None

    def separators():
        """A full stop or a comma, the first token left out."""
        keys = [j for j in range(1, length) if names is not None and names[j] in ".,;"]
        if len(keys) < 4:
            return None
        seen = [i for i in rows if any(weights[i][j] > 0 for j in keys)]
        return mean(sum(weights[i][j] for j in keys) for i in seen)

    def repeats(after):
        shares = []
        for i in range(length):
            keys = [
                j
                for j in range(1, i - 1)
                if names is not None and names[j - after] == names[i] and weights[i][j] > 0
            ]
            if keys:
                shares.append(sum(weights[i][j] for j in keys))
        return mean(shares)

    return {
        "resting": mean(sum(whole[i][j] for j in sinks) for i in range(1, length)),
        "previous_token": mean(weights[i][i - 1] for i in rows if weights[i][i - 1] > 0),
        "next_token": mean(weights[i][i + 1] for i in rows if i + 1 < length and weights[i][i + 1]),
        "first_token": mean(whole[i][0] for i in range(1, length)),
        "separator": separators(),
        "current_token": mean(weights[i][i] for i in rows),
        "induction": repeats(1),
        "duplicate_token": repeats(0),
        "entropy": mean(-math.fsum(w * math.log(w) for w in weights[i] if w > 0) for i in rows),
        "distance": mean(math.fsum(w * abs(i - j) for j, w in enumerate(weights[i])) for i in rows),
    }


def averaged(scores):
    result = {}
    for name in scores[0]:
        values = [score[name] for score in scores if score[name] is not None]
        result[name] = sum(values) / len(values) if values else None
    return result


def agree(heads, expected):
    for actual, wanted in zip(heads, expected, strict=True):
        for name, value in wanted.items():
            score = asdict(actual)[name]
            assert (score is None) == (value is None), name
            assert value is None or score == pytest.approx(value, abs=2e-5), name


TEXTS = [list("abca,cd,a;cd."), list("abcdef.hijklm")]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("texts", [TEXTS, TEXTS[:1], None])
def test_scores_are_those_of_the_definition(causal, texts):
    length = len(TEXTS[0])
    inputs = 1.5 * torch.randn(2, 2, B, H, length, D)
    recording = recorded(inputs, causal=causal, **({} if texts is None else {"tokens": texts}))
    expected = []
    for weights in recording.dense():
        for head in range(H):
            names = [None] * B if texts is None else (texts * B)[:B]
            texts_scores = [
                by_definition(weights[b, head].double().tolist(), names[b]) for b in range(B)
            ]
            expected.append(averaged(texts_scores))
    heads = regard.lens.heads(recording)
    assert any(head.resting for head in heads) or not causal  # some of them rest
    assert [(h.layer, h.head) for h in heads] == [(n, h) for n in range(2) for h in range(H)]
    agree(heads, expected)
    frame = heads.frame()
    assert list(frame.columns)[:3] == ["layer", "head", "role"]
    assert set(frame.columns) == set(asdict(heads[0]))
    assert len(frame) == len(heads) == 2 * H
    assert len(repr(heads).splitlines()) == 1 + 2 * H + (texts is not None)
    assert list(heads[1:3]) == [heads[1], heads[2]]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_counts_nowhere(side, causal):
    length, pad = 9, 3
    names = [list("abcabcabc"), ["<pad>"] * pad + list("abcabc")]
    keep = torch.ones(B, length, dtype=torch.bool)
    keep[1, :pad] = False
    if side == "right":
        keep, names = keep.flip(1), [names[0], list("abcabc") + ["<pad>"] * pad]
    visible = keep[:, None, None].expand(B, 1, length, length)
    visible = visible & torch.ones(length, length, dtype=torch.bool).tril() if causal else visible
    query, key = 1.5 * torch.randn(2, B, H, length, D)
    with regard.record(tokens=names) as recording:
        F.scaled_dot_product_attention(query, key, key, attn_mask=visible)
    part = slice(pad, None) if side == "left" else slice(None, -pad)
    weights = torch.softmax(
        (query.double() @ key.double().mT * D**-0.5).masked_fill(~visible, -math.inf), -1
    )
    expected = [
        averaged(
            [
                by_definition(weights[0, head].tolist(), names[0]),
                by_definition(weights[1, head, part, part].tolist(), names[1][part]),
            ]
        )
        for head in range(H)
    ]
    agree(regard.lens.heads(recording), expected)


def test_heads_made_by_hand():
    """Keys that only the wanted query points at: each of these heads puts all its weight there."""
    names = list("abcdefgh" * 2)
    length, vocabulary = len(names), 8
    position, token = torch.eye(length), torch.eye(vocabulary)[torch.arange(length) % vocabulary]
    token = F.pad(token, (0, length - vocabulary))
    ones = torch.zeros(length, length)
    ones[:, 0] = 1

    def after(rows):  # what stood one position earlier
        return rows.roll(1, 0).index_fill(0, torch.tensor([0]), 0)

    pairs = [
        (position.roll(1, 1).roll(-2, 1), position, "previous token"),
        (ones, ones * (torch.arange(length) == 0)[:, None], "first token"),
        (position, position, "current token"),
        (token, after(token), "induction"),
        (torch.zeros(length, length), position, "spread evenly"),
    ]
    query = torch.stack([q for q, _, _ in pairs])[None]
    key = torch.stack([k for _, k, _ in pairs])[None]
    with regard.record(tokens=names) as recording:
        F.scaled_dot_product_attention(query, key, key, is_causal=True, scale=50.0)
    heads = regard.lens.heads(recording)
    assert [head.role for head in heads] == [name for _, _, name in pairs]
    assert heads[0].previous_token == pytest.approx(1, abs=1e-4)
    assert heads[1].first_token == pytest.approx(1, abs=1e-4)
    assert heads[2].current_token == pytest.approx(1, abs=1e-4)
    assert heads[3].induction == pytest.approx(1, abs=1e-4)
    assert heads[4].entropy == pytest.approx(
        sum(math.log(n) for n in range(2, length + 1)) / (length - 1), abs=1e-4
    )
    assert heads[2].distance == pytest.approx(0, abs=1e-4)
    assert heads[0].distance == pytest.approx(1, abs=1e-4)


def test_selected_heads_keep_their_numbers():
    inputs = torch.randn(3, 2, B, H, L, D)
    full = regard.lens.heads(recorded(inputs, tokens=WORDS))
    part = regard.lens.heads(recorded(inputs, tokens=WORDS, layers=[2], heads=[2, 0]))
    assert [(h.layer, h.head) for h in part] == [(2, 2), (2, 0)]
    for head in part:
        other = next(h for h in full if (h.layer, h.head) == (head.layer, head.head))
        assert asdict(head) == pytest.approx(asdict(other), nan_ok=True)


def test_one_token_has_no_scores():
    heads = regard.lens.heads(recorded(torch.randn(1, 2, 1, H, 1, D), tokens=["a"]))
    assert [head.role for head in heads] == ["no choice"] * H
    assert heads[0].previous_token is None
    assert "–" in repr(heads)


def test_heads_of_patterns_that_are_no_whole_sequences():
    with pytest.raises(RecordError, match="record all rows of self-attention, from the prompt on"):
        regard.lens.heads(two_layers(rows=[1, 2]))
    with regard.record() as recording:
        F.scaled_dot_product_attention(*torch.randn(3, L, D))
    with pytest.raises(RecordError, match="heads are scored over whole sequences"):
        regard.lens.heads(recording)


def test_heads_of_a_pattern_without_a_batch():
    with regard.record(tokens=WORDS) as recording:
        F.scaled_dot_product_attention(*torch.randn(3, H, L, D), is_causal=True)
    weights = recording[0].dense().double().tolist()
    agree(regard.lens.heads(recording), [by_definition(head, WORDS) for head in weights])


@pytest.fixture(scope="module")
def shipped():
    return load()


def test_the_shipped_model_has_a_head_that_attends_to_the_previous_token(shipped):
    model, tokenizer = shipped
    ids = torch.randperm(model.config.vocab_size)[None, :113]
    with torch.no_grad(), regard.record(model, tokens=tokenizer) as recording:
        model(ids)
    assert len(recording.tokens[0]) == 113
    best = max(regard.lens.heads(recording), key=lambda head: head.previous_token)
    assert best.role == "previous token"
    assert best.previous_token > 0.5
    assert best.queries == 112


def test_the_shipped_model_has_induction_heads(shipped):
    model, _ = shipped
    line = torch.randperm(model.config.vocab_size)[:60]
    ids = torch.cat([line, line])[None]
    with torch.no_grad(), regard.record(model, tokens=[str(i) for i in ids[0].tolist()]) as seen:
        model(ids)
    heads = regard.lens.heads(seen)
    named = [head for head in heads if head.role == "induction"]
    assert named
    assert {head.queries for head in named} == {60}
    assert all(head.role == "induction" for head in heads if head.induction > 0.5)
    assert all(head.induction - head.induction_others > 0.2 for head in named)
    assert min(head.induction for head in heads) < 0.1
    induction = seen.read(Repeats(ids[0], following=True), Repeats(ids[0], following=False))
    assert induction["successors"].axes == ("layer", "batch", "head", "query")
    # the second copy's queries, the last of the first copy before them
    best = max(named, key=lambda head: head.induction)
    second = induction["successors"].values[best.layer, 0, best.head, 61:].mean()
    assert float(second) > 0.5
