"""HeadVis' metrics, against their formulas written out over whole attention matrices."""

from collections import Counter

import pytest
import torch
from regard.lens.atlas import headvis
from transformers import LlamaConfig, LlamaForCausalLM

import regard

THRESHOLD = 0.01


def by_definition(documents):
    """Return the six metrics of heads, from (ids, attention (H, T, T)) of documents, in float64."""
    sums, counts = Counter(), Counter()
    for ids, attention in documents:
        weights, length, tokens = attention.double(), len(ids), ids.tolist()
        distance = (torch.arange(length)[:, None] - torch.arange(length)).abs().double()
        logs = weights.clamp_min(torch.finfo(torch.float32).tiny).log()
        sums["self_attention_score"] += weights.diagonal(dim1=-2, dim2=-1).sum(-1)
        sums["prev_token_score"] += weights.diagonal(-1, dim1=-2, dim2=-1).sum(-1)
        sums["pattern_entropy"] += -(weights * logs).sum((-2, -1))
        sums["qk_distance"] += (weights * distance).sum((-2, -1))
        sums["second"] += (weights * distance**2).sum((-2, -1))
        for query in range(length):
            copies = [key for key in range(query) if tokens[key] == tokens[query]]
            on_next = weights[:, query, [key + 1 for key in copies]]
            sums["induction_score"] += torch.where(on_next < THRESHOLD, 0, on_next).sum(-1)
            counts["induction_score"] += bool(copies)
        counts["prev_token_score"] += length - 1
        counts["positions"] += length
    means = {name: sums[name] / (counts[name] or counts["positions"]) for name in sums}
    means["qk_distance_variance"] = means.pop("second") - means["qk_distance"] ** 2
    return means


def added(all_sums):
    return {name: sum(sums[name] for sums in all_sums) for name in all_sums[0]}


@pytest.mark.parametrize(
    ("options", "length", "kinds"),
    [
        ({"mask": regard.causal(), "softcap": 3.0}, 293, 2),  # more copies than a tile has
        ({"mask": regard.causal() & regard.window(19), "sink": torch.randn(6)}, 61, 7),
        ({"mask": regard.causal(), "alibi": torch.rand(6)}, 61, 7),
        ({"mask": regard.dense(torch.rand(61, 61) < 0.7) & regard.causal()}, 61, 7),
        ({"mask": None}, 61, 7),
    ],
    ids=["tiles", "window and sink", "alibi", "dense", "both directions"],
)
def test_any_pattern(options, length, kinds):
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(6, length, 5, generator=generator)
    key = torch.randn(3, length, 5, generator=generator)  # two heads share a key head
    ids = torch.randint(kinds, (length,), generator=generator)
    for dtype, bound in ((torch.float32, 2e-6), (torch.float64, 1e-12)):
        pattern = regard.Pattern(2 * query.to(dtype), key.to(dtype), **options)
        expected = by_definition([(ids, pattern.dense())])
        found = headvis.means(headvis.metrics(pattern, ids))
        assert list(found) == list(headvis.METRICS)
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=bound, atol=bound / 100)


def test_documents_of_a_model_in_float64():
    """Transformers takes the softmax in float32 all the same, so that is the bound."""
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=28,
        intermediate_size=13,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        attn_implementation="eager",
    )
    torch.manual_seed(5)
    model = LlamaForCausalLM(config).double().eval()
    for parameter in model.parameters():
        parameter.data *= 6  # heads that are not uniform
    texts = [torch.randint(11, (length,)) for length in (31, 2, 43)]
    for layer in range(3):
        documents, sums = [], []
        for ids in texts:
            with torch.no_grad():
                output = model(ids[None], output_attentions=True)
                with regard.record(model) as recording:
                    model(ids[None])
            documents.append((ids, output.attentions[layer][0]))
            sums.append(headvis.metrics(recording[layer][0], ids))
        expected = by_definition(documents)
        for name, value in headvis.means(added(sums)).items():
            assert value.dtype == torch.float64
            torch.testing.assert_close(value, expected[name], rtol=5e-6, atol=1e-8)


def test_known_results_are_not_read_again():
    x, ids = torch.randn(2, 17, 3), torch.arange(17) % 5
    pattern = regard.Pattern(x, x, mask=regard.causal())
    entropy, offsets = pattern.read(*headvis.readouts(17)[::-1])
    given = headvis.metrics(pattern, ids, (offsets, torch.full_like(entropy, 7.0)))
    assert given["entropy"].tolist() == [7.0 * 17] * 2
    assert given["distance"].equal(headvis.metrics(pattern, ids)["distance"])


def test_nothing_counted_is_not_a_number():
    x = torch.zeros(1, 1, 2)
    single = headvis.metrics(regard.Pattern(x, x, mask=regard.causal()), torch.tensor([3]))
    assert all(value.item() == 0 for value in single.values())
    assert all(value.isnan().item() for value in headvis.means(single).values())


def test_another_text_is_refused():
    x = torch.zeros(1, 5, 2)
    with pytest.raises(ValueError, match=r"not \(heads, 4, 4\)"):
        headvis.metrics(regard.Pattern(x, x, mask=regard.causal()), torch.arange(4))


@pytest.mark.real
@pytest.mark.thorough
def test_smollm2_is_as_transformers_computes_it(smollm2):
    """Transformers' eager attention in float32, over documents that HeadVis would not cut.

    Both round in float32: relative to the metric they were 9e-7 apart, and the entropy of one head
    3e-5. Where a weight lies within that rounding of induction's threshold, one side might count it
    and the other not.
    """
    texts = [regard.lens.__doc__ * 9, regard.pattern.readouts.__doc__ * 5, regard.Pattern.__doc__]
    patterns, attentions, all_ids = [], [], []
    module = smollm2.module
    for text in texts:
        ids = torch.tensor(smollm2.read(text).ids[:512])
        layers, _ = smollm2.read_layers(
            ids, lambda layer, ids=ids: headvis.metrics(layer.pattern[0], ids)
        )
        patterns.append([sums for _, sums in layers])
        before = module.config._attn_implementation
        module.set_attn_implementation("eager")
        try:
            with torch.no_grad():
                output = module(ids[None], output_attentions=True)
        finally:
            module.set_attn_implementation(before)
        attentions.append(output.attentions)
        all_ids.append(ids)
    worst = Counter()
    for layer in range(len(patterns[0])):
        documents = [(ids, a[layer][0]) for ids, a in zip(all_ids, attentions, strict=True)]
        expected = by_definition(documents)
        found = headvis.means(added([sums[layer] for sums in patterns]))
        for name, value in found.items():
            error = ((value - expected[name]).abs() / expected[name].abs().clamp_min(1e-3)).max()
            worst[name] = max(worst[name], error.item())
    assert worst.pop("pattern_entropy") < 1e-4
    assert all(value < 1e-5 for value in worst.values()), worst
