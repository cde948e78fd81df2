"""Runs of a model that do not go on from each other, in one recording."""

import pytest
import torch
from record.models.classes import CASES
from support.caches import STEPWISE, B, D, Decoder, H, chunks, close, decoded, exact, sequence
from support.recordings import Model
from torch import nn

import regard
from regard.record import RecordError, read_while_running

E = 6 * D


class CrossAttention(nn.Module):
    """A layer of torch's that attends to a source, with nothing else."""

    def __init__(self):
        super().__init__()
        self.cross_attn = nn.MultiheadAttention(E, H, batch_first=True)

    def forward(self, x, source):
        return self.cross_attn(x, source, source)[0]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_queries_of_two_runs_over_one_source(mode):
    model, (x, y), source = CrossAttention().eval(), torch.randn(2, B, 1, E), torch.randn(B, 7, E)
    reading = read_while_running(model, regard.readouts.Received())
    with mode(), regard.record(model) as recording, reading as run:
        model(x, source)
        model(y, source)
    assert [list(layer.rows) for layer in recording.layers] == [[0], [0]]
    assert [own.call for own in run.layers] == [0, 1]
    for number, (pattern, query) in enumerate(zip(recording, (x, y), strict=True)):
        weights = model.cross_attn(query, source, source, average_attn_weights=False)[1].detach()
        torch.testing.assert_close(pattern.dense(), weights, rtol=0, atol=1e-6)
        received = run["received"].values[number]
        torch.testing.assert_close(received, weights.sum(-2), rtol=0, atol=1e-6)


@pytest.mark.parametrize("cross_first", [False, True])
def test_runs_of_one_token_over_one_source(cross_first):
    """Each decoder begins anew, without a cache."""
    model, source = Decoder(cross_first=cross_first), torch.randn(B, H, 7, D)
    runs = [sequence(1) for _ in range(3)]
    with regard.record(model) as recording:
        for query, key in runs:
            decoded(model, query, key, source, [(0, 1)])
    for kind in ("self", "cross"):
        assert [list(layer.rows) for layer in recording.of_kind(kind).layers] == [[0]] * 3
    for pattern, (query, _) in zip(recording.of_kind("cross"), runs, strict=True):
        close(pattern, exact(query, source, visible=torch.ones(1, 7, dtype=torch.bool)))


@pytest.mark.parametrize("parts", [STEPWISE, chunks(1, *[1] * 6), chunks(3, 2)])
def test_two_texts_over_one_source(parts):
    """The second begins with as many tokens as a step of the first has, or with more."""
    model, source, length = Decoder(), torch.randn(B, H, 7, D), parts[-1][1]
    texts = [sequence(length) for _ in range(2)]
    with regard.record(model) as recording:
        for query, key in texts:
            decoded(model, query, key, source, parts)
    everything = torch.ones(length, 7, dtype=torch.bool)
    patterns = recording.of_kind("self"), recording.of_kind("cross")
    for own, cross, (query, _) in zip(*patterns, texts, strict=True):
        assert own.shape[-2:] == (length, length)
        close(cross, exact(query, source, visible=everything))


def test_a_query_that_pools_after_an_encoder():
    """The encoder's self-attention tells that the second run began anew."""

    class Pooling(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.cross_attn = Decoder().self_attn, Decoder().cross_attn

        def forward(self, query, key):
            self.layers(key, key)
            self.cross_attn(query, key)

    model, queries, key = Pooling(), torch.randn(2, B, H, 1, D), torch.randn(B, H, 7, D)
    with regard.record(model) as recording:
        for query in queries:
            model(query, key)
    for pattern, query in zip(recording.of_kind("cross"), queries, strict=True):
        close(pattern, exact(query, key, visible=torch.ones(1, 7, dtype=torch.bool)))


@pytest.mark.parametrize("same", [True, False])
def test_pictures_that_are_pooled_one_after_the_other(same):
    """Siglip's head has one query over the patches of a picture."""
    model, pictures = CASES["siglip, vision"].build("sdpa"), torch.randn(2, 1, 3, 21, 21)
    pictures[1] = pictures[0] if same else pictures[1]
    with torch.no_grad(), regard.record(model) as recording:
        outputs = [model(picture) for picture in pictures]
    heads = [layer for layer in recording.layers if layer.name.endswith("head.attention")]
    assert [list(layer.rows) for layer in heads] == [[0], [0]]
    pool = next(m for name, m in model.named_modules() if name.endswith("head"))
    for layer, output in zip(heads, outputs, strict=True):
        states = output.last_hidden_state
        with torch.no_grad():
            _, weights = pool.attention(pool.probe, states, states, average_attn_weights=False)
        torch.testing.assert_close(layer.pattern.dense(), weights, rtol=0, atol=1e-6)


def test_a_text_of_one_token_twice():
    model, ids = CASES["llama"].build("sdpa"), torch.tensor([[5]])
    with torch.no_grad(), regard.record(model) as recording:
        for _ in range(2):
            model(ids)
    assert [tuple(pattern.shape[-2:]) for pattern in recording] == [(1, 1)] * 4


@pytest.mark.parametrize("how", CASES["t5"].implementations)
def test_decoders_of_one_token_over_one_source(how):
    model, source = CASES["t5"].build(how), torch.randint(3, 101, (2, 7))
    tokens, eager = [torch.full((2, 1), token) for token in (5, 6)], CASES["t5"].build("eager")
    with torch.no_grad(), regard.record(model) as recording:
        for ids in tokens:
            model(source, decoder_input_ids=ids)
    layers, expected = recording.of_kind("cross").layers, []
    for ids in tokens:
        with torch.no_grad():
            out = eager(source, decoder_input_ids=ids, output_attentions=True)
        expected += out.cross_attentions
    assert [layer.index for layer in layers] == [0, 1, 0, 1]
    for layer, weights in zip(layers, expected, strict=True):
        assert list(layer.rows) == [0]
        torch.testing.assert_close(layer.pattern.dense(), weights, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_two_generations_from_one_source(name):
    """Both begin with the same token, of which the keys are the same."""
    model, source = CASES[name].build("sdpa"), torch.randint(3, 101, (2, 7))
    options = {"do_sample": False, "eos_token_id": None, "forced_eos_token_id": None}
    with torch.no_grad(), regard.record(model) as recording:
        for new in (4, 6):
            model.generate(source, max_new_tokens=new, min_new_tokens=new, **options)
    for kind in ("self", "cross"):
        rows = [len(layer.rows) for layer in recording.of_kind(kind).layers if layer.index == 0]
        assert rows == [4, 6]


USES = {
    "rollout": lambda recording: regard.lens.rollout(recording, query=-1),
    "heads": regard.lens.heads,
    "passages": lambda recording: regard.lens.passages(recording, [(1, 3)], answer=slice(5, 7)),
    "against": lambda recording: regard.lens.against(recording, []),
    "fidelity": lambda recording: regard.lens.fidelity(recording, recording),
}


@pytest.mark.parametrize("use", USES)
def test_what_goes_over_a_model_needs_one_run(use):
    message = rf"{use} needs the layers of one run, but 'layer0' attended 2 times in this"
    model = Model(["layer0", "layer1"])
    with regard.record(model) as recording:
        for inputs in torch.randn(2, 2, 2, B, H, 7, D):
            model(inputs=inputs, is_causal=True)
    with pytest.raises(RecordError, match=f"{message} recording; record one run at a time"):
        USES[use](recording)
