"""What a monitor reads inside updates, against full recordings of the same batches."""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.utils.checkpoint import checkpoint

import regard
from regard.gpt import GPT, GPTConfig
from regard.intercept import is_observed
from regard.pattern.readouts import MaxScore
from regard.record import RecordError

LAYERS, HEADS = 2, 3
SHAPES = ((2, 11), (3, 7))  # of the batches of an update, whose rows count alike
BATCHES = [torch.randint(31, shape) for shape in SHAPES]


def model(**config):
    shape = {"layers": LAYERS, "heads": HEADS, "dim": 24, "context": 11, "vocab_size": 31}
    return GPT(GPTConfig(**shape, initial_std=0.5, **config))


class Checkpointed(nn.Module):
    """A block whose activations are computed again in the backward pass."""

    def __init__(self, block, *, reentrant):
        super().__init__()
        self.block, self.reentrant = block, reentrant

    def forward(self, x, *args, **kwargs):
        def run(x):
            return self.block(x, *args, **kwargs)

        return checkpoint(run, x, use_reentrant=self.reentrant)


WAYS = {
    "plain": lambda block: block,
    "checkpoint": partial(Checkpointed, reentrant=False),
    "reentrant checkpoint": partial(Checkpointed, reentrant=True),
}


@dataclass(frozen=True)
class Calls(regard.pattern.readouts.Entropy):
    """Entropy, counting how often a pattern is read."""

    counts: ClassVar[list[int]] = []

    def begin(self, sizes):
        self.counts.append(sizes.queries)
        return super().begin(sizes)

    def kernel_spec(self, sizes):
        return None


def backward(model, ids):
    F.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten()).backward()


@pytest.mark.parametrize(
    ("way", "bfloat16"), [*((way, False) for way in WAYS), ("reentrant checkpoint", True)]
)
def test_an_update_is_all_of_its_batches_once(way, bfloat16):
    trained = model(groups=1, positions="rotary")
    trained.h = nn.ModuleList(map(WAYS[way], trained.h))
    read = {
        "max_logit": regard.readouts.MaxScore(),
        "entropy": Calls(),
        "first_token": regard.readouts.Mass(0),
    }
    monitor, recordings = regard.Monitor(trained, every=1, read=read), []
    Calls.counts.clear()
    with monitor.update():
        for ids in BATCHES:
            with regard.record(trained) as recording, torch.autocast("cpu", enabled=bfloat16):
                backward(trained, ids)
            recordings.append(recording)
    assert Calls.counts == [length for _, length in SHAPES for _ in range(LAYERS)]
    assert monitor.heads == tuple(
        ("self", layer, head) for layer in range(LAYERS) for head in range(HEADS)
    )
    for layer in range(LAYERS):
        patterns = [recording[layer] for recording in recordings]
        own = slice(layer * HEADS, (layer + 1) * HEADS)
        largest = [
            pattern.read(regard.readouts.MaxScore())[0].amax(dim=(0, 2)) for pattern in patterns
        ]
        actual = monitor.values("max_logit")[0, own]
        assert torch.equal(actual, torch.stack(largest).amax(0).double())
        for name, readout in (("entropy", Calls()), ("first_token", regard.readouts.Mass(0))):
            rows = [p.read(readout)[0].transpose(0, 1).flatten(1).double() for p in patterns]
            expected = torch.cat(rows, dim=1).mean(dim=1)
            # Sums of 43 numbers below 4 in float64.
            actual = monitor.values(name)[0, own]
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)


def test_gradients_are_those_of_a_plain_update():
    gradients = []
    for monitored in (False, True):
        torch.manual_seed(1)
        trained = model(dropout=0.2)
        monitor = regard.Monitor(trained, every=1)
        with monitor.update() if monitored else nullcontext():
            for ids in BATCHES:
                backward(trained, ids)
        gradients.append([p.grad for p in trained.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


def is_touched():
    hooks = torch_modules._global_forward_pre_hooks or torch_modules._global_forward_hooks
    return bool(hooks or is_observed())


def test_between_the_updates_that_are_read_nothing_is_touched():
    trained = model()
    monitor, touched = regard.Monitor(trained, every=3), []
    for _ in range(7):
        with monitor.update():
            touched.append(is_touched())
            backward(trained, BATCHES[0])
        assert not is_touched()
    assert touched == [True, False, False, True, False, False, True]
    assert monitor.updates == (0, 3, 6)
    assert repr(monitor) == "Monitor(3 readings of 6 heads: max_logit, entropy, first_token)"


def test_an_evaluation_between_batches_is_left_out():
    trained, values = model(), []
    for evaluated in (False, True):
        monitor = regard.Monitor(trained, every=1)
        with monitor.update():
            for ids in BATCHES:
                backward(trained, ids)
                if evaluated:
                    trained.eval()
                    for context in (torch.no_grad(), torch.inference_mode()):
                        with context:
                            trained(ids.flip(1))
                    trained.train()
        values.append(monitor.values("entropy"))
    assert torch.equal(*values)


def test_a_model_in_evaluation_mode_can_be_trained():
    trained = model().eval()
    monitor = regard.Monitor(trained)
    with monitor.update():
        backward(trained, BATCHES[0])
    assert monitor.updates == (0,)


def test_rows_that_see_nothing_do_not_count():
    class Padded(nn.Module):
        def forward(self, query, key, mask):
            return F.scaled_dot_product_attention(query, key, key, attn_mask=mask)

    query, key = torch.randn(2, 2, HEADS, 5, 8).unbind()
    query.requires_grad_()
    seen = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    mask = (seen[:, None, :] & seen[:, :, None])[:, None].tril()
    own, monitor = Padded(), regard.Monitor(every=1)
    with monitor.update():
        own(query, key, mask)
    expected = regard.Pattern(query, key, mask=regard.dense(mask)).entropy().double()
    expected = (expected * seen[:, None]).sum(dim=(0, 2)) / seen.sum()
    torch.testing.assert_close(monitor.values("entropy")[0], expected, rtol=0, atol=1e-6)


def test_the_largest_of_scores_below_zero_is_theirs_where_rows_see_nothing():
    class Padded(nn.Module):
        def forward(self, query, key):
            return regard.attention(query, key, key, mask=regard.causal(offset=-2))

    query = torch.rand(2, HEADS, 5, 7).add(1).requires_grad_()
    key, monitor = -torch.rand(2, HEADS, 5, 7) - 1, regard.Monitor(every=1, read=[MaxScore()])
    own = Padded()
    with monitor.update():
        own(query, key)
    scores = (query @ key.mT / 7**0.5).detach().double()
    expected = scores.masked_fill(torch.ones(5, 5).triu(-1).bool(), -torch.inf).amax((0, 2, 3))
    assert bool((expected < 0).all())
    torch.testing.assert_close(monitor.values("max_score")[0], expected, rtol=0, atol=1e-6)


def test_a_row_that_sees_a_sink_alone_does_not_count():
    class WithSink(nn.Module):
        def forward(self, query, key, sink):
            return regard.attention(query, key, key, mask=regard.causal(offset=-2), sink=sink)

    query, key = torch.randn(2, 2, HEADS, 5, 7).unbind()
    sink, own, monitor = torch.randn(HEADS), WithSink(), regard.Monitor(every=1)
    query.requires_grad_()
    with monitor.update():
        own(query, key, sink)
    pattern = regard.Pattern(query.detach(), key, mask=regard.causal(offset=-2), sink=sink)
    expected = pattern.entropy()[..., 2:].double().mean(dim=(0, 2))
    torch.testing.assert_close(monitor.values("entropy")[0], expected, rtol=0, atol=1e-6)


def test_weights_that_a_layer_takes_for_two_halves_of_its_values_count_once():
    class Halves(nn.Module):
        def forward(self, query, key, values):
            halves = [F.scaled_dot_product_attention(query, key, value) for value in values]
            return torch.cat(halves, dim=-1)

    query, key, *values = torch.randn(4, 2, HEADS, 5, 7).unbind()
    query.requires_grad_()
    own, monitor = Halves(), regard.Monitor(every=1, read=[Calls()])
    Calls.counts.clear()
    with monitor.update():
        own(query, key, values).sum().backward()
    assert Calls.counts == [5]
    assert monitor.values("calls").shape == (1, HEADS)


class Uneven(nn.Module):
    """Layers with unlike numbers of heads, which may be left out."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(12, heads, batch_first=True) for heads in (2, 3)
        )

    def forward(self, x, layers=2):
        for layer in self.layers[:layers]:
            x = x + layer(x, x, x)[0]
        return x


def test_layers_may_differ_in_heads_and_be_left_out():
    trained, x = Uneven(), torch.randn(2, 5, 12)
    monitor = regard.Monitor(trained, every=1)
    for layers in (1, 2):
        with monitor.update():
            trained(x, layers).sum().backward()
    assert [(head.layer, head.head) for head in monitor.heads] == [
        *((0, head) for head in range(2)),
        *((1, head) for head in range(3)),
    ]
    unread = monitor.values("entropy").isnan()
    assert unread.tolist() == [[False] * 2 + [True] * 3, [False] * 5]
    frame = monitor.frame()
    assert list(frame) == ["update", "kind", "layer", "head", *monitor.quantities]
    assert len(frame) == 2 + 5


def test_kinds_of_attention_are_apart():
    shape = {"dim_feedforward": 16, "dropout": 0.0, "batch_first": True}
    trained = nn.Transformer(12, 2, num_encoder_layers=1, num_decoder_layers=2, **shape)
    monitor = regard.Monitor(trained, every=1)
    with monitor.update():
        trained(torch.randn(2, 5, 12), torch.randn(2, 7, 12)).sum().backward()
    expected = [("self", 0), ("self", 1), ("cross", 0), ("cross", 1), ("encoder", 0)]
    assert [(head.kind, head.layer) for head in monitor.heads[::2]] == expected


# Numbers of updates


def numbers(every, given):
    trained = Uneven()
    monitor = regard.Monitor(trained, every=every)
    for number in given:
        with monitor.update(number):
            trained(torch.randn(1, 2, 12)).sum().backward()
    return monitor.updates


def test_updates_have_the_numbers_that_are_given():
    assert numbers(3, [58, 59, 60, 61]) == (60,)
    assert numbers(3, [0, 2, 4, 6, 8, 10]) == (0, 4, 6, 10)  # two steps an update
    assert numbers(3, [0, None, None, None]) == (0, 3)
    assert numbers(2, [0, 2, 4, 2, 4]) == (0, 2, 4)  # resumed from before


def test_what_ends_early_leaves_no_reading():
    trained = model()
    monitor = regard.Monitor(trained, every=1)

    def interrupted():
        with monitor.update():
            backward(trained, BATCHES[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    monitor.begin()
    backward(trained, BATCHES[0])
    monitor.cancel()
    assert monitor.updates == ()
    assert not is_touched()


# What is refused


def test_a_model_without_attention_is_refused_at_the_first_update():
    trained = nn.Linear(3, 3)
    monitor = regard.Monitor(trained)
    with (
        pytest.raises(RecordError, match="no attention call of Linear was seen in update 0"),
        monitor.update(),
    ):
        trained(torch.randn(2, 3)).sum().backward()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"every": 0}, ValueError, "every must be at least 1, but is 0"),
        ({"every": 2.5}, TypeError, "every must be a whole number"),
        ({"read": []}, TypeError, "read must be a list of readouts"),
        ({"read": regard.readouts.Entropy()}, TypeError, "read must be a list of readouts"),
        ({"read": {"entropy": "Entropy"}}, TypeError, "'Entropy' is not a readout"),
        (
            {
                "read": [regard.readouts.MaxScore()],
                "alarms": [regard.lens.Alarm("max_logit", above=1)],
            },
            ValueError,
            "max_logit above 1 is of a quantity that is not read; there is 'max_score'",
        ),
        ({"alarms": ["max_logit > 100"]}, TypeError, "alarms must be regard.lens.Alarm"),
    ],
)
def test_arguments_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        regard.Monitor(**options)


@pytest.mark.parametrize(
    ("readout", "message"),
    [
        (regard.readouts.TopK(2), "top_positions of TopK.* gives positions"),
        (regard.readouts.Received(grouped=True), "does not give a number for each query head"),
    ],
)
def test_readouts_without_a_number_a_head_are_refused(readout, message):
    trained = model(groups=1)
    monitor = regard.Monitor(trained, read=[readout])
    with pytest.raises(TypeError, match=message), monitor.update():
        backward(trained, BATCHES[0])


def test_readouts_of_one_s_own_choice():
    trained = model()
    read = [regard.readouts.Received("max"), regard.readouts.Lag(1), regard.readouts.Distance()]
    monitor = regard.Monitor(trained, every=1, read=read)
    with monitor.update(), regard.record(trained) as recording:
        backward(trained, BATCHES[0])
    received, lag, distance = recording[1].read(*read)
    assert monitor.quantities == ("received", "lag_weights", "lag_log_weights", "distance")
    assert torch.equal(monitor.values("received")[0, HEADS:], received.amax((0, 2)).double())
    for name, rows in (("lag_weights", lag.weights), ("distance", distance)):
        actual, expected = monitor.values(name)[0, HEADS:], rows.double().mean(dim=(0, 2))
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)
