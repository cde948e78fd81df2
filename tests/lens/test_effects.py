"""Effects are what changing a model one by one, by hand, does to the number."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard import Error
from regard.gpt import GPT, GPTConfig

LAYERS, HEADS, DIM, VOCAB = 3, 4, 20, 31
TARGET = regard.lens.LogProbability(7)


@pytest.fixture(autouse=True)
def seeded_and_without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture
def gpt():
    config = GPTConfig(vocab_size=VOCAB, context=90, layers=LAYERS, heads=HEADS, dim=DIM)
    model = GPT(config).eval()
    for parameter in model.parameters():  # so that heads matter
        nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture
def ids():
    return torch.randint(VOCAB, (13,))


def without_head(model, projection, head, size, run):
    """A run in which a head's part of the input of an output projection is 0."""

    def zero(_, args):
        context = args[0].clone()
        context[..., head * size : (head + 1) * size] = 0
        return (context, *args[1:])

    with projection.register_forward_pre_hook(zero):
        return run(model)


def by_hand(model, projections, run, target, size=DIM // HEADS):
    """The effects of all heads, of each layer's output projection."""
    unchanged = target(run(model))
    rows = []
    for projection in projections:
        heads = projection.weight.numel() // len(projection.bias) // size
        outputs = [without_head(model, projection, head, size, run) for head in range(heads)]
        rows.append(torch.cat([target(output) - unchanged for output in outputs]))
    return torch.stack(rows).double()


@pytest.mark.parametrize("batch_size", [None, 1, 3])
@pytest.mark.parametrize(
    "target",
    [TARGET, regard.lens.Logit(3, position=4), lambda logits: logits[:, 2:9].std(dim=(1, 2))],
)
def test_heads_are_those_ablated_by_hand(gpt, ids, target, batch_size):
    effects = regard.lens.effects(gpt, ids, target, batch_size=batch_size)
    expected = by_hand(gpt, [block.attn.c_proj for block in gpt.h], lambda m: m(ids[None]), target)
    torch.testing.assert_close(effects.values, expected, atol=1e-5, rtol=1e-5)
    assert effects.unchanged == pytest.approx(float(target(gpt(ids[None]))), abs=1e-5)
    assert effects.axes == ("layer", "head")
    assert effects.labels == (tuple(range(LAYERS)), tuple(range(HEADS)))


def test_the_loss_is_that_of_the_text(gpt, ids):
    def loss(logits):
        return F.cross_entropy(logits[0, :-1], ids[1:])[None]

    effects = regard.lens.effects(gpt, ids[None], "loss")
    expected = by_hand(gpt, [block.attn.c_proj for block in gpt.h], lambda m: m(ids[None]), loss)
    torch.testing.assert_close(effects.values, expected, atol=1e-5, rtol=1e-5)
    assert effects.target == "loss"


def test_padding_is_no_part_of_the_loss(gpt, ids):
    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.gpt = gpt

        def forward(self, input_ids, attention_mask):
            return self.gpt(input_ids, mask=regard.padding(attention_mask.bool()))

    mask = (torch.arange(len(ids)) >= 3).long()[None]
    inputs = {"input_ids": ids[None], "attention_mask": mask}
    effects = regard.lens.effects(Padded(), inputs, "loss", layers=0, heads=0)
    losses = F.cross_entropy(Padded()(**inputs)[0, :-1], ids[1:], reduction="none")
    assert effects.unchanged == pytest.approx(float(losses[3:].mean()), abs=1e-5)


def test_keys_are_those_hidden_by_hand(gpt, ids):
    effects = regard.lens.effects(gpt, ids, TARGET, over="keys", batch_size=4)
    length = len(ids)
    for key in range(length):
        allowed = torch.ones(length, length, dtype=torch.bool)
        allowed[key + 1 :, key] = False
        hidden = gpt(ids[None], mask=regard.dense(allowed))
        value = float(TARGET(hidden)) - effects.unchanged
        assert float(effects.values[key]) == pytest.approx(value, abs=1e-5)
    assert float(effects.values[-1]) == 0
    assert effects.axes == ("keys",)
    assert effects.places == tuple((key, key + 1) for key in range(length))


@pytest.mark.parametrize(
    "where", [{"layers": 1}, {"layers": [0, 2], "heads": 1}, {"heads": [0, -1]}]
)
def test_keys_can_be_hidden_in_some_heads(gpt, ids, where):
    effects = regard.lens.effects(gpt, ids, TARGET, over=[(0, 3), (2, 7), (4, 13)], **where)
    for (first, stop), value in zip(effects.places, effects.values.tolist(), strict=True):
        if stop == len(ids):
            assert value == 0
            continue
        with regard.intervene(gpt) as change:
            keys, queries = slice(first, stop), slice(stop, None)
            change.knock_out(keys=keys, queries=queries, **where)
            hidden = float(TARGET(gpt(ids[None])))
        assert value == pytest.approx(hidden - effects.unchanged, abs=1e-5)


def test_a_long_text_is_cut_into_blocks_of_equal_size(gpt):
    ids = torch.randint(VOCAB, (90,))
    effects = regard.lens.effects(gpt, ids, TARGET, over="keys")
    assert effects.places == tuple((first, first + 2) for first in range(0, 90, 2))
    assert effects.labels[0][3] == "6–7"


def test_only_the_layers_and_heads_that_are_named_are_ablated(gpt, ids):
    effects = regard.lens.effects(gpt, ids, TARGET)
    part = regard.lens.effects(gpt, ids, TARGET, layers=slice(1, None), heads=[3, 0])
    assert part.labels == ((1, 2), (0, 3))
    torch.testing.assert_close(part.values, effects.values[1:, [0, 3]])
    assert part.places == ((1, 0), (1, 3), (2, 0), (2, 3))


def test_a_mean_can_take_the_place_of_a_context(gpt, ids):
    effects = regard.lens.effects(gpt, ids, TARGET, by="mean")
    assert (effects.by, effects.prompts, effects.by_prompt) == ("mean", (), None)
    for (layer, head), value in zip(effects.places, effects.values.flatten().tolist(), strict=True):
        with regard.intervene(gpt) as change:
            change.ablate(layers=layer, heads=head, by="mean")
            changed = float(TARGET(gpt(ids[None])))
        assert value == pytest.approx(changed - effects.unchanged, abs=1e-5)


def test_a_function_runs_the_model_as_it_likes(gpt, ids):
    counts = []

    def run(model):
        counts.append(1)
        return model(ids), model(ids.flip(0))

    def target(outputs):
        return (outputs[0] - outputs[1])[-1, 3]

    effects = regard.lens.effects(gpt, run, target)
    assert len(counts) == 1 + LAYERS * HEADS
    expected = by_hand(
        gpt, [block.attn.c_proj for block in gpt.h], run, lambda outputs: target(outputs)[None]
    )
    torch.testing.assert_close(effects.values, expected, atol=1e-5, rtol=1e-5)
    hidden = regard.lens.effects(gpt, run, target, over="keys")
    assert hidden.values.shape == (len(ids),)


class Shared(nn.Module):
    """Two layers of which one attends twice, and another one has fewer heads."""

    def __init__(self):
        super().__init__()
        self.first = regard.nn.MultiHeadAttention(DIM, 4, mask=regard.causal())
        self.second = regard.nn.MultiHeadAttention(DIM, 2, mask=regard.causal())

    def forward(self, x):
        return self.first(x + self.second(x + self.first(x)))


def test_a_layer_that_attends_twice_counts_twice_and_missing_heads_are_nan():
    model, x = Shared(), torch.randn(1, 6, DIM)
    effects = regard.lens.effects(model, {"x": x}, lambda y: y[:, -1, 0])
    assert effects.values.shape == (3, 4)
    assert effects.values.isnan().sum() == 2
    assert effects.values[1, 2:].isnan().all()
    assert len(effects.largest(99)) == 10
    for place, value in zip(effects.places, effects.values.flatten().tolist(), strict=True):
        if not math.isnan(value):
            with regard.intervene(model) as change:
                change.ablate(layers=place[0], heads=place[1])
                changed = float(model(x)[0, -1, 0])
            assert value == pytest.approx(changed - effects.unchanged, abs=1e-5)


def test_torchs_own_layers_are_measured_too():
    layer = nn.TransformerEncoderLayer(DIM, 4, 16, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(1, 6, DIM)
    effects = regard.lens.effects(model, {"src": x}, lambda y: y[:, 0, 0])
    for (index, head), value in zip(effects.places, effects.values.flatten().tolist(), strict=True):
        with regard.intervene(model) as change:
            change.ablate(layers=index, heads=head)
            changed = float(model(x)[0, 0, 0])
        assert value == pytest.approx(changed - effects.unchanged, abs=1e-5)


def test_sequences_first_are_not_mistaken_for_the_batch():
    layer = nn.TransformerEncoderLayer(DIM, 4, 16)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(6, 1, DIM)  # (T, B, E): copies of it can't be made, runs can
    effects = regard.lens.effects(model, lambda model: model(x), lambda y: y[0, 0, 0])
    with regard.intervene(model) as change:
        change.ablate(layers=1, heads=2)
        changed = float(model(x)[0, 0, 0])
    assert float(effects.values[1, 2]) == pytest.approx(changed - effects.unchanged, abs=1e-5)


def test_the_largest_come_first_whatever_their_sign(gpt, ids):
    effects = regard.lens.effects(gpt, ids, TARGET)
    largest = effects.largest(5)
    magnitudes = [abs(effect.value) for effect in largest]
    assert magnitudes == sorted(effects.values.abs().flatten().tolist(), reverse=True)[:5]
    layer, head = largest[0].place
    assert largest[0].name == f"{layer}·{head}"
    assert largest[0].value == float(effects.values[layer, head])
    assert repr(effects).startswith("Effects(layer 3 × head 4; log-probability of token 7 at")


def test_frames_have_a_row_each(gpt, ids):
    heads = regard.lens.effects(gpt, ids, TARGET).frame()
    assert heads.columns.tolist() == ["layer", "head", "effect"]
    assert len(heads) == LAYERS * HEADS
    names = [f"<{number}>" for number in ids.tolist()]
    keys = regard.lens.effects(gpt, ids, TARGET, over="keys", tokens=names)
    frame = keys.frame()
    assert frame.columns.tolist() == ["first", "stop", "name", "effect"]
    assert frame["name"][2] == f"2 {names[2]}"
    assert frame["effect"].tolist() == keys.values.tolist()


def test_progress_counts_and_can_end_the_work(gpt, ids):
    reports = []
    regard.lens.effects(
        gpt, ids, TARGET, batch_size=3, progress=lambda *counts: reports.append(counts)
    )
    assert reports[-1] == (LAYERS * HEADS, LAYERS * HEADS)
    assert [done for done, _ in reports] == [2, 5, 8, 11, 12]

    def stop(done, total):
        raise KeyboardInterrupt

    before = gpt(ids)
    with pytest.raises(KeyboardInterrupt):
        regard.lens.effects(gpt, ids, TARGET, progress=stop)
    assert torch.equal(gpt(ids), before)
    assert all("forward" not in vars(module) for module in gpt.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in gpt.modules())


def test_other_threads_run_the_model_as_it_is(gpt, ids):
    expected, before, others = regard.lens.effects(gpt, ids, TARGET), gpt(ids), []
    own = threading.current_thread()

    def run():
        with torch.no_grad():
            others.append(gpt(ids))

    def elsewhere(*_):
        if threading.current_thread() is own:
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()

    with gpt.ln_f.register_forward_pre_hook(elsewhere):
        effects = regard.lens.effects(gpt, ids, TARGET)
    torch.testing.assert_close(effects.values, expected.values)
    # A hook may write to anything: runs show what can be skipped, of which one goes on to the end.
    unchanged, first, shown, rest = 1, 1, 1, 1
    assert len(others) == unchanged + first + shown + rest
    for other in others:
        torch.testing.assert_close(other, before)


def test_two_threads_measure_the_same_model(gpt, ids):
    expected = regard.lens.effects(gpt, ids, TARGET).values
    together = threading.Barrier(2)

    def measure(_):
        together.wait()
        return regard.lens.effects(gpt, ids, TARGET).values

    with ThreadPoolExecutor(2) as threads:
        for values in threads.map(measure, range(2)):
            torch.testing.assert_close(values, expected)
    assert all("forward" not in vars(module) for module in gpt.modules())


def test_it_measures_the_model_as_interventions_around_it_made_it(gpt, ids):
    with regard.intervene(gpt) as change:
        change.ablate(layers=0, heads=1)
        effects = regard.lens.effects(gpt, ids, TARGET)
    assert float(effects.values[0, 1]) == pytest.approx(0, abs=1e-6)
    with regard.intervene(gpt) as change:
        change.ablate(layers=0, heads=1)
        change.ablate(layers=2, heads=0)
        changed = float(TARGET(gpt(ids[None])))
    assert float(effects.values[2, 0]) == pytest.approx(changed - effects.unchanged, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"over": "values"}, ValueError, "over must be 'heads', 'keys', 'edges' or spans"),
        ({"method": "patching"}, ValueError, "method must be one of 'ablation', 'gradient'"),
        ({"method": "ablation", "over": "edges"}, ValueError, "a run for each edge of each head"),
        ({"by": "mean", "over": "edges"}, ValueError, "keys and edges are hidden: leave by out"),
        ({"hidden_from": "answer", "over": "edges"}, ValueError, "give over='keys' or spans with"),
        ({"k": 0}, ValueError, "k must be at least 1"),
        ({"seed": 1.0}, TypeError, "seed must be a whole number"),
        ({"by": "one"}, ValueError, "by must be one of 'zero', 'mean'"),
        ({"by": 0}, TypeError, r"by must be 'zero', 'mean', regard.lens.contexts.*but is int"),
        ({"by": {}}, ValueError, "by is empty"),
        ({"by": {0: torch.ones(4, 1, 5)}}, ValueError, r"no contexts of layer 1, but of \[0\]"),
        ({"by": {"0": torch.ones(4, 1, 5)}}, TypeError, "a layer of by must be a whole number"),
        ({"by": {0: 1.0}}, TypeError, r"by\[0\] must be a tensor"),
        ({"by": {0: torch.ones(4, 9, 5)}, "layers": 0}, Error, "queries up to 12 of the text"),
        ({"by": "mean", "over": "keys"}, ValueError, "keys and edges are hidden: leave by out"),
        ({"hidden_from": "answer"}, ValueError, "give over='keys' or spans with it"),
        ({"over": []}, ValueError, "over is empty"),
        ({"over": [(0, 14)]}, ValueError, "0 ≤ first < stop ≤ 13"),
        ({"over": [(3, 3)]}, ValueError, "is not a span of the tokens"),
        ({"over": [3]}, TypeError, "pairs of whole numbers"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be a whole number"),
        ({"layers": 3}, IndexError, "layers asks for 3, but there are only 0 to 2"),
        ({"heads": [0, 4]}, IndexError, "heads asks for 4"),
        ({"heads": slice(4, 9)}, ValueError, "name no head"),
        ({"target": "perplexity"}, ValueError, "target must be 'loss'"),
        ({"target": 7}, TypeError, "target must be a regard.lens.LogProbability"),
        ({"target": lambda logits: logits}, ValueError, "a number for each"),
        ({"target": lambda logits: None}, TypeError, "target gave NoneType"),
        ({"target": lambda logits: logits[:, 0, 0] * math.nan}, ValueError, "is NaN"),
        ({"target": regard.lens.Logit(31)}, ValueError, "the vocabulary ends at 30"),
        ({"target": regard.lens.Logit(3, position=13)}, ValueError, "the output has 13 tokens"),
        ({"run": torch.zeros(2, 4, dtype=torch.long)}, ValueError, "one sequence at a time"),
        ({"run": torch.zeros(4)}, ValueError, "run must be token ids"),
        ({"run": [1, 2]}, TypeError, r"torch.tensor\(ids\)"),
        ({"run": {"ids": torch.zeros(2, 4, dtype=torch.long)}}, ValueError, "run: ids has shape"),
        ({"run": {"ids": torch.zeros(1, 4), "past_key_values": 1}}, ValueError, "past_key_values"),
        ({"run": torch.zeros(1, dtype=torch.long), "target": "loss"}, ValueError, "two tokens"),
        ({"run": lambda model: None, "target": "loss"}, ValueError, "needs the ids of the text"),
        ({"model": "gpt2"}, TypeError, "model must be a torch.nn.Module"),
    ],
)
def test_what_can_not_be_measured_is_refused(gpt, ids, options, error, message):
    arguments = {"model": gpt, "run": ids, "target": TARGET} | options
    with pytest.raises(error, match=message):
        regard.lens.effects(**arguments)


@pytest.mark.parametrize("arguments", [(1.5,), (-1,), (True,), (1, "last")])
def test_a_token_and_its_position_are_whole_numbers(arguments):
    with pytest.raises((TypeError, ValueError), match=r"(token|position) must be"):
        regard.lens.LogProbability(*arguments)


def test_a_head_that_the_layer_lacks_is_refused(ids):
    model, x = Shared(), torch.randn(1, 6, DIM)
    with pytest.raises(IndexError, match="heads asks for 3"):
        regard.lens.effects(model, {"x": x}, lambda y: y[:, -1, 0], heads=3)
