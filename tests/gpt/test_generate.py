"""Generation: against the uncached model step by step, batches, seeds, sliding."""

from __future__ import annotations

import pytest
import torch
from support.gpt_variants import VARIANTS

from regard.gpt import (
    GPT,
    GPTConfig,
    Sampling,
    generate,
    stream,
)
from regard.gpt.generate import IncrementalDecoder
from regard.gpt.sampling import penalised, pick, probabilities, uniform

CONFIG = GPTConfig(vocab_size=23, context=7, layers=2, heads=1, dim=12, dropout=0.5)
GREEDY = Sampling(temperature=0.0)


def shaken(config):
    torch.manual_seed(1)
    model = GPT(config)
    with torch.no_grad():  # what comes next must depend on what stands before, and where
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.5)
    return model


@pytest.fixture
def model():
    return shaken(CONFIG)


@pytest.fixture(params=VARIANTS)
def variant(request):
    return shaken(VARIANTS[request.param]).eval()


@pytest.fixture
def ids():
    return torch.tensor([[3, 1, 4], [15, 9, 2]])


def uncached(model, prompt, tokens, sampling):
    """The tokens drawn with the model run over all that it sees, at every step."""
    context = model.config.context
    held, seen = list(prompt), list(prompt)[-context:]
    for step in range(tokens):
        with torch.no_grad():
            logits = model(torch.tensor([seen]))[:, -1]
        holds = torch.zeros_like(logits, dtype=torch.bool)
        holds[0, held] = True
        logits = penalised(logits, holds, sampling.repetition_penalty)
        if sampling.temperature == 0:
            token = int(logits.argmax())
        else:
            number = torch.tensor([uniform(sampling.seed, 0, step)], dtype=torch.float64)
            token = int(pick(probabilities(logits, sampling), number))
        held.append(token)
        seen.append(token)
        if len(seen) > context:
            seen = seen[max(1, context // 4) :]
    return held


SAMPLINGS = (
    GREEDY,
    Sampling(temperature=0.0, repetition_penalty=1.9),
    Sampling(temperature=2.0, seed=5),
    Sampling(top_k=6, temperature=3.0, seed=6),
    Sampling(top_p=0.8, temperature=3.0, seed=7),
    Sampling(min_p=0.1, temperature=3.0, repetition_penalty=1.2, seed=8),
)


@pytest.mark.each_once
@pytest.mark.parametrize(
    ("name", "samplings"),
    [(name, SAMPLINGS if name == "all" else SAMPLINGS[3:4]) for name in VARIANTS],
    ids=list(VARIANTS),
)
def test_cached_draws_are_the_uncached_ones(name, samplings):
    """In a batch of unequal prompts, past the context too: each as if alone and uncached."""
    model = shaken(VARIANTS[name]).eval()
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2], list(range(20))]
    for sampling in samplings:
        got = generate(model, prompts, tokens=9, sampling=sampling)
        for prompt, out in zip(prompts, got, strict=True):
            assert out.tolist() == uncached(model, prompt, 9, sampling)
        assert len({token for out in got for token in out[-9:].tolist()}) > 1


@pytest.mark.each_once
def test_logits_of_a_batch_are_those_of_each_sequence_alone(variant):
    variant.double()
    prompts = [torch.tensor(p) for p in ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2], [7, 1, 8, 2, 8])]
    together = IncrementalDecoder(variant, prompts, 9)
    alone = [IncrementalDecoder(variant, [prompt], 9) for prompt in prompts]
    for step in range(9):  # the first is past the context after two steps, the last after eight
        batch = together.next_logits()
        for row, one in enumerate(alone):
            torch.testing.assert_close(batch[row], one.next_logits()[0], rtol=1e-11, atol=1e-11)
            one.append(torch.tensor([step]))
        together.append(torch.full((3,), step))


def test_greedy_takes_the_likeliest_token_of_the_last_context(model, ids):
    out = generate(model, ids, tokens=11, sampling=GREEDY)
    assert out.shape == (2, 14)
    assert out[:, :3].equal(ids)
    assert len(set(out[0, 7:].tolist())) > 4  # or the window slid over would not matter
    model.eval()
    for end in range(3, 14):  # a quarter of 7 is one token
        logits = model(out[:, max(0, end - 7) : end])[:, -1]
        assert out[:, end].equal(logits.argmax(-1))


def test_top_1_is_greedy_at_any_temperature(model, ids):
    greedy = generate(model, ids, tokens=9, sampling=GREEDY)
    for temperature in (0.1, 1.0, 30.0):
        sampling = Sampling(temperature=temperature, top_k=1)
        assert generate(model, ids, tokens=9, sampling=sampling).equal(greedy)


@pytest.mark.parametrize("temperature", [1e-320, 1e-46, 1e-38])
def test_the_coldest_draw_is_greedy(model, ids, temperature):
    greedy = generate(model, ids, tokens=9, sampling=GREEDY)
    cold = generate(model, ids, tokens=9, sampling=Sampling(temperature=temperature))
    assert cold.equal(greedy)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(model, ids, temperature, value):
    with torch.no_grad():
        model.wte.weight[-1].fill_(value)
    with pytest.raises(ValueError, match="the model's logits are not finite"):
        generate(model, ids, tokens=1, sampling=Sampling(temperature=temperature))


def test_a_seed_fixes_the_draw_whatever_the_batch(model):
    hot = Sampling(temperature=5.0, seed=1)
    prompts = [[3, 1], [4], [3, 1], [9, 2, 6]]
    batch = generate(model, prompts, tokens=20, sampling=hot)
    for row in (0, 1, 3):
        alone = generate(model, torch.tensor(prompts[row]), tokens=20, sampling=hot)
        assert batch[row].equal(alone)
    assert not batch[2].equal(batch[0])  # the second copy of a prompt is another draw
    other = generate(model, prompts, tokens=20, sampling=Sampling(temperature=5.0, seed=2))
    assert not any(one.equal(two) for one, two in zip(batch, other, strict=True))


def test_without_a_seed_torchs_generator_decides(model, ids):
    hot = Sampling(temperature=5.0)
    torch.manual_seed(7)
    first, second = (generate(model, ids, tokens=20, sampling=hot) for _ in range(2))
    torch.manual_seed(7)
    assert generate(model, ids, tokens=20, sampling=hot).equal(first)
    assert not second.equal(first)


def test_draws_follow_the_probabilities(model):
    draws = 4_000
    ids = torch.tensor([5]).expand(draws, 1)
    for top_k, temperature in ((None, 20.0), (4, 10.0), (99, 20.0)):
        sampling = Sampling(temperature=temperature, top_k=top_k, seed=0)
        chosen = generate(model, ids, tokens=1, sampling=sampling)[:, 1]
        logits = model.eval()(ids[0])[-1] / temperature
        kept = logits.topk(min(top_k or 23, 23)).indices
        expected = torch.zeros(23).index_put((kept,), torch.softmax(logits[kept], -1))
        actual = torch.bincount(chosen, minlength=23) / draws
        assert actual[expected == 0].sum() == 0
        # Five standard deviations of a share estimated from 4,000 draws.
        assert ((actual - expected).abs() <= 5 * (expected / draws).sqrt() + 1e-9).all()


def test_a_stream_is_the_same_token_by_token(model, ids):
    hot = Sampling(temperature=3.0, seed=3)
    whole = generate(model, ids, tokens=6, sampling=hot)
    parts = list(stream(model, ids, tokens=6, sampling=hot))
    assert torch.stack(parts, dim=-1).equal(whole[:, 3:])
    single = stream(model, ids[0], tokens=2)
    assert next(single).shape == ()


def test_without_a_batch_axis_and_without_tokens(model, ids):
    assert generate(model, ids[0], tokens=4).shape == (7,)
    same = generate(model, ids, tokens=0)
    assert same.equal(ids)
    assert same is not ids
    assert generate(model, ids.int(), tokens=2).dtype == torch.int32
    assert [out.tolist() for out in generate(model, [[3], [1, 4]], tokens=0)] == [[3], [1, 4]]
    assert generate(model, [], tokens=3) == []


def test_the_model_runs_without_dropout_and_stays_as_it_was(model, ids):
    for training in (True, False):
        model.train(training)
        outs = [generate(model, ids, tokens=8, sampling=GREEDY) for _ in range(2)]
        assert outs[0].equal(outs[1])
        assert model.training is training
    drawn = stream(model.train(), ids, tokens=3)
    next(drawn)
    assert model.training
    assert not next(drawn).requires_grad
    drawn = stream(model.eval(), ids, tokens=3, sampling=GREEDY)
    taken = [next(drawn), next(drawn)]
    model.train()  # in between
    assert torch.stack([*taken, next(drawn)], -1).equal(outs[0][:, 3:6])
    assert model.training


def test_the_prompt_is_read_once_and_then_a_token_a_step(model, ids, monkeypatch):
    read = []
    run = GPT.next_logits
    monkeypatch.setattr(
        GPT,
        "next_logits",
        lambda self, ids, cache: read.append(ids.shape[-1]) or run(self, ids, cache),
    )
    generate(model, ids, tokens=5)
    assert read == [3, 1, 1, 1, 1]
    read.clear()
    wide = shaken(GPTConfig(vocab_size=23, context=16, layers=1, heads=1, dim=12))
    generate(wide, ids, tokens=25)  # past 16 tokens, four go and 13 are read anew
    assert read == [3, *[1] * 13, 13, 1, 1, 1, 13, 1, 1, 1, 13, 1, 1]


def test_past_the_context_is_refused_on_request(model, ids):
    assert generate(model, ids, tokens=4, past="refuse").shape == (2, 7)
    with pytest.raises(
        ValueError, match=r"3 tokens and tokens=5 more .* context of 7; choose tokens=4"
    ):
        stream(model, ids, tokens=5, past="refuse")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tokens": -1}, ValueError, "tokens is -1; expected 0 to"),
        ({"past": "wrap"}, ValueError, "past is 'wrap'; expected slide or refuse"),
        ({"ids": torch.empty(2, 0, dtype=torch.long)}, ValueError, r"ids has shape \(2, 0\)"),
        ({"ids": torch.tensor(3)}, ValueError, r"ids has shape \(\)"),
        ({"ids": [[1], []]}, ValueError, r"sequence 1 of ids has shape \(0,\)"),
        ({"ids": torch.tensor([23])}, ValueError, "ids runs from 23 to 23"),
        ({"ids": [[1], [-1]]}, ValueError, "ids runs from -1 to -1"),
        ({"ids": [[1.5]]}, TypeError, r"ids is torch\.float32"),
    ],
)
def test_wrong_arguments_are_named_at_the_call(model, ids, change, error, message):
    arguments = {"ids": ids, "tokens": 3} | change
    with pytest.raises(error, match=message):
        stream(model, arguments.pop("ids"), **arguments)
