"""Recordings on a GPU that has numbers and no kernels: they stay there, or move on request."""

import pytest
import torch
from support import fake_gpu
from support.fake_gpu import DEVICE, FakeGPUTensor, gpu
from torch import nn

import regard
from regard.gpt import GPT, GPTCache, GPTConfig
from regard.record import read_while_running

LENGTH, HEADS, DIM = 61, 6, 8  # of a head
IDS = torch.arange(LENGTH)[None] % 31


def recorded(model, *inputs, **options):
    with torch.no_grad(), regard.record(model, **options) as recording:
        model(*inputs)
    return recording


@pytest.fixture
def model():
    torch.manual_seed(0)
    size = {"context": LENGTH, "layers": 2, "heads": HEADS, "groups": 2, "dim": HEADS * DIM}
    return GPT(GPTConfig(vocab_size=31, **size)).eval()


def test_nothing_leaves_the_device_while_a_model_is_recorded_and_read(model):
    expected = recorded(model, IDS)
    readouts = (
        regard.readouts.TopK(3),
        regard.readouts.Entropy(),
        regard.readouts.Received(),
        regard.readouts.Image(5, 7),
    )
    with gpu() as crossed:
        recording = recorded(model.to(DEVICE), IDS.to(DEVICE))
        readings = recording.read(
            *readouts, regard.readouts.Mass([0, 3]), regard.readouts.Offsets(4)
        )
        rollout = regard.lens.rollout(recording, query=-1)
        heads = regard.lens.heads(recording)
        assert crossed == []
        assert all(pattern.device == DEVICE for pattern in recording)
        part = readings["image"].values
        assert isinstance(part, FakeGPUTensor)
        torch.testing.assert_close(
            part.cpu(), expected.read(regard.readouts.Image(5, 7))["image"].values
        )
        torch.testing.assert_close(rollout.cpu(), regard.lens.rollout(expected, query=-1))
    assert [head.role for head in heads] == [head.role for head in regard.lens.heads(expected)]


@pytest.mark.parametrize("options", [{}, {"heads": [1, 4]}, {"rows": [-1, 5]}], ids=str)
def test_recording_waits_for_nothing(model, options):
    with gpu():
        model, ids = model.to(DEVICE), IDS.to(DEVICE)
        with fake_gpu.waits() as found, torch.no_grad(), regard.record(model, **options):
            model(ids)
    assert found == []


def test_to_moves_a_recording(model):
    expected = recorded(model, IDS, tokens=[str(i) for i in range(LENGTH)])
    with gpu() as crossed:
        there = recorded(model.to(DEVICE), IDS.to(DEVICE), tokens=[str(i) for i in range(LENGTH)])
        here = there.to("cpu")
        sizes = {(1, HEADS, LENGTH, DIM), (1, 2, LENGTH, DIM)}
        assert set(crossed) == sizes
        assert len(crossed) == 4
        back = here.to(DEVICE)
        assert here.to("cpu").layers == here.layers  # are there already
        assert there.to("cuda").layers == there.layers
        there.free()
        assert [pattern.device for pattern in back] == [DEVICE] * 2
        torch.testing.assert_close(back[1].dense().cpu(), expected[1].dense())
    assert here.tokens == expected.tokens
    assert [layer.name for layer in here.layers] == [layer.name for layer in expected.layers]
    for one, other in zip(here, expected, strict=True):
        torch.testing.assert_close(one.dense(), other.dense())


def test_an_offloaded_recording_is_complete_on_the_cpu(model):
    expected = recorded(model, IDS)
    with gpu():
        recording = recorded(model.to(DEVICE), IDS.to(DEVICE), offload="cpu")
    assert [pattern.device.type for pattern in recording] == ["cpu"] * 2
    torch.testing.assert_close(recording[1].dense(), expected[1].dense())


@pytest.mark.parametrize("offload", [None, "cpu"])
def test_a_generation_is_recorded_on_the_device(model, offload):
    def grown(ids):
        cache = GPTCache(model.config)
        with torch.no_grad(), regard.record(model, offload=offload) as recording:
            for part in ids.split([50, 1, 1], dim=1):
                model(part, cache=cache)
        return recording

    expected = grown(IDS[:, :52])
    with gpu():
        model.to(DEVICE)
        recording = grown(IDS[:, :52].to(DEVICE))
        assert recording[1].device.type == ("cpu" if offload else "cuda")
        torch.testing.assert_close(recording[1].dense().cpu(), expected[1].dense())


class Masked(nn.Module):
    """Two calls with one mask that is not an interval."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("allowed", torch.rand(7, 7, generator=generator) < 0.5)

    def forward(self, x):
        for _ in range(2):
            x = nn.functional.scaled_dot_product_attention(x, x, x, self.allowed)
        return x


def test_a_mask_that_layers_share_is_moved_once():
    model, x = Masked(), torch.linspace(-1, 1, 3 * 7 * 5).view(1, 3, 7, 5)
    expected = recorded(model, x)
    with gpu() as crossed:
        here = recorded(model.to(DEVICE), x.to(DEVICE)).to("cpu")
        assert crossed.count((1, 1, 7, 7)) == 1
    one, other = (pattern.problem.rows.allowed for pattern in here)
    assert one is other
    torch.testing.assert_close(here[1].dense(), expected[1].dense())


OPTIONS = {
    "interval": {"mask": regard.causal() & regard.window(3)},
    "table": {"mask": regard.padding(torch.arange(5) < torch.tensor([[4], [5]]))},
    "dense": {"mask": regard.dense(torch.eye(5).bool()), "bias": torch.ones(5, 5)},
    "numbers": {"softcap": 2.0, "alibi": torch.tensor([0.5, 0.1]), "sink": torch.ones(2)},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("known", [True, False])
def test_all_of_a_pattern_moves(name, known):
    query, key = torch.randn(2, 2, 2, 5, 7, generator=torch.Generator().manual_seed(0)).unbind()
    pattern = regard.Pattern(query, key, **OPTIONS[name])
    if known:
        _ = pattern.logsumexp
    with gpu() as crossed:
        there = pattern.to(DEVICE)
        problem, logsumexp = there.problem, there._logsumexp
        rows = problem.rows
        tensors = [problem.query, problem.key, problem.alibi, problem.sink, logsumexp]
        tensors += [rows.allowed, rows.bias, rows.positions, rows.start, rows.stop]
        assert all(t.device == DEVICE for t in tensors if t is not None)
        assert (logsumexp is not None) is known
        assert there.to(DEVICE) is there
        assert crossed == []
        torch.testing.assert_close(there.dense().cpu(), pattern.dense())
        back = there.to("cpu")
        assert back.shape == pattern.shape
        torch.testing.assert_close(back[1, 0].entropy(), pattern[1, 0].entropy())


def test_the_mimicked_device_refuses_what_cuda_refuses():
    with gpu() as crossed:
        there = torch.ones(3).to(DEVICE)
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.ones(3)
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert float((there * 2).sum()) == 6.0
        assert torch.arange(3, device=DEVICE).device == fake_gpu.DEVICE
        assert crossed == []
        assert type(there.cpu()) is torch.Tensor
        assert crossed == [(3,)]


def test_readings_while_it_runs_stay_on_the_device(model):
    readouts = [regard.readouts.TopK(3), regard.readouts.Entropy(), regard.readouts.Received()]
    with gpu() as crossed:
        model, cache, ids = model.to(DEVICE), GPTCache(model.config), IDS.to(DEVICE)
        with torch.no_grad(), read_while_running(model, *readouts) as run:
            for part in (ids[:, :50], ids[:, 50:51]):
                model(part, cache=cache)
        assert isinstance(run["received"].values, FakeGPUTensor)
        assert run["entropy"].values.device == DEVICE
        assert crossed == []
