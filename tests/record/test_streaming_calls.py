"""Calls that are read apart, or one in so many; and what a reading keeps in memory."""

import gc
from contextlib import ExitStack
from itertools import chain, product

import pytest
import torch
from support.caches import PROMPT, STEPWISE, Attend, B, D, H, T, grown, sequence
from torch import nn

import regard
from regard.gpt import GPT, GPTCache, GPTConfig
from regard.record import read_while_running

READ = [regard.readouts.Received(), regard.readouts.Entropy()]


class Denoiser(nn.Module):
    """Two layers that are called again and again, as a diffusion does."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attend() for _ in range(2))

    def forward(self, x):
        for shift, layer in enumerate(self.layers):
            layer(x + shift, x)


STEPS = torch.randn(7, B, H, T, D, generator=torch.Generator().manual_seed(3))


def each_step(number):
    """The patterns of both layers at one step."""
    x = STEPS[number]
    return [regard.Pattern(x + shift, x) for shift in range(2)]


def denoise(**options):
    model = Denoiser()
    with read_while_running(model, *READ, **options) as run:
        for x in STEPS:
            model(x)
    return run


@pytest.mark.parametrize("every", [1, 3])
def test_calls_are_apart_by_number(every):
    run = denoise(every=every)
    numbers = range(0, 7, every)
    assert [(own.call, own.index) for own in run.layers] == [*product(numbers, range(2))]
    received, entropy = run["received"], run["entropy"]
    assert [labels["layer"] for labels in entropy.labels] == [[0], [1]] * len(numbers)
    for place, pattern in enumerate(chain.from_iterable(map(each_step, numbers))):
        assert torch.equal(received.values[place], pattern.received())
        assert torch.equal(entropy.values[place], pattern.entropy())
    assert repr(run) == f"Readings({received!r}, {entropy!r})"


def test_every_so_many_steps_of_a_generation():
    layer, (query, key) = Attend(), sequence()
    with regard.record(layer) as recording, read_while_running(layer, *READ, every=3) as run:
        grown(layer, query, key, STEPWISE)
    rows = [*range(PROMPT), PROMPT + 2]  # the prompt is call 0
    (only,) = run.layers
    assert list(only.rows) == rows
    assert torch.equal(run["entropy"].values[0], recording[0].entropy()[..., rows])
    expected = recording[0].dense()[..., rows, :].double().sum(-2)
    # Sums of six weights up to 1, in float32; of all keys, also after the last row read.
    torch.testing.assert_close(run["received"].values[0].double(), expected, rtol=0, atol=1e-6)


def test_generations_one_after_the_other_are_apart():
    layer, runs = Attend(), [sequence(), sequence()]
    with regard.record(layer) as recording, read_while_running(layer, *READ) as run:
        for query, key in runs:
            grown(layer, query, key, STEPWISE)
    assert [own.call for own in run.layers] == [0, len(STEPWISE)]
    expected = recording.read(*READ)
    for name, reading in run.items():
        for actual, wanted in zip(reading.parts, expected[name].parts, strict=True):
            assert torch.equal(actual, wanted)


# Memory

LENGTH, HEADS, DIM = 61, 6, 8


def alive():
    """The bytes of all tensors that there are, each storage counted once."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]
    held = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in held}.values())


def generated(layers, read, *, cached=True):
    """The bytes alive at the end of each step of a generation, and what the run gave.

    Without a cache it is a prompt alone, whose keys nobody else keeps.
    """
    size = {"context": LENGTH, "layers": layers, "heads": HEADS, "dim": HEADS * DIM}
    model = GPT(GPTConfig(vocab_size=31, **size))
    cache, ids = GPTCache(model.config) if cached else None, torch.arange(LENGTH)[None] % 31
    steps = (ids[:, :50], ids[:, 50:51], ids[:, 51:52])[: 3 if cached else 1]
    bytes_alive = []
    gc.collect()
    gc.freeze()  # for good: what is there now, the model's weights among it, is not looked through
    with torch.no_grad(), ExitStack() as stack:
        run = stack.enter_context(read_while_running(model, *READ)) if read else None
        for step in steps:
            model(step, cache=cache)
            bytes_alive.append(alive())
    return bytes_alive, run


@pytest.mark.parametrize("lengths", [(50, 51, 52), (50,)], ids=["a generation", "one call"])
def test_memory_above_the_plain_run_grows_with_layers_by_their_results_alone(lengths):
    above, cached = {}, len(lengths) > 1
    generated(2, read=True, cached=cached)  # what all runs share is there after the first
    for layers in (2, 5):
        plain, _ = generated(layers, read=False, cached=cached)
        read, run = generated(layers, read=True, cached=cached)
        above[layers] = [one - other for one, other in zip(read, plain, strict=True)]
        parts = [part for reading in run.values() for part in reading.parts]
        kept = sum(part.untyped_storage().nbytes() for part in parts)
        assert kept == layers * HEADS * lengths[-1] * (4 + 4)
    for keys, few, many in zip(lengths, above[2], above[5], strict=True):
        # While it runs, sums are float64; entropies are float32, one for each of as many queries.
        assert many - few == 3 * HEADS * keys * (8 + 4)
