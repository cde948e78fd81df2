"""Recording, exploring, training and generating on a GPU; skipped without one."""

import contextlib
from dataclasses import replace
from threading import Event

import pytest
import torch
from support.small_runs import TEXT, go, interrupt

import regard
from regard.gpt import GPT, CharTokenizer, GPTConfig, Sampling, TrainConfig, generate
from regard.gpt.training.batches import document_mask
from regard.gpt.training.train_step import TrainStep
from regard.page import ModelSubject

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

SHAPE = GPTConfig(context=128, layers=2, heads=4, groups=2, dim=256, positions="rotary")
RECIPE = TrainConfig(
    tokenizer="char", steps=6, warmup=2, batch=4, accumulate=2, evaluate_every=3, record_every=3,
    repeats=0.3,
)  # fmt: skip


def model(**options):
    torch.manual_seed(0)
    return GPT(replace(SHAPE, **{"vocab_size": 31, **options})).eval()


def recorded(network, ids, **options):
    with torch.no_grad(), regard.record(network, **options) as recording:
        network(ids)
    return recording


@pytest.mark.parametrize("window", [None, 50])
def test_a_recording_on_a_gpu_equals_one_on_a_cpu(window):
    network, ids = model(window=window), torch.arange(128)[None] % 31
    here = recorded(network, ids)
    there = recorded(network.cuda(), ids.cuda())
    assert {pattern.device.type for pattern in there} == {"cuda"}
    # Scores of some hundred products of float32, which a GPU adds in another order.
    for one, other in zip(there, here, strict=True):
        torch.testing.assert_close(one.dense().cpu(), other.dense(), rtol=1e-3, atol=1e-5)
    moved = there.to("cpu")
    torch.testing.assert_close(moved[1].dense(), there[1].dense().cpu(), rtol=1e-3, atol=1e-5)
    assert [head.role for head in regard.lens.heads(there)] == [
        head.role for head in regard.lens.heads(here)
    ]


def test_a_recording_takes_the_memory_of_its_queries_and_keys():
    layers, length = 4, 4096
    network = model(layers=layers, context=length).cuda().bfloat16()
    ids = torch.arange(length, device="cuda")[None] % 31
    recorded(network, ids).free()  # what kernels set up when they are first called
    before = torch.cuda.memory_allocated()
    recording = recorded(network, ids)
    kept = torch.cuda.memory_allocated() - before
    assert len(recording) == layers
    assert kept == pytest.approx(layers * (4 + 2) * 64 * length * 2, rel=0.01)


def test_maps_of_the_explorer_are_those_of_a_cpu():
    def run(device):
        tokenizer = CharTokenizer(TEXT)
        network = model(vocab_size=tokenizer.vocab_size).to(device)
        subject = ModelSubject(network, tokenizer, title="a model", text=TEXT[:128])
        return subject.run(subject.about()["runs"][0])

    here, there = run("cpu"), run("cuda")
    for window in ((1, 2, (0, 128), (0, 128), 1), (1, "mean", (5, 100), (0, 128), 4)):
        result = there.map(*window, Event())
        assert result.device.type == "cuda"
        expected = here.map(*window, Event())
        torch.testing.assert_close(result.cpu(), expected, rtol=1e-3, atol=1e-5)


def trained(folder, *, gpt=SHAPE, recipe=RECIPE, **options):
    return go(folder, gpt=gpt, config=recipe, device="cuda", **options)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # by torch's own compiler
@pytest.mark.parametrize("compiled", ["off", "on"])
def test_a_model_learns_in_bfloat16_compiled_or_not(tmp_path, compiled):
    recipe = replace(RECIPE, steps=40, compile=compiled, precision="bfloat16")
    first, *_, last = trained(tmp_path / "m", recipe=recipe).record["history"]
    assert last["loss"] < first["loss"]


def test_a_run_resumes_to_the_last_bit(tmp_path):
    # With dropout attention is written out, whose sums are always in the same order.
    gpt, recipe = replace(SHAPE, dropout=0.1), replace(RECIPE, precision="float32")
    whole = trained(tmp_path / "whole", gpt=gpt, recipe=recipe)
    interrupt(tmp_path / "part", 3, gpt=gpt, config=recipe, device="cuda")
    torch.rand(7, device="cuda")
    part = trained(tmp_path / "part", gpt=gpt, recipe=recipe, texts=None, resume=True)
    pairs = zip(whole.model.parameters(), part.model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_greedy_generation_is_that_of_a_cpu():
    network, greedy = model(), Sampling(temperature=0.0)
    prompts = [[1, 2, 3], [4, 5]]
    here = generate(network, prompts, tokens=20, sampling=greedy)
    there = generate(network.cuda(), prompts, tokens=20, sampling=greedy)
    assert [each.tolist() for each in here] == [each.tolist() for each in there]


@pytest.fixture
def no_waiting():
    """Have torch raise where anything waits for the device."""

    @contextlib.contextmanager
    def refused():
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return refused


@pytest.mark.parametrize("window", [None, 50])
def test_forward_backward_and_generation_wait_for_nothing(no_waiting, window):
    network = model(window=window).cuda().bfloat16().train()
    ids = torch.arange(256, device="cuda").reshape(2, 128) % 31
    greedy = Sampling(temperature=0.0)
    for refused in (contextlib.nullcontext, no_waiting):  # first uses check the kernels
        with refused():
            network(ids, mask=document_mask(ids, 3)).sum().backward()
            generate(network, ids[:, :5], tokens=9, sampling=greedy)


def test_an_update_waits_for_nothing(no_waiting, tmp_path, monkeypatch):
    original = TrainStep.__call__

    def watched(update, step, batch):
        with no_waiting() if step > 1 else contextlib.nullcontext():
            return original(update, step, batch)

    monkeypatch.setattr(TrainStep, "__call__", watched)
    trained(tmp_path / "m", recipe=replace(RECIPE, precision="bfloat16"))
