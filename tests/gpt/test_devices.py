"""Training and generating on a GPU that has numbers and no kernels."""

import contextlib
import math
from dataclasses import replace

import pytest
import torch
from support import fake_gpu
from support.fake_gpu import DEVICE, FakeGPUTensor
from support.small_runs import go

import regard
from regard.gpt import (
    DivergedError,
    GPTConfig,
    Sampling,
    TrainConfig,
    generate,
    generate_texts,
    head_history,
    load,
    stream_texts,
)
from regard.gpt.training import loop, metrics, train_step
from regard.gpt.training.checkpoints import METRICS
from regard.gpt.training.metrics import read_metrics

GPT = GPTConfig(context=16, layers=1, heads=2, groups=1, dim=20, positions="rotary")
PEAK_RATE = metrics.peak_rate.__wrapped__
GREEDY = pytest.param(Sampling(temperature=0.0), marks=pytest.mark.thorough)
RECIPE = TrainConfig(
    tokenizer="char", steps=5, warmup=2, batch=2, accumulate=2, evaluate_every=2, record_every=2,
    precision="float32", repeats=0.3,
)  # fmt: skip


@pytest.fixture(autouse=True)
def peak(monkeypatch):
    """Spare the CPU the products by which a GPU's speed is measured."""
    monkeypatch.setattr(metrics, "peak_rate", lambda device, dtype: None)


def trained(folder, device, *, resume=False, stop=0, gpt=GPT, recipe=RECIPE):
    updates = []

    def keep(update):
        updates.append(update)
        if update.step == stop:
            raise KeyboardInterrupt

    options = {"texts": None, "resume": True} if resume else {}
    result = go(folder, gpt=gpt, config=recipe, device=device, callbacks=[keep], **options)
    return result, updates


def weights(result):
    return [p.detach().cpu() for p in result.model.parameters()]


def test_a_model_learns_on_a_gpu_what_it_learns_on_a_cpu(tmp_path):
    with fake_gpu.gpu():
        there, updates = trained(tmp_path / "there", DEVICE)
        assert all(isinstance(p, FakeGPUTensor) for p in there.model.parameters())
        result = weights(there)
    here, expected = trained(tmp_path / "here", "cpu")
    losses = [[update.loss for update in each] for each in (updates, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)  # other kernels round otherwise
    for one, other in zip(result, weights(here), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    model, _ = load(tmp_path / "there")
    assert [p.device.type for p in model.parameters()] == ["cpu"] * len(result)
    one, other = (head_history(tmp_path / name) for name in ("there", "here"))
    torch.testing.assert_close(one.scores, other.scores, rtol=1e-3, atol=1e-4, equal_nan=True)


@pytest.mark.thorough
def test_a_run_resumes_on_a_gpu_to_the_last_bit(tmp_path):
    gpt, recipe = replace(GPT, dropout=0.1), replace(RECIPE, record_every=0, log_every=1)
    with fake_gpu.gpu():
        whole, _ = trained(tmp_path / "whole", DEVICE, gpt=gpt, recipe=recipe)
        part, _ = trained(tmp_path / "part", DEVICE, gpt=gpt, recipe=recipe, stop=3)
        assert part.interrupted
        torch.rand(7)  # whatever else a generator is used for
        resumed, updates = trained(tmp_path / "part", DEVICE, gpt=gpt, recipe=recipe, resume=True)
        assert updates[0].step == 4
        assert all(torch.equal(*pair) for pair in zip(*map(weights, (whole, resumed)), strict=True))


@pytest.mark.parametrize(
    "optimizer",  # muon leaves some weights to adamw
    [pytest.param("adamw", marks=pytest.mark.thorough), "muon"],
)
def test_updates_wait_for_the_device_once_in_log_every(tmp_path, monkeypatch, optimizer):
    """Passes with documents, their gradients, their norm and the optimizer wait for nothing."""
    waiting, losses = [], []
    original, read = train_step.TrainStep.__call__, loop.Loop._read

    def counted(update, step, batch):
        with fake_gpu.waits() as found:
            result = original(update, step, batch)
        waiting.append(found)
        return result

    def counted_read(training, **options):
        with fake_gpu.waits() as found:
            metrics = read(training, **options)
        losses.append((len(metrics), sum("tolist" in wait for wait in found)))
        return metrics

    monkeypatch.setattr(train_step.TrainStep, "__call__", counted)
    monkeypatch.setattr(loop.Loop, "_read", counted_read)
    recipe = replace(RECIPE, evaluate_every=7, log_every=3, record_every=0, steps=5)
    gpt = replace(GPT, dropout=0.1)
    with fake_gpu.gpu():
        trained(tmp_path / "m", DEVICE, recipe=replace(recipe, optimizer=optimizer), gpt=gpt)
    assert waiting == [[]] * 5
    assert losses == [(3, 1), (2, 2), (0, 0)]  # the last with the validation; none is left to save


INDEX = torch.arange(16)
MASKS = {
    "documents": regard.documents(INDEX // 7),
    "padding": regard.padding(torch.stack([INDEX >= 3, INDEX >= 0])),
    "prefix": regard.masks.prefix(5),
    "prefixes": regard.masks.prefix(torch.tensor([5, 2])),
    "offset": regard.causal(offset=torch.tensor([0, 1])),
    "dense": regard.dense(torch.eye(16).bool()),
    "hidden": regard.masks.hide(slice(1, 3), queries=slice(7, None)),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_from_the_cpu_are_copied_while_the_device_goes_on(name):
    generator = torch.Generator().manual_seed(0)
    here = torch.randn(3, 2, 2, 16, 8, generator=generator).unbind()
    with fake_gpu.gpu():
        query, key, value = (tensor.to(DEVICE).requires_grad_() for tensor in here)
        with fake_gpu.waits() as found:
            context = regard.attention(query, key, value, mask=regard.causal() & MASKS[name])
            context.sum().backward()
        assert found == []
        expected = regard.attention(*here, mask=regard.causal() & MASKS[name])
        # Sums of up to 16 numbers near 1, which other kernels add in another order.
        torch.testing.assert_close(context.detach().cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_metrics_of_updates_that_were_read_together_are_those_of_each(tmp_path):
    recipe = replace(RECIPE, record_every=0)
    with fake_gpu.gpu():
        _, together = trained(tmp_path / "together", DEVICE, recipe=recipe)
        _, single = trained(tmp_path / "single", DEVICE, recipe=replace(recipe, log_every=1))
    names = ("step", "loss", "gradient_norm", "learning_rate", "tokens", "validation_loss")
    pairs = zip(together, single, strict=True)
    assert all(getattr(a, n) == getattr(b, n) for a, b in pairs for n in names)
    (lines,) = (tmp_path / "together").rglob(METRICS)
    assert len(read_metrics(lines)) == RECIPE.steps


def test_a_loss_that_is_not_finite_is_named_when_it_is_read(tmp_path, monkeypatch):
    original = train_step.TrainStep.__call__

    def broken(update, step, batch):
        return original(update, step, batch) * (math.nan if step == 1 else 1.0)

    monkeypatch.setattr(train_step.TrainStep, "__call__", broken)
    recipe = replace(RECIPE, evaluate_every=5, record_every=0)
    with fake_gpu.gpu(), pytest.raises(DivergedError, match="the loss is nan at update 2,"):
        trained(tmp_path / "m", DEVICE, recipe=recipe)


def test_the_generator_of_the_device_trained_on_is_seeded(monkeypatch):
    at, seeded = [], []

    @contextlib.contextmanager
    def standing(device):
        at.append(device)
        yield
        at.pop()

    monkeypatch.setattr(torch.cuda, "device", standing)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: seeded.append((*at, seed)))
    with torch.random.fork_rng(devices=[]):
        train_step._seed(7, torch.device("cuda:1"))
    assert seeded == [(torch.device("cuda:1"), 7)]


def test_the_peak_rate_is_none_without_memory_to_measure_it(monkeypatch):
    def full(*_size, **_options):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "full", full)
    assert PEAK_RATE("cuda:0", torch.bfloat16) is None


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(top_p=0.9, seed=2)])
def test_it_generates_on_a_gpu_what_it_generates_on_a_cpu(sampling):
    model, tokenizer = load()
    prompts = [tokenizer.encode(text) for text in ("The cat sat on", "A", "The cat")]
    expected = generate(model, prompts, tokens=7, sampling=sampling)
    with fake_gpu.gpu() as crossed:
        model.to(DEVICE)
        result = generate(model, prompts, tokens=7, sampling=sampling)
        assert [each.tolist() for each in result] == [each.tolist() for each in expected]
        assert len(crossed) == 1  # the tokens, at the end


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(repetition_penalty=1.1)])
def test_generation_on_the_device_waits_for_nothing(sampling):
    model, _ = load()
    prompts = torch.arange(24).reshape(3, 8)
    with fake_gpu.gpu():
        model.to(DEVICE)
        there = prompts.to(DEVICE)
        with fake_gpu.waits() as found:
            result = generate(model, there, tokens=5, sampling=sampling)
        assert found == []
        assert result.device == DEVICE
        with fake_gpu.waits() as found:  # of unequal lengths, from the CPU and back to it
            generate(model, [[1], [2, 3]], tokens=5, sampling=sampling)
        assert len(found) == 1


def test_texts_are_read_token_by_token_only_where_they_are_shown_as_they_come():
    model, tokenizer = load()
    greedy = {"tokens": 7, "sampling": Sampling(temperature=0.0)}
    expected = generate_texts(model, tokenizer, ["The cat", "A"], **greedy, stop=["."])
    with fake_gpu.gpu():
        model.to(DEVICE)
        with fake_gpu.waits() as found:
            texts = generate_texts(model, tokenizer, ["The cat", "A"], **greedy, stop=["."])
        assert texts == expected
        assert len(found) <= 2
        with fake_gpu.waits() as found:
            list(stream_texts(model, tokenizer, ["The cat", "A"], **greedy))
        assert len(found) == 7


def test_logits_that_are_not_finite_are_told_by_the_token_and_raise_once_that_is_read():
    model, _ = load()
    with torch.no_grad():
        model.ln_f.weight[3] = torch.nan
    with fake_gpu.gpu():
        model.to(DEVICE)
        there = torch.tensor([[1, 2]]).to(DEVICE)
        for sampling in (Sampling(temperature=0.0), Sampling(top_k=3)):
            result = generate(model, there, tokens=2, sampling=sampling)
            assert result.tolist() == [[1, 2, -1, -1]]
        with pytest.raises(ValueError, match="the model's logits are not finite"):
            generate(model, [[1, 2]], tokens=2)
