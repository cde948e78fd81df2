"""Training and generating on a GPU that has numbers and no kernels."""

import contextlib
from dataclasses import replace

import pytest
import torch
from support import fake_gpu
from support.fake_gpu import DEVICE, FakeGPUTensor
from support.small_runs import go

from regard.gpt import GPTConfig, Sampling, TrainConfig, generate, history, load
from regard.gpt.training import loop, metrics

GPT = GPTConfig(context=16, layers=2, heads=2, groups=1, dim=20, positions="rotary")
PEAK_RATE = metrics.peak_rate.__wrapped__
RECIPE = TrainConfig(
    tokenizer="char", steps=5, warmup=2, batch=2, accumulate=3, evaluate_every=2, record_every=2,
    precision="float32",
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
    one, other = (history(tmp_path / name) for name in ("there", "here"))
    torch.testing.assert_close(one.scores, other.scores, rtol=1e-3, atol=1e-4, equal_nan=True)


def test_a_run_resumes_on_a_gpu_to_the_last_bit(tmp_path):
    gpt, recipe = replace(GPT, dropout=0.1), replace(RECIPE, record_every=0)
    with fake_gpu.gpu():
        whole, _ = trained(tmp_path / "whole", DEVICE, gpt=gpt, recipe=recipe)
        part, _ = trained(tmp_path / "part", DEVICE, gpt=gpt, recipe=recipe, stop=3)
        assert part.interrupted
        torch.rand(7)  # whatever else a generator is used for
        resumed, updates = trained(tmp_path / "part", DEVICE, gpt=gpt, recipe=recipe, resume=True)
        assert updates[0].step == 4
        assert all(torch.equal(*pair) for pair in zip(*map(weights, (whole, resumed)), strict=True))


def test_a_step_of_training_reads_one_pair_of_numbers_back(tmp_path, monkeypatch):
    """Besides what is asked of the ids before each pass, which torch.compile leaves out."""
    read = []
    monkeypatch.setattr(
        FakeGPUTensor, "tolist", lambda t: read.append(t.numel()) or t.held.tolist()
    )
    with fake_gpu.gpu() as crossed:
        crossing = []
        recipe = replace(RECIPE, evaluate_every=5, record_every=0)
        with monkeypatch.context() as patch:
            original = loop.TrainStep.__call__

            def counted(train_step, step, batch):
                before = len(crossed), len(read)
                result = original(train_step, step, batch)
                # clip_grad_norm_ sorts by a device that torch tells it, here that of main memory.
                copied = [shape for shape in crossed[before[0] :] if shape != ()]
                crossing.append((copied, read[before[1] :]))
                return result

            patch.setattr(loop.TrainStep, "__call__", counted)
            trained(tmp_path / "m", DEVICE, recipe=recipe)
    assert crossing == [([], [2])] * 5


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
        loop._seed(7, torch.device("cuda:1"))
    assert seeded == [(torch.device("cuda:1"), 7)]


def test_the_peak_rate_is_none_without_memory_to_measure_it(monkeypatch):
    def full(*_size, **_options):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "full", full)
    assert PEAK_RATE("cuda:0", torch.bfloat16) is None


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(top_p=0.9, seed=2)])
def test_it_generates_on_a_gpu_what_it_generates_on_a_cpu(sampling):
    model, tokenizer = load()
    prompts = [tokenizer.encode(text) for text in ("The cat sat on", "A", "The cat")]
    expected = generate(model, prompts, tokens=7, sampling=sampling)
    with fake_gpu.gpu() as crossed:
        model.to(DEVICE)
        result = generate(model, prompts, tokens=7, sampling=sampling)
        assert [each.tolist() for each in result] == [each.tolist() for each in expected]
        assert len(crossed) <= len(prompts)  # the texts, at the end
