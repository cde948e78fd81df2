"""What functions keep of the values: called with those of new keys, joined along the keys."""

import copy
import pickle

import pytest
import torch
from torch import nn

import regard
from regard.nn import KVCache, MultiHeadAttention
from regard.record import RecordError

B, G, H, L, D = 2, 3, 6, 7, 5


class Sdpa(nn.Module):
    def forward(self, *arguments, **options):
        return torch.nn.functional.scaled_dot_product_attention(*arguments, **options)


def sums(path, value):
    """A number and two vectors of each key."""
    return {"sum": value.sum(-1), "two": value[..., :2] * 3, path: value}


def layer(mask=None, **options):
    mask = regard.causal() if mask is None else mask
    return MultiHeadAttention(H * D, H, groups=G, mask=mask, bias=True, **options).eval()


def values(model, x):
    return model.value(x).unflatten(-1, (G, D)).transpose(1, 2)


@torch.no_grad()
def recorded(model, x, keep=sums, **options):
    with regard.record(model, keep=keep, **options) as recording:
        model(x)
    return recording.layers[-1].kept


def test_numbers_and_vectors_of_each_key():
    model, x = layer(), torch.randn(B, L, H * D)
    kept, value = recorded(model, x), values(model, x)
    assert list(kept) == ["sum", "two", "MultiHeadAttention"]
    assert kept["sum"].shape == (B, G, L)
    assert not kept["two"].requires_grad
    torch.testing.assert_close(kept["sum"], value.sum(-1))
    torch.testing.assert_close(kept["MultiHeadAttention"], value)


@pytest.mark.parametrize("window", [None, 4])
def test_a_generation_keeps_what_the_whole_text_does(window):
    """With a cache that grows, and with one that drops its first keys."""
    model = layer(None if window is None else regard.window(window))
    x, seen = torch.randn(B, L, H * D), []

    def function(path, value):
        seen.append(value.shape[2])
        return sums(path, value)

    cache = KVCache(L, window=window)
    with torch.no_grad(), regard.record(model, keep=[function]) as recording:
        for part in x.split([3, 1, 2, 1], dim=1):
            model(part, cache=cache)
            assert recording.layers[0].kept["sum"].shape[-1] == recording[0].shape[-1]
    assert seen == [3, 1, 2, 1]
    for name, tensor in recorded(model, x).items():
        # Products of one row and of several round differently in float32.
        torch.testing.assert_close(recording.layers[0].kept[name], tensor, rtol=1e-5, atol=1e-5)


def test_a_cache_of_fixed_size_gives_its_filled_part():
    attend, room = Sdpa(), 11
    query, key, value = torch.randn(3, B, H, L, D)
    cached = torch.zeros(2, B, H, room, D)
    with regard.record(keep=sums) as recording:
        for start, stop in ((0, 4), (4, 5), (5, 7)):
            cached[..., :stop, :] = torch.stack([key, value])[..., :stop, :]
            seen = torch.arange(room) <= torch.arange(start, stop)[:, None]
            attend(query[..., start:stop, :], *cached.unbind(), attn_mask=seen)
    (layer,) = recording.layers
    assert torch.equal(layer.kept["Sdpa"], value)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_torchs_own_layer(need_weights, batched):
    model = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    x = torch.randn(*(B,) * batched, L, 12)
    with torch.no_grad(), regard.record(model, keep=sums) as recording:
        model(x, x, x, need_weights=need_weights)
        own = torch.nn.functional.linear(x, model.in_proj_weight[24:], model.in_proj_bias[24:])
    kept, value = recording.layers[0].kept, own.unflatten(-1, (3, 4)).transpose(-3, -2)
    torch.testing.assert_close(kept["sum"].reshape(value.shape[:-1]), value.sum(-1))
    assert kept["sum"].shape == recording[0].shape[:-1]
    recording[0].weighted(key=kept["sum"])  # it fits


def test_fused_layers_tell_their_values_and_compute_the_same():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 2, 17, batch_first=True), 2).eval()
    x = torch.randn(B, L, 12)
    with torch.no_grad():
        expected = model(x)
        with regard.record(model, keep=sums) as recording:
            output = model(x)
    assert [one.kept["sum"].shape for one in recording.layers] == [(B, 2, L)] * 2
    torch.testing.assert_close(output, expected)  # the fused operator rounds differently


def test_cross_attention_keeps_its_source_once():
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(12, 3, 17, batch_first=True), 1).eval()
    with torch.no_grad(), regard.record(model, keep=sums) as recording:
        model(torch.randn(B, L, 12), torch.randn(B, 11, 12))
    assert recording.of_kind("cross").layers[0].kept["sum"].shape == (B, 3, 11)


@pytest.mark.parametrize(("heads", "groups"), [([2, 3], [1]), ([0, 1, 4, 5], [0, 2]), ([4], [2])])
def test_some_heads(heads, groups):
    model, x = layer(), torch.randn(B, L, H * D)
    whole, part = recorded(model, x), recorded(model, x, heads=heads, offload="cpu")
    for name, tensor in part.items():
        assert torch.equal(tensor, whole[name][:, groups])


def test_heads_that_share_unevenly():
    def of_queries(_, value):
        return {"own": value.sum(-1), "each": value.sum(-1).repeat_interleave(H // G, dim=1)}

    kept = recorded(layer(), torch.randn(B, L, H * D), of_queries, heads=[0, 1, 4])
    assert kept["own"].shape == kept["each"].shape == (B, 3, L)
    assert torch.equal(kept["own"], kept["each"])


def test_it_is_the_value_of_the_layer_as_it_was():
    """Functions that hand on the model's own memory, which the model writes to later."""
    query, key, value = (torch.randn(B, H, L, D) for _ in range(3))
    before = value.clone()
    with regard.record(keep=sums) as recording:
        torch.nn.functional.scaled_dot_product_attention(query, key, value)
        value.zero_()
    assert torch.equal(recording.layers[0].kept[""], before)


def test_it_is_moved_saved_and_pickled(tmp_path):
    model, x = layer(), torch.randn(B, L, H * D)
    with torch.no_grad(), regard.record(model, keep=sums) as recording:
        model(x)
    recording.save(tmp_path)
    others = [regard.load(tmp_path), recording.to("cpu"), recording.of_kind()]
    others += [pickle.loads(pickle.dumps(recording)), copy.deepcopy(recording)]
    for other in others:
        assert other.layers[0].kept.keys() == recording.layers[0].kept.keys()
        for name, tensor in recording.layers[0].kept.items():
            assert torch.equal(other.layers[0].kept[name], tensor)
    assert recording.to("meta").layers[0].kept["sum"].device.type == "meta"


def test_numbers_are_all_that_is_kept_of_them():
    """B·H·S numbers of four bytes; the values are freed."""

    def numbers(_, value):
        return {"sum": value.sum(-1).repeat_interleave(H // G, dim=1)}

    (kept,) = recorded(layer(), torch.randn(B, L, H * D), numbers).values()
    assert kept.untyped_storage().nbytes() == B * H * L * 4


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda _, value: value, "a Tensor; expected a mapping"),
        (lambda _, value: {"sum": value.sum()}, "'sum': Tensor of shape ()"),
        (lambda _, value: {"sum": value[..., 1:, 0]}, f"({B}, {G}, {L - 1})"),
        (lambda _, value: {"sum": value[:, :2, :, 0]}, f"a tensor of {L} keys, ({B}, {H}, {L})"),
        (lambda _, value: {3: value}, "3: Tensor"),
    ],
)
def test_what_does_not_fit_is_refused(function, said):
    model = layer()
    with pytest.raises(RecordError) as error, regard.record(model, keep=function):
        model(torch.randn(B, L, H * D))
    assert said in str(error.value)
    assert "<lambda> of keep" in str(error.value)


def test_names_are_told_apart():
    model = layer()
    said = pytest.raises(RecordError, match="two functions of keep return 'sum'")
    with said, regard.record(model, keep=[sums, sums]):
        model(torch.randn(B, L, H * D))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda _, value: {str(value.shape[2]): value}, r"returned \['1'\] .* but \['3'\]"),
        (lambda _, value: {"x": value[..., : value.shape[2]]}, "do not follow"),
    ],
)
def test_later_calls_keep_the_same(function, said):
    model, cache = layer(), KVCache(L)
    refused = pytest.raises(RecordError, match=said)
    with torch.no_grad(), refused, regard.record(model, keep=function):
        model(torch.randn(B, 3, H * D), cache=cache)
        model(torch.randn(B, 1, H * D), cache=cache)


@pytest.mark.parametrize("keep", [3, "norm", None, [3], {"a": sums}])
def test_only_functions(keep):
    with pytest.raises(TypeError, match="keep must be a function or a sequence of functions"):
        regard.record(keep=keep)


def test_a_damaged_file_is_refused(tmp_path):
    with torch.no_grad(), regard.record(keep=sums) as recording:
        layer()(torch.randn(B, L, H * D))
    recording.layers[0].kept["sum"] = torch.ones(B, L)
    recording.save(tmp_path)
    with pytest.raises(RecordError, match="kept 'sum' of shape"):
        regard.load(tmp_path)
