"""What compressing a cache did to each head, beside divergences of weights that are written out."""

import copy

import pytest
import torch
from support.caches import Attend
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import regard
from regard.record import RecordError

B, H, G, S, L, D = 2, 6, 3, 29, 3, 5
KEPT = 13


class Layers(nn.Module):
    """Layers that are handed their queries and their cache."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attend() for _ in range(2))

    def forward(self, queries, caches):
        mask = torch.ones(L, caches[0].shape[-2], dtype=torch.bool).tril(caches[0].shape[-2] - L)
        for layer, query, key in zip(self.layers, queries, caches, strict=True):
            layer(query, key, attn_mask=mask, enable_gqa=True)


def recorded(queries, caches):
    model = Layers()
    with regard.record(model) as recording:
        model(queries, caches)
    return recording


def weights(query, key):
    scores = query @ key.repeat_interleave(H // G, dim=1).mT * D**-0.5
    visible = torch.ones(L, key.shape[-2], dtype=torch.bool).tril(key.shape[-2] - L)
    return scores.masked_fill(~visible, -torch.inf).softmax(-1)


def js(p, q):
    middle = (p + q) / 2
    return sum(torch.special.xlogy(w, w / middle).nan_to_num(0).sum(-1) for w in (p, q)) / 2


@pytest.fixture
def data():
    torch.manual_seed(4)
    queries = torch.randn(2, B, H, L, D).double() * 2
    keys = torch.randn(2, B, G, S, D).double()
    old = [torch.stack([torch.randperm(S - L)[:KEPT] for _ in range(B * G)]) for _ in range(2)]
    new = torch.arange(S - L, S).expand(B * G, -1)
    return queries, keys, [torch.cat((o, new), -1).view(B, G, -1) for o in old]


def evicted(keys, kept):
    return [
        key.gather(2, own[..., None].expand(-1, -1, -1, D))
        for key, own in zip(keys, kept, strict=True)
    ]


def expected(data, caches):
    """The divergence of each row, layer by layer: of the full weights and of the others' places."""
    queries, keys, kept = data
    result = []
    for query, key, cache, own in zip(queries, keys, caches, kept, strict=True):
        spread = own.repeat_interleave(H // G, dim=1)[:, :, None].expand(-1, -1, L, -1)
        rest = torch.zeros(B, H, L, S).double().scatter(-1, spread, weights(query, cache))
        result.append(js(weights(query, key), rest))
    return torch.stack(result)  # (N, B, H, L)


def check(report, rows, share):
    assert [head.mean for head in report] == sorted((h.mean for h in report), reverse=True)
    assert {(head.layer, head.head) for head in report} == {
        (n, h) for n in range(2) for h in range(H)
    }
    for head in report:
        own = rows[head.layer, :, head.head]  # (B, L)
        assert head.mean == pytest.approx(float(own.mean()), abs=1e-12)
        assert head.largest == pytest.approx(float(own.max()), abs=1e-12)
        assert head.query == int(own.max(dim=0).values.argmax())
        assert head.kept == pytest.approx(share)


def test_evicted_keys_are_found_whatever_their_order(data):
    queries, keys, kept = data
    caches = evicted(keys, kept)
    report = regard.lens.fidelity(recorded(queries, keys), recorded(queries, caches))
    check(report, expected(data, caches), (KEPT + L) / S)


def test_equal_keys_are_matched_in_their_order(data):
    queries, keys, _ = data
    keys[:, :, :, 2] = keys[:, :, :, 7] = keys[:, :, :, 4]
    old = torch.tensor([0, 2, 3, 4, 7, 8, 11, 13, 14, 17, 19, 20, 23])
    own = torch.cat((old, torch.arange(S - L, S))).expand(B, G, -1)
    caches = evicted(keys, [own, own])
    report = regard.lens.fidelity(recorded(queries, keys), recorded(queries, caches))
    check(report, expected((queries, keys, [own] * 2), caches), (KEPT + L) / S)


def test_keys_that_changed_are_named(data):
    queries, keys, kept = data
    caches = [(cache * 4).round() / 4 for cache in evicted(keys, kept)]
    full, compressed = recorded(queries, keys), recorded(queries, caches)
    with pytest.raises(RecordError, match=r"layers\.0 has 16 keys with the compressed cache"):
        regard.lens.fidelity(full, compressed)
    for named in (kept, [own[..., :KEPT] for own in kept]):
        report = regard.lens.fidelity(full, compressed, keys=named)
        check(report, expected(data, caches), (KEPT + L) / S)


def test_quantised_keys_are_compared_place_by_place(data):
    queries, keys, _ = data
    caches = (keys * 4).round() / 4
    everything = torch.arange(S).expand(B, G, S)
    report = regard.lens.fidelity(recorded(queries, keys), recorded(queries, caches))
    check(report, expected((queries, keys, [everything] * 2), caches), 1)


def test_what_can_not_be_compared_is_refused(data):
    queries, keys, kept = data
    full = recorded(queries, keys)
    with regard.record() as one:
        regard.attention(queries[0], keys[0], keys[0])
    with pytest.raises(ValueError, match="full has 2 layers and compressed 1"):
        regard.lens.fidelity(full, one)
    with pytest.raises(ValueError, match="1 entries for 2 layers"):
        regard.lens.fidelity(full, full, keys=[kept[0]])
    with regard.record() as fewer:
        regard.attention(queries[0, ..., :2, :], keys[0], keys[0])
    with pytest.raises(ValueError, match="2 rows with the full cache and 3"):
        regard.lens.fidelity(fewer, one)


def test_it_prints_as_a_table_and_makes_a_frame(data):
    queries, keys, _ = data
    report = regard.lens.fidelity(
        recorded(queries, keys), recorded(queries, (keys * 4).round() / 4)
    )
    header, first, *rest = repr(report).splitlines()
    assert header.split() == ["head", "js", "largest", "at", "query", "keys", "kept"]
    worst = report[0]
    assert first.split()[:2] == [f"{worst.layer}.{worst.head}", f"{worst.mean:.4f}"]
    assert len(rest) == 2 * H - 1
    frame = report.frame()
    assert list(frame.columns) == ["layer", "head", "mean", "largest", "query", "kept"]
    assert list(frame["mean"]) == [head.mean for head in report]
    assert f"{worst.layer}·{worst.head}" in report._repr_html_()


def test_a_cache_of_transformers_with_keys_evicted_by_hand():
    torch.manual_seed(6)
    sizes = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 97}
    config = LlamaConfig(num_attention_heads=H, num_key_value_heads=G, **sizes)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.5)
    ids = torch.randint(97, (1, S))
    context, question, places = ids[:, :-L], ids[:, -L:], torch.arange(S - L, S)[None]
    full_cache = DynamicCache()
    with torch.no_grad():
        model(context, past_key_values=full_cache)
    cache = copy.deepcopy(full_cache)
    kept = torch.stack([torch.randperm(S - L)[:KEPT] for _ in range(G)])[None]
    for layer in cache.layers:
        index = kept[..., None].expand(-1, -1, -1, layer.keys.shape[-1])
        layer.keys, layer.values = (part.gather(2, index) for part in (layer.keys, layer.values))
    with torch.no_grad(), regard.record(model) as full:
        model(question, past_key_values=full_cache, position_ids=places)
    with torch.no_grad(), regard.record(model) as compressed:
        model(question, past_key_values=cache, position_ids=places)
    report = regard.lens.fidelity(full, compressed, "tv")
    first = [head for head in report if head.layer == 0]
    spread = kept.repeat_interleave(H // G, dim=1)
    places = torch.cat((spread, torch.arange(S - L, S).expand(1, H, L)), dim=-1)
    for head in first:  # whose queries are the same: total variation is the weight that was evicted
        rows = full[0][0, head.head].dense()
        lost = 1 - rows[:, places[0, head.head]].sum(-1)
        assert head.mean == pytest.approx(float(lost.mean()), abs=1e-6)
    with torch.no_grad(), regard.record(model) as everything:  # more rows, of one forward pass
        model(ids)
    again = regard.lens.fidelity(everything, compressed, "tv", keys=kept)
    assert [(h.layer, h.head) for h in again] == [(h.layer, h.head) for h in report]
    assert again[0].mean == pytest.approx(report[0].mean, abs=1e-5)
    assert {head.query for head in again} <= set(range(S - L, S))
