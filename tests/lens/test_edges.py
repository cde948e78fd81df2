"""Effects to first order of edges, keys and spans: by definition, and beside what is measured."""

import pickle

import pytest
import torch
from torch import nn

import regard
from regard.gpt import GPT, GPTConfig
from regard.inputs import Scoring, check
from regard.lens.effect.edges import Derivative, _drawn

VOCAB, TOKENS = 23, 11
TARGET = regard.lens.Logit(7)
ALL = 10**6


@pytest.fixture
def ids():
    return torch.randint(3, VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(0))


def gpt():
    config = GPTConfig(vocab_size=VOCAB, context=20, layers=2, heads=3, dim=15)
    model = GPT(config).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    attention = [block.attn for block in model.h]

    def values(out):
        return out[..., 30:].unflatten(-1, (3, 5)).transpose(-3, -2)

    return model, [one.c_attn for one in attention], [one.c_proj for one in attention], values, 3


def llama():
    hf = pytest.importorskip("transformers")
    config = hf.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=24,
        intermediate_size=17,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
    )
    model = hf.LlamaForCausalLM(config).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    attention = [layer.self_attn for layer in model.model.layers]

    def values(out):
        return out.unflatten(-1, (2, 6)).transpose(-3, -2).repeat_interleave(2, dim=-3)

    return model, [one.v_proj for one in attention], [one.o_proj for one in attention], values, 4


def without_each(weights, value):
    """Contexts with each edge hidden, (H, L, S, Dv), by renormalising the other weights."""
    size = weights.shape[-1]
    others = weights[..., None, :] * (1 - torch.eye(size, dtype=weights.dtype))
    total = others.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, others / total, 0) @ value[:, None]


@pytest.mark.parametrize("build", [gpt, llama])
def test_every_estimate_is_the_gradient_times_the_change_of_the_context(build, ids):
    model, values_of, outputs_of, read_value, heads = build()
    values, contexts, handles = [], [], []
    handles += [
        module.register_forward_hook(lambda *args: values.append(args[2].detach()))
        for module in values_of
    ]
    handles += [
        module.register_forward_pre_hook(lambda _, args: contexts.append(args[0]))
        for module in outputs_of
    ]
    with regard.record(model) as recording:
        number = TARGET(model(ids[None]))
    for handle in handles:
        handle.remove()
    gradients, number = torch.autograd.grad(number, contexts), number.detach()

    expected = []
    for layer, value in enumerate(values):
        weights = recording[layer].dense()[0]
        gradient, context = (
            one.detach()[0].unflatten(-1, (heads, -1)).transpose(0, 1)
            for one in (gradients[layer], contexts[layer])
        )
        changed = without_each(weights, read_value(value[0]))
        expected.append((gradient[:, :, None] * (changed - context[:, :, None])).sum(dim=-1))
    expected = torch.stack(expected)

    edges = regard.lens.effects(model, ids, TARGET, over="edges", k=ALL)
    links = TOKENS * (TOKENS + 1) // 2
    assert len(set(edges.places)) == len(edges.places) == 2 * heads * links
    got = torch.zeros_like(expected)
    got[tuple(torch.tensor(edges.places).T)] = edges.values
    # float64 with sums of a few numbers of size 1
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    assert (edges.values.abs().diff() <= 0).all()

    largest, drawn = edges.checks
    assert [one.place for one in largest.approximate] == list(edges.places[:20])
    for one in drawn.approximate:
        assert one.value == pytest.approx(float(expected[one.place]), rel=1e-9, abs=1e-12)
    for one in (*largest.true[:3], *drawn.true[:3]):
        layer, head, query, key = one.place
        with torch.no_grad(), regard.intervene(model) as change:
            change.knock_out(layers=layer, heads=head, queries=query, keys=key)
            measured = float(TARGET(model(ids[None])))
        assert one.value == pytest.approx(measured - float(number), abs=1e-10)
    misses = [abs(a.value - b.value) for a, b in zip(drawn.approximate, drawn.true, strict=True)]
    assert drawn.largest_miss == max(misses)

    # Where single keys are hidden, the effects of their edges add up to first order.
    keys = regard.lens.effects(model, ids, TARGET, over="keys", method="gradient")
    later = torch.ones(TOKENS, TOKENS).tril(-1)
    sums = (expected * later).sum(dim=(0, 1, 2))
    torch.testing.assert_close(keys.values, sums, rtol=1e-9, atol=1e-12)
    true = regard.lens.effects(model, ids, TARGET, over="keys")
    measured = keys.measure(keys.places)
    torch.testing.assert_close(measured, true.values, rtol=0, atol=1e-10)


def attention():
    layer = regard.nn.MultiHeadAttention(15, 3, mask=regard.causal()).double()
    return layer, {"x": torch.randn(1, 7, 15, dtype=torch.float64)}, lambda y: y[:, -1, 4]


def test_where_the_number_is_linear_estimates_are_what_is_measured():
    model, inputs, _ = attention()
    target = lambda y: y[:, :, 4].sum(dim=-1)  # noqa: E731
    edges = regard.lens.effects(model, inputs, target, over="edges", k=30, layers=0, heads=[0, 2])
    assert {place[1] for place in edges.places} == {0, 2}
    assert edges.values.all()
    for one in edges.checks:  # equal to rounding, in order too
        assert one.largest_miss < 1e-12
        assert len(one.true) == 20
        assert one.rank_correlation == pytest.approx(1)


@pytest.mark.parametrize("options", [{"over": "keys"}, {"over": [(0, 2), (1, 5)]}])
def test_where_the_number_is_linear_hidden_keys_are_what_is_measured(options):
    model, inputs, target = attention()
    some = {"heads": [0, 2]} | options
    estimated = regard.lens.effects(model, inputs, target, method="gradient", **some)
    measured = regard.lens.effects(model, inputs, target, **some)
    assert (estimated.labels, estimated.places) == (measured.labels, measured.places)
    torch.testing.assert_close(estimated.values, measured.values, rtol=0, atol=1e-12)
    assert estimated.without_all == pytest.approx(measured.without_all, abs=1e-12)
    assert estimated.check(2).largest_miss < 1e-12


def test_spans_can_be_hidden_from_the_answer_alone(ids):
    model = gpt()[0]
    options = {"over": [(0, 3), (3, 8)], "hidden_from": "answer", "layers": 1}
    target = regard.lens.Logit(7)
    estimated = regard.lens.effects(model, ids, target, method="gradient", **options)
    measured = regard.lens.effects(model, ids, target, **options)
    assert estimated.hidden_from == measured.hidden_from == (TOKENS - 1, TOKENS)
    # hidden from the last query in the last layer, which is nearly linear here
    assert (estimated.values.sign() == measured.values.sign()).all()
    assert estimated.values.all()


MASKS = {
    "window": {"mask": regard.causal() & regard.window(3)},
    "padding": {"mask": regard.causal() & regard.masks.hide(slice(0, 2))},
    "softcap": {"mask": regard.causal(), "softcap": 1.5},
    "sink": {"mask": regard.causal(), "sink": torch.tensor([0.5, -1.0])},
    "all": {},
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_and_options(name):
    generator = torch.Generator().manual_seed(0)
    query, gradient = torch.randn(2, 1, 2, 7, 3, generator=generator, dtype=torch.float64)
    key, value = torch.randn(2, 1, 1, 7, 3, generator=generator, dtype=torch.float64)
    options = {k: v.double() if k == "sink" else v for k, v in MASKS[name].items()}
    problem = check(query, key, value, Scoring(**options))
    weights = regard.Pattern(query, key, **options).dense()[0]
    derivative = Derivative.of(problem, gradient)
    visible = problem.rows.visible(slice(0, 7), slice(0, 7)).expand(1, 2, 7, 7)[0]
    asked = [tuple(edge) for edge in visible.nonzero().tolist()][::5]
    values, edges, further = derivative.edge_effects([0, 1], ALL, asked)
    context, one = weights @ value[0], value[0, :, None]  # 1 − α is the rest with the sink's
    rest = 1 - weights[..., None]
    changed = torch.where(rest > 1e-12, (context[:, :, None] - weights[..., None] * one) / rest, 0)
    expected = (gradient[0][:, :, None] * (changed - context[:, :, None])).sum(dim=-1)
    assert len(edges) == int(visible.sum())
    assert visible[tuple(edges.T)].all()
    torch.testing.assert_close(values, expected[tuple(edges.T)], rtol=1e-9, atol=1e-11)
    at = torch.tensor(asked)
    torch.testing.assert_close(further, expected[tuple(at.T)], rtol=1e-9, atol=1e-11)


def test_a_row_that_rests_on_one_key_has_digits_left():
    generator = torch.Generator().manual_seed(0)
    query, key, value, gradient = torch.randn(4, 1, 1, 5, 3, generator=generator).unbind()
    query[..., 0], key[..., 0] = 20, torch.tensor([1.2, 0, 0, 0, 0])  # α = 1 − 4e-6 or nearer
    exact = [t.double() for t in (query, key, value, gradient)]
    found = []
    for q, k, v, g in ([query, key, value, gradient], exact):
        problem = check(q, k, v, Scoring(mask=regard.causal()))
        values, edges, _ = Derivative.of(problem, g).edge_effects([0], ALL, [])
        order = sorted(range(len(edges)), key=lambda n: edges[n].tolist())
        found.append((values[order], edges[order]))
    assert torch.equal(found[0][1], found[1][1])
    # float32 of numbers of size 1: odds × difference would be wrong by 0.01 and more
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-4, atol=1e-5)


def test_edges_are_drawn_among_all_that_are_visible():
    rows = (regard.causal() & regard.window(3)).resolve((1, 3), 7, 7, torch.device("cpu"))
    visible = rows.visible(slice(0, 7), slice(0, 7))[0, 0]
    layers = [(rows, [0, 2]), (rows, [1])]
    every = _drawn(layers, ALL, 0)
    pairs = [tuple(pair) for pair in visible.nonzero().tolist()]
    assert sorted(every[0]) == [(head, *pair) for head in (0, 2) for pair in pairs]
    assert sorted(every[1]) == [(1, *pair) for pair in pairs]
    some = _drawn(layers, 5, 1)
    assert some == _drawn(layers, 5, 1) != _drawn(layers, 5, 2)
    assert sum(map(len, some)) == 5
    times = torch.zeros(2 * len(pairs) + len(pairs))
    names = [(0, edge) for edge in sorted(every[0])] + [(1, edge) for edge in sorted(every[1])]
    for seed in range(600):
        for layer, edges in enumerate(_drawn(layers, 9, seed)):
            for edge in edges:
                times[names.index((layer, edge))] += 1
    # 600 · 9 draws over 54 edges: 100 each, with a standard deviation of 9.1; 4.5 of them
    assert ((times - 100).abs() < 41).all()


def test_they_are_printed_with_tokens_and_pickled(ids):
    model, names = gpt()[0], [f"w{n}" for n in range(TOKENS)]
    edges = regard.lens.effects(model, ids, TARGET, over="edges", tokens=names, k=25, seed=3)
    layer, head, query, key = edges.places[0]
    printed = repr(edges)
    assert f"{layer}·{head}  {query} w{query} → {key} w{key}" in printed
    assert printed.count("estimate   measured") == printed.count("rank correlation") == 2
    assert printed.startswith("Effects(edge 25, approximate; logit of token 7")
    frame = edges.frame()
    assert list(frame.columns) == ["layer", "head", "query", "key", "name", "effect"]
    assert "20 of them measured, some at random: rank correlation" in edges._repr_html_()
    sent = pickle.loads(pickle.dumps(edges))
    assert (repr(sent), sent.places) == (printed, edges.places)
    true = [one.value for one in edges.check(3).true]  # of a batch of another size
    assert true == pytest.approx([one.value for one in edges.checks[0].true[:3]], abs=1e-12)
    again = regard.lens.effects(model, ids, TARGET, over="edges", tokens=names, k=25, seed=3)
    assert repr(again) == printed


def test_a_layer_without_a_gradient_is_left_out(ids):
    model = gpt()[0]

    def run(model):
        x = model.wte(ids)[None]
        with torch.no_grad():
            first = model.h[0].attn(x)
        return model.h[1].attn(x + first)

    with pytest.warns(RuntimeWarning, match=r"layer\(s\) 0, on which .* or, over edges, left out"):
        edges = regard.lens.effects(model, run, lambda y: y[:, -1, 4], over="edges", k=ALL)
    assert {place[0] for place in edges.places} == {1}
    with pytest.warns(RuntimeWarning, match=r"layer\(s\) 0, on which"):
        keys = regard.lens.effects(
            model, run, lambda y: y[:, -1, 4], over="keys", method="gradient"
        )
    assert keys.values[:-1].isnan().all()
    assert keys.values[-1] == 0  # nothing later sees it


def test_several_calls_in_a_layer_are_refused(ids):
    model = gpt()[0]

    def run(model):
        return model(ids[None]) + model(ids[None])

    with pytest.raises(ValueError, match="needs one call of attention over the whole text in each"):
        regard.lens.effects(model, run, TARGET, over="edges")


def test_no_matrix_is_made():
    layer = regard.nn.MultiHeadAttention(8, 2, mask=regard.causal())
    length = 3_001
    tensors = torch.randn(4, 1, 2, length, 4).unbind()
    problem = check(*tensors[:3], Scoring(mask=layer.mask))
    largest = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            parts = result if isinstance(result, (tuple, list)) else [result]
            largest.extend(t.untyped_storage().nbytes() for t in parts if torch.is_tensor(t))
            return result

    with Sizes():
        Derivative.of(problem, tensors[3]).edge_effects([0, 1], 20, [])
    # The 22 numbers a row and the blocks that are read take 3 MB; a head's matrix takes 36 MB.
    assert max(largest) < length * length * 4 / 8
