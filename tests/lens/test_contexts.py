"""Contexts of prompts, their means and samples, and effects by them, against plain hooks.

Axes: N prompts, H query heads, L positions, Dv dimension of a value.
"""

import pytest
import torch
from intervene.test_transformers import inputs
from intervene.test_transformers import run as run_transformers
from record.models.classes import CASES
from support.changed_attention import ChangedAttention
from support.hooked_models import HEADS, LAYERS, MODELS, VOCAB
from support.interception import encoder
from support.written_models import in_torch, transformers_model

import regard
from regard import Error

T, TARGET = 11, regard.lens.LogProbability(7)


@pytest.fixture(
    params=[
        pytest.param(one, marks=[pytest.mark.thorough] * (one == "gpt2"))  # llama has groups, too
        for one in MODELS
    ]
)
def hooked(request):
    return MODELS[request.param]()


@pytest.fixture
def gpt():
    return MODELS["our gpt"]()


@pytest.fixture
def ids():
    return torch.randint(VOCAB, (T,))


def prompts_of(*lengths):
    return [torch.randint(VOCAB, (length,)) for length in lengths]


def test_they_are_what_the_output_projections_read(hooked):
    prompts = prompts_of(T, T, T)
    contexts = regard.lens.contexts(hooked.model, prompts)
    assert len(contexts) == 3
    assert (contexts.kind, contexts.layers) == ("self", tuple(range(LAYERS)))
    for number, prompt in enumerate(prompts):
        for layer, exact in enumerate(hooked.contexts(prompt)):
            torch.testing.assert_close(contexts[layer][number], exact[0], rtol=0, atol=1e-5)


def test_means_are_of_the_prompts_that_have_the_position(gpt):
    prompts = prompts_of(13, 5, 13, 7)
    contexts = regard.lens.contexts(gpt.model, prompts)
    by_hand = [[part[0].double() for part in gpt.contexts(prompt)] for prompt in prompts]
    each, whole = contexts.mean(), contexts.mean(per_position=False)
    for layer in range(LAYERS):
        rows = torch.cat([run[layer] for run in by_hand], dim=1)
        exact = rows.mean(dim=1, keepdim=True).float()
        torch.testing.assert_close(whole[layer], exact, rtol=0, atol=1e-6)
        for position in range(13):
            there = [run[layer][:, position] for run in by_hand if run[layer].shape[1] > position]
            exact = torch.stack(there).mean(dim=0).float()
            torch.testing.assert_close(each[layer][:, position], exact, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="the prompts have 5 to 13 positions"):
        contexts[0]


def test_a_sample_is_drawn_without_replacement_by_its_seed(gpt):
    contexts = regard.lens.contexts(gpt.model, prompts_of(*[T] * 7))
    drawn = contexts.sample(3, seed=5)
    assert drawn.prompts == contexts.sample(3, seed=5).prompts
    assert len(set(drawn.prompts)) == 3
    assert len({contexts.sample(3, seed=seed).prompts for seed in range(9)}) > 1
    for name, context in zip(drawn.prompts, drawn[1], strict=True):
        assert torch.equal(context, contexts[1][contexts.prompts.index(name)])
    for count in (0, 8, -1):
        with pytest.raises(ValueError, match="count must be 1 to 7"):
            contexts.sample(count)
    size = 7 * LAYERS * HEADS * T * 5 * 4 / 1e6
    assert repr(contexts) == f"Contexts(7 prompts, {LAYERS} layers, {size:.1f} MB)"


@pytest.mark.parametrize("kind", ["self", "cross", "encoder"])
def test_each_kind_of_attention_has_its_own(kind):
    attention, arguments = ChangedAttention(), inputs("t5")
    run_transformers(transformers_model(CASES["t5"], attention), arguments)
    model = CASES["t5"].build("sdpa")
    one = {name: value[:1] for name, value in arguments.items()}
    contexts = regard.lens.contexts(model, [one], kind=kind)
    for layer in contexts.layers:
        exact = attention.contexts[kind, layer][:1]
        torch.testing.assert_close(contexts[layer], exact, rtol=0, atol=1e-5)


def test_torchs_fused_layers_are_run_without_their_operators():
    model, x, attention = encoder().eval(), torch.randn(1, 7, 12), ChangedAttention()
    with torch.no_grad(), in_torch(attention):
        model(x)
    contexts = regard.lens.contexts(model, [{"src": x}])
    for layer in contexts.layers:
        exact = attention.contexts["self", layer]
        torch.testing.assert_close(contexts[layer], exact, rtol=0, atol=1e-5)


def test_contexts_of_a_changed_model_are_those_after_the_change(gpt, ids):
    with regard.intervene(gpt.model) as change:
        change.ablate(layers=1, heads=[0, 2])
        change.knock_out(layers=1, keys=[1, 2])
        changed = regard.lens.contexts(gpt.model, [ids])
    exact = regard.lens.contexts(gpt.model, [ids])
    assert torch.equal(changed[0], exact[0])
    assert not changed[1][:, [0, 2]].any()
    assert (changed[1] - exact[1])[:, [1, 3]].abs().max() > 1e-2


def test_prompts_of_a_language_model_are_texts():
    model = regard.models.open(None)
    texts = ("The cat sat on the mat.", "A hen ran.")
    contexts = regard.lens.contexts(model, texts)
    assert contexts.prompts == texts
    ids = [torch.tensor(model.read(text).ids) for text in texts]
    exact = regard.lens.contexts(model.module, ids).mean()
    for layer, mean in contexts.mean().items():
        assert torch.equal(mean, exact[layer])


def head_of(layer, head):
    where = torch.zeros(HEADS, 1, 1, dtype=torch.bool)
    where[head] = True
    return layer, where


def by_hand(hooked, ids, replacements):
    """The effect of each head, (N, H), where a layer's contexts are these."""
    unchanged = float(TARGET(hooked.logits(ids)))
    return torch.tensor(
        [
            [
                float(TARGET(hooked.replaced(ids, *head_of(layer, head), replacements[layer])))
                - unchanged
                for head in range(HEADS)
            ]
            for layer in range(LAYERS)
        ],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("per_position", [True, False])
def test_effects_by_a_mean_are_those_by_hand(hooked, ids, per_position):
    contexts = regard.lens.contexts(hooked.model, prompts_of(T + 2, T + 2, T + 5))
    mean = contexts.mean(per_position=per_position)
    effects = regard.lens.effects(hooked.model, ids, TARGET, by=mean)
    expected = by_hand(hooked, ids, {layer: each[:, :T] for layer, each in mean.items()})
    torch.testing.assert_close(effects.values, expected, rtol=0, atol=1e-5)
    assert (effects.by, effects.prompts) == ("given contexts", ())
    assert (
        effects.values - regard.lens.effects(hooked.model, ids, TARGET).values
    ).abs().max() > 0.01


def test_effects_by_resampling_are_the_mean_over_the_prompts_drawn(hooked, ids):
    contexts = regard.lens.contexts(hooked.model, prompts_of(*[T] * 5))
    drawn = contexts.sample(3, seed=1)
    effects = regard.lens.effects(hooked.model, ids, TARGET, by=drawn)
    assert effects.prompts == drawn.prompts
    assert effects.by == "contexts of 3 prompts"
    expected = [
        by_hand(hooked, ids, {layer: drawn[layer][number] for layer in range(LAYERS)})
        for number in range(3)
    ]
    torch.testing.assert_close(effects.by_prompt, torch.stack(expected), rtol=0, atol=1e-5)
    torch.testing.assert_close(effects.values, effects.by_prompt.mean(dim=0))


@pytest.mark.parametrize("by", ["mean", "per position", "resampling"])
def test_effects_by_gradient_are_the_change_of_the_context_times_its_gradient(hooked, ids, by):
    contexts = regard.lens.contexts(hooked.model, prompts_of(T, T, T))
    kept = []

    def keep(context):
        kept.append(context if context.requires_grad else context.detach().requires_grad_())
        return kept[-1]

    with hooked.edited(dict.fromkeys(range(LAYERS), keep)):
        number = TARGET(hooked.logits(ids))
    gradients = torch.autograd.grad(number, kept)
    replacements = {
        "mean": [own.mean(dim=2, keepdim=True) for own in kept],
        "per position": [mean[None] for mean in contexts.mean().values()],
        "resampling": [contexts[layer].mean(dim=0) for layer in range(LAYERS)],  # it is linear
    }[by]
    expected = torch.stack(
        [
            ((new - own) * gradient).sum(dim=(0, 2, 3)).detach().double()
            for new, own, gradient in zip(replacements, kept, gradients, strict=True)
        ]
    )
    given = {"mean": "mean", "per position": contexts.mean(), "resampling": contexts}[by]
    effects = regard.lens.effects(hooked.model, ids, TARGET, by=given, method="gradient")
    torch.testing.assert_close(effects.values, expected, rtol=1e-4, atol=1e-4)
    places = [(2, 1), (0, 3)]
    measured = regard.lens.effects(hooked.model, ids, TARGET, by=given).values
    exact = torch.stack([measured[place] for place in places])
    torch.testing.assert_close(effects.measure(places), exact, rtol=0, atol=1e-5)


def test_layers_can_be_chosen_where_only_theirs_are_given(gpt, ids):
    mean = regard.lens.contexts(gpt.model, prompts_of(T)).mean()
    del mean[1]
    for method in ("ablation", "gradient"):
        effects = regard.lens.effects(
            gpt.model, ids, TARGET, by=mean, layers=[0, 2], heads=[3, 1], method=method
        )
        assert effects.values.shape == (2, 2)
        with pytest.raises(ValueError, match=r"no contexts of layer 1, but of \[0, 2\]"):
            regard.lens.effects(gpt.model, ids, TARGET, by=mean, method=method)


def test_what_can_not_be_run_is_refused(gpt, ids):
    contexts = regard.lens.contexts
    with pytest.raises(TypeError, match=r"prompts must be several prompts, .* but is str"):
        contexts(gpt.model, "a text")
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"):
        contexts("gpt2", [ids])
    with pytest.raises(ValueError, match="prompts is empty"):
        contexts(gpt.model, [])
    with pytest.raises(ValueError, match="kind must be one of"):
        contexts(gpt.model, [ids], kind="all")
    with pytest.raises(ValueError, match="no attention of kind 'cross', but of 'self'"):
        contexts(gpt.model, [ids], kind="cross")
    with pytest.raises(ValueError, match="one sequence at a time"):
        contexts(gpt.model, [torch.stack([ids, ids])])
    with pytest.raises(ValueError, match="'prompt 1' is a batch of 2 sequences"):
        contexts(gpt.model, [ids, lambda model: model(torch.stack([ids, ids]))])
    with pytest.raises(Error, match="a layer attends several times in one run, as in a generation"):
        contexts(gpt.model, [lambda model: (model(ids), model(ids))])
    with pytest.raises(IndexError, match="no contexts of layer 3"):
        contexts(gpt.model, [ids])[3]
    one = {name: value[:1] for name, value in inputs("t5").items()}
    t5 = CASES["t5"].build("sdpa")
    with pytest.raises(
        ValueError, match=r"by has contexts of 'cross'.*heads of 'self'.*kind='self'"
    ):
        regard.lens.effects(t5, one, TARGET, by=contexts(t5, [one], kind="cross"))


def test_a_batch_of_ids_is_as_many_prompts(gpt):
    ids = torch.randint(VOCAB, (3, T))
    both = [regard.lens.contexts(gpt.model, given) for given in (ids, list(ids))]
    assert torch.equal(both[0][2], both[1][2])
    assert both[0].prompts == ("prompt 0", "prompt 1", "prompt 2")
