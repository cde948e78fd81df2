"""A layer with a cache computes what it computes for the whole sequence."""

import mmap

import pytest
import torch

import regard
from regard.nn import KVCache, MultiHeadAttention

CUTS = ([17, 1, 1, 1, 3], [1] * 23, [2, 1, 11, 1, 8])


def parts_of(x, cuts):
    return x.split(list(cuts), dim=-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("window", [None, 1, 4, 99])
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_a_cached_layer_is_the_uncached_one(cuts, window, dtype):
    mask = regard.causal() if window is None else regard.causal() & regard.window(window)
    layer = MultiHeadAttention(30, 6, groups=3, mask=mask).to(dtype).eval()
    x = torch.randn(2, 23, 30, dtype=dtype)
    cache = KVCache(23, window=window)
    with torch.no_grad():
        got = torch.cat([layer(part, cache=cache) for part in parts_of(x, cuts)], dim=1)
        # float32 rounds at 6e-8, and sums run over 23 terms in other orders.
        tolerance = 1e-5 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(got, layer(x), rtol=tolerance, atol=tolerance)
    assert cache.length == 23


@pytest.mark.parametrize("window", [None, 4])
def test_padding_on_the_left_is_as_if_it_were_not_there(window):
    mask = regard.causal() if window is None else regard.causal() & regard.window(window)
    layer = MultiHeadAttention(30, 6, mask=mask).double()
    x = torch.randn(3, 23, 30, dtype=torch.float64)
    padding = torch.tensor([0, 7, 19])
    for row, start in enumerate(padding):
        x[row, :start] = torch.nan  # whatever is there
    cache = KVCache(23, window=window, padding=padding)
    with torch.no_grad():
        got = torch.cat([layer(part, cache=cache) for part in parts_of(x, [20, 1, 1, 1])], dim=1)
        for row, start in enumerate(padding):
            alone = layer(x[row, start:])
            torch.testing.assert_close(got[row, start:], alone, rtol=1e-12, atol=1e-12)


def test_a_window_keeps_no_more_than_twice_itself():
    cache = KVCache(1000, window=5)
    for step in range(40):
        key = torch.full((1, 2, 1, 3), float(step))
        keys, values = cache.append(key, -key)
        assert keys.shape[-2] <= 10
        assert keys.untyped_storage().nbytes() == 2 * 10 * 3 * 4
        seen = [float(n) for n in range(max(0, step - 4), step + 1)]
        assert keys[0, 0, -5:, 0].tolist() == seen
        assert values.equal(-keys)
    assert cache.length == 40


def test_the_memory_is_taken_once():
    cache = KVCache(9)
    first, _ = cache.append(torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 7))
    again, values = cache.append(torch.randn(2, 3, 1, 5), torch.randn(2, 3, 1, 7))
    assert again.data_ptr() == first.data_ptr()
    assert again.shape == (2, 3, 5, 5)
    assert values.shape == (2, 3, 5, 7)
    cache.reset()
    assert cache.length == 0
    anew, _ = cache.append(torch.randn(2, 3, 9, 5), torch.randn(2, 3, 9, 7))
    assert anew.data_ptr() == first.data_ptr()


def test_a_long_text_lies_in_huge_pages():
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        pytest.skip("the system has no such advice")
    for length, expected in ((8191, False), (8192, True)):  # of 4 MiB a head
        key, value = torch.randn(2, 1, 2, length, 128).unbind()
        for inference in (False, True):
            with torch.inference_mode(inference):
                cache = KVCache(length + 1)
                kept, values = cache.append(key, value)
                assert (kept.data_ptr() % 2**21 == 0) == expected
                more, _ = cache.append(key[..., :1, :], value[..., :1, :])
            assert torch.equal(more[..., :-1, :], key)
            assert torch.equal(values, value)
            assert more.data_ptr() == kept.data_ptr()


def test_errors_name_what_does_not_fit():
    key = torch.randn(2, 3, 4, 5)
    with pytest.raises(ValueError, match="capacity is 0"):
        KVCache(0)
    with pytest.raises(ValueError, match="window is 0"):
        KVCache(3, window=0)
    with pytest.raises(ValueError, match="holds 0 of at most 3 positions, and 4 more do not fit"):
        KVCache(3).append(key, key)
    cache = KVCache(9)
    cache.append(key, key)
    with pytest.raises(ValueError, match=r"key is \(1, 3, 4, 5\) .* expects \(2, 3, 4, 5\)"):
        cache.append(key[:1], key)
    with pytest.raises(ValueError, match=r"value is .* of torch\.float64"):
        cache.append(key, key.double())
    with pytest.raises(ValueError, match="key has 4 positions and value 3"):
        KVCache(9).append(key, key[..., :3, :])
    assert cache.length == 4


def test_a_cache_serves_self_attention():
    x = torch.randn(5, 12)
    with pytest.raises(ValueError, match="supports only self-attention"):
        MultiHeadAttention(12, 3, mask=regard.causal())(x, x, cache=KVCache(5))


@pytest.mark.parametrize(
    "mask",
    [
        None,
        regard.causal(offset=0),  # with it each part's first query would sit at position 0
        regard.window(3, ahead=1),
        regard.masks.prefix(3),
        regard.causal() & regard.masks.hide(-1),
        regard.causal() & regard.documents(torch.zeros(5, dtype=torch.long)),
        regard.causal() & regard.dense(torch.ones(5, 5, dtype=torch.bool)),
    ],
    ids=repr,
)
def test_masks_with_which_parts_would_differ_from_the_whole_are_refused(mask):
    layer, cache = MultiHeadAttention(12, 3, mask=mask), KVCache(5)
    with pytest.raises(ValueError, match=r"supports only layers with mask=regard\.causal"):
        layer(torch.randn(5, 12), cache=cache)
    assert cache.length == 0


@pytest.mark.parametrize("mask", [regard.causal(), regard.window(5)], ids=repr)
def test_a_mask_that_sees_more_than_the_caches_window_is_refused(mask):
    layer, cache = MultiHeadAttention(12, 3, mask=mask), KVCache(23, window=3)
    with pytest.raises(ValueError, match=r"the cache has window=3, but .* sees more positions"):
        layer(torch.randn(5, 12), cache=cache)


@pytest.mark.parametrize("mask", [regard.window(3), regard.causal() & regard.window(2)], ids=repr)
def test_a_mask_that_sees_no_more_than_the_caches_window(mask):
    layer, x, cache = (
        MultiHeadAttention(12, 3, mask=mask),
        torch.randn(2, 11, 12),
        KVCache(11, window=3),
    )
    parts = [layer(part, cache=cache) for part in parts_of(x, [4, 1, 1, 5])]
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(x), rtol=1e-4, atol=1e-5)


def _filled(window, cuts):
    """A cache that holds these parts, each appended by itself; all positions; what was returned."""
    cache, key = KVCache(29, window=window), torch.randn(2, 3, sum(cuts), 5)
    returned = [cache.append(part, -part)[0].clone() for part in key.split(cuts, dim=-2)]
    return cache, key, returned


@pytest.mark.parametrize(("window", "cuts"), [(None, [4, 3]), (5, [4, 3]), (5, [6, 2, 1])])
def test_the_newest_positions_are_forgotten(window, cuts):
    cache, key, returned = _filled(window, cuts)
    length = sum(cuts[:-1])
    cache.truncate(length)
    assert cache.length == length
    new = key[..., length:, :]
    kept, values = cache.append(new, -new)
    assert torch.equal(kept, returned[-1])
    assert torch.equal(values, -kept)


def test_what_a_window_has_evicted_does_not_come_back():
    cache, _, _ = _filled(3, [4, 9])
    with pytest.raises(ValueError, match=r"length is 4, of 13 .* were evicted"):
        cache.truncate(4)
    assert cache.length == 13


@pytest.mark.parametrize("method", ["forward", "with_pattern"])
def test_a_call_that_fails_leaves_the_cache_as_it_was(method):
    layer, cache, x = (
        MultiHeadAttention(12, 3, mask=regard.causal()),
        KVCache(9),
        torch.randn(5, 12),
    )
    layer(x[:3], cache=cache)
    hook = layer.output.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        getattr(layer, method)(x[3:], cache=cache)
    hook.remove()
    assert cache.length == 3
    torch.testing.assert_close(layer(x[3:], cache=cache), layer(x)[3:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [-1, 8])
def test_a_cache_is_truncated_to_what_it_holds(length):
    cache, _, _ = _filled(None, [7])
    with pytest.raises(ValueError, match=f"length is {length}; expected 0 to 7"):
        cache.truncate(length)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("read", [0, 3, 19])
def test_copies_of_a_sequence_go_on_each_its_own_way(window, read):
    mask = regard.causal() if window is None else regard.causal() & regard.window(window)
    layer = MultiHeadAttention(30, 6, groups=3, mask=mask).double().eval()
    x = torch.randn(1, 23, 30, dtype=torch.float64)
    ways = torch.cat([x[:, :read].expand(5, -1, -1), torch.randn(5, 2, 30).double()], dim=1)
    cache = KVCache(23, window=window)
    with torch.no_grad():
        for part in x[:, :read].split(3, dim=1) if read else ():
            layer(part, cache=cache)
        branch = cache.branch(5, read + 2)
        parts = [layer(ways[:, [place]], cache=branch) for place in (read, read + 1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), layer(ways)[:, read:])
        # The one that they come from goes on as if there had been none.
        rest = layer(x[:, read:], cache=cache)
        torch.testing.assert_close(rest, layer(x)[:, read:])
    assert (cache.length, branch.length) == (23, read + 2)


def test_what_has_no_copies_is_refused():
    cache = KVCache(7)
    cache.append(*torch.randn(2, 3, 2, 5, 11).unbind())
    with pytest.raises(ValueError, match="holds 3 sequences; expected one"):
        cache.branch(2, 7)
    with pytest.raises(ValueError, match="capacity is 4; the cache holds 5"):
        cache.branch(2, 4)


@pytest.mark.parametrize("window", [None, 1, 3])
def test_a_position_that_the_caller_writes_is_as_one_appended(window):
    key, value = torch.randn(2, 2, 3, 11, 5).unbind()
    appended, extended = KVCache(11, window=window), KVCache(11, window=window)
    with pytest.raises(ValueError, match="the cache is empty; append a key and a value first"):
        extended.extend()
    for cache in (appended, extended):
        cache.append(key[:, :, :2], value[:, :, :2])
    for i in range(2, 11):
        expected = appended.append(key[:, :, i : i + 1], value[:, :, i : i + 1])
        rows = extended.extend()
        for memory, new, wanted in zip(extended.memory, (key, value), expected, strict=True):
            memory[:, :, rows - 1] = new[:, :, i]
            assert torch.equal(memory[:, :, :rows], wanted)
        assert extended.length == appended.length
    with pytest.raises(ValueError, match="the cache holds 11 of at most 11 positions, and 1 more"):
        extended.extend()
