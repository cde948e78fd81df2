"""Calls of flash_attn, which runs on GPUs alone: by stand-ins of its documented signatures.

Weights lie in [0, 1]; float32 with head dimensions below 10 keeps their error below 1e-6.
"""

import pytest
import torch
from support import gpu_libraries
from support.gpu_libraries import (
    COMPUTED,
    flash_attn_3_func,
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from support.interception import close
from torch import nn

import regard
from regard.record import RecordError

B, H, G, L, S, D = 2, 6, 2, 5, 7, 3


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    gpu_libraries.install(monkeypatch)


def tensors(queries=L, keys=S, batch=(B,)):
    return (
        torch.randn(*batch, queries, H, D),
        torch.randn(*batch, keys, G, D),
        torch.randn(*batch, keys, G, D),
    )


def recorded(function, *args, **options):
    """Record one call, whose pattern is what the stand-in computed with."""
    args_before = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    plain = function(*args_before, **options)
    with regard.record() as recording:
        seen = function(*args, **options)
    assert torch.equal(plain, seen)
    assert len(recording) == 1
    close(recording[0], COMPUTED[-1])
    return recording[0]


OPTIONS = [
    {},
    {"causal": True},
    {"causal": True, "window_size": (2, 9)},
    {"window_size": (1, 2)},
    {"window_size": (-1, 1), "softcap": 0.7},
    {"window_size": (2, -1), "softmax_scale": 0.3},
    {"causal": True, "alibi_slopes": torch.linspace(0.1, 0.9, H)},
    {"alibi_slopes": torch.linspace(0.1, 0.9, B * H).view(B, H), "deterministic": True},
]


def _names(options):
    return "-".join(options) or "none"


@pytest.mark.parametrize("options", OPTIONS, ids=_names)
@pytest.mark.parametrize("keys", [S, 3])
def test_options_of_a_batch(options, keys):
    pattern = recorded(flash_attn_func, *tensors(keys=keys), **options)
    assert pattern.problem.rows.allowed is pattern.problem.rows.bias is None


@pytest.mark.parametrize("options", OPTIONS[:6], ids=_names)
def test_version_3_is_read(options):
    recorded(flash_attn_3_func, *tensors(), num_splits=2, **options)


def test_what_version_3_has_beyond_is_refused_by_name():
    import flash_attn_interface

    q, k, v = tensors()
    with regard.record() as recording:
        context, _ = flash_attn_interface.flash_attn_func(q, k, v, return_attn_probs=True)
    assert len(recording) == 1
    assert context.shape == q.shape
    with pytest.raises(RecordError, match="called with attention_chunk"), regard.record():
        flash_attn_interface.flash_attn_func(q, k, v, attention_chunk=2)
    with pytest.raises(RecordError, match="of which regard reads"), regard.record():
        flash_attn_interface.flash_attn_varlen_func(q, k, v)


def test_packed_tensors():
    qkv = torch.randn(B, L, 3, H, D)
    recorded(flash_attn_qkvpacked_func, qkv, 0.0, None, True)
    q, k, v = tensors()
    recorded(flash_attn_kvpacked_func, q, torch.stack([k, v], 2), causal=True)
    ends = torch.tensor([0, 2, L], dtype=torch.int32)
    recorded(flash_attn_varlen_qkvpacked_func, qkv[0], ends, 3, causal=True)
    kv = torch.randn(L, 2, G, D)
    recorded(flash_attn_varlen_kvpacked_func, q[0], kv, ends, ends, 3, 3)


@pytest.mark.parametrize(
    "options",
    [*OPTIONS[:7], {"causal": True, "alibi_slopes": torch.linspace(0.1, 0.9, 3 * H).view(3, H)}],
    ids=_names,
)
def test_sequences_of_several_lengths_are_documents(options):
    ends = torch.tensor([0, 2, 9, 13], dtype=torch.int32)
    q, k, v = tensors(13, 13, ())
    pattern = recorded(flash_attn_varlen_func, q, k, v, ends, ends, 7, 7, **options)
    ids = torch.tensor([0] * 2 + [1] * 7 + [2] * 4)
    assert pattern.problem.rows.allowed is None
    if not options:
        expected = regard.documents(ids).intervals(13, 13)
        rows = pattern.problem.rows
        assert [bound.flatten().tolist() for bound in (rows.start, rows.stop)] == [
            bound.tolist() for bound in expected
        ]


@pytest.mark.parametrize("options", OPTIONS[:7], ids=_names)
def test_sequences_with_more_keys_than_queries_or_fewer(options):
    ends_q = torch.tensor([0, 2, 2, 7, 11], dtype=torch.int32)  # then two that belong to none
    ends_k = torch.tensor([0, 5, 6, 9, 17], dtype=torch.int32)
    q, k, v = tensors(13, 17, ())
    pattern = recorded(flash_attn_varlen_func, q, k, v, ends_q, ends_k, 5, 8, **options)
    assert pattern.problem.rows.allowed is None


def test_positions_are_those_of_each_sequence():
    """Readouts of places are those of the sequences by themselves."""
    ends_q, ends_k = torch.tensor([0, 2, 7]), torch.tensor([0, 5, 13])
    q, k, v = tensors(7, 13, ())
    pattern = recorded(flash_attn_varlen_func, q, k, v, ends_q, ends_k, 5, 8, causal=True)
    distance, lag, offsets = pattern.read(
        regard.readouts.Distance(), regard.readouts.Lag(1), regard.readouts.Offsets(4)
    )
    received = []
    for own, keys in ((slice(0, 2), slice(0, 5)), (slice(2, 7), slice(5, 13))):
        query, key = (part.transpose(0, 1)[None] for part in (q[own], k[keys]))
        alone = regard.Pattern(query, key, mask=regard.causal())
        torch.testing.assert_close(distance[..., own], alone.distance())
        torch.testing.assert_close(lag.weights[..., own], alone.lag(1).weights)
        received.append(alone.offsets(4) * len(q[own]))
    torch.testing.assert_close(offsets, sum(received) / len(q))


def test_pages_of_several_sequences():
    q, _, _ = tensors(5, 1, ())
    k, v = torch.randn(2, 6, 4, G, D).unbind()  # 6 pages of 4 keys
    ends = torch.tensor([0, 2, 5]), torch.tensor([0, 7, 10])
    table = torch.tensor([[4, 1], [3, 0]], dtype=torch.int32)
    recorded(flash_attn_varlen_func, q, k, v, *ends, 3, 7, causal=True, block_table=table)


def test_a_cache_that_its_kernel_writes_to():
    """The pattern that grows step by step is that of all tokens at once."""
    q, k, v = tensors(S, S)
    k_cache, v_cache = torch.zeros(2, B, 11, G, D).unbind()
    layer = nn.Identity()
    layer.forward = lambda at, stop: flash_attn_with_kvcache(
        q[:, at:stop], k_cache, v_cache, k[:, at:stop], v[:, at:stop], cache_seqlens=at, causal=True
    )
    with regard.record(layer) as recording:
        layer(0, 4)
        layer(4, 5)
        layer(5, 7)
    flash_attn_func(q, k, v, causal=True)
    close(recording[0], COMPUTED[-1])


@pytest.mark.parametrize("options", OPTIONS, ids=_names)
def test_a_cache_filled_to_several_lengths(options):
    options = {name: value for name, value in options.items() if name != "deterministic"}
    q, k, v = tensors(2, 8)
    new = torch.randn(2, B, 2, G, D).unbind()
    lengths = torch.tensor([3, 6], dtype=torch.int32)
    for more in ({}, {"cache_leftpad": torch.tensor([0, 2])}):
        cache = k.clone()
        with regard.record() as recording:
            flash_attn_with_kvcache(q, cache, v, *new, cache_seqlens=lengths, **more, **options)
        cache.numpy()[:] = 0  # as for the next text, behind torch's back
        close(recording[0], COMPUTED[-1])


def test_entries_and_pages_of_a_cache():
    q, _, _ = tensors(2, 1)
    k, v = torch.randn(2, 5, 4, G, D).unbind()
    entries = torch.tensor([3, 1], dtype=torch.int32)
    recorded(flash_attn_with_kvcache, q, k, v, cache_batch_idx=entries, causal=True)
    table = torch.tensor([[4, 1], [3, 0]], dtype=torch.int32)
    with regard.record() as recording:
        flash_attn_with_kvcache(q, k, v, cache_seqlens=7, block_table=table, causal=True)
    close(recording[0], COMPUTED[-1][..., :7])


def test_what_is_not_known_is_refused():
    q, k, v = tensors()
    with pytest.raises(RecordError, match=r"rotary_cos.*rotate query and key"), regard.record():
        flash_attn_with_kvcache(q, k, v, rotary_cos=torch.ones(9, 1))

    def flash_attn_func(q, k, v, s_aux=None):
        return q

    gpu_libraries.sys.modules["flash_attn"].flash_attn_func = flash_attn_func
    with pytest.raises(RecordError, match=r"s_aux.*it knows q, k, v, dropout_p"), regard.record():
        flash_attn_func(q, k, v, s_aux=torch.ones(H))


class Layer(nn.Module):
    """Attention of (B, L, H, D) tensors, with what was given to the kernel."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return flash_attn_func(q, k, v, **self.options)


def test_interventions_change_the_calls():
    q, k, v = (tensor.requires_grad_() for tensor in tensors(7, 7))
    layer = Layer(causal=True)
    plain = layer(q, k, v)
    with regard.record(layer) as before:
        layer(q, k, v)
    with regard.intervene(layer) as change, regard.record(layer) as recording:
        change.knock_out(queries=-1, keys=slice(1, 3), heads=4)
        changed = layer(q, k, v)
    weights = before[0].dense().clone()
    weights[:, 4, -1, 1:3] = 0
    weights[:, 4, -1] /= weights[:, 4, -1].sum(-1, keepdim=True)
    close(recording[0], weights)
    expected = torch.einsum("bhqk,bkhd->bqhd", weights, v.repeat_interleave(H // G, 2))
    assert changed.is_contiguous()
    torch.testing.assert_close(changed, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(changed[:, :-1], plain[:, :-1], rtol=0, atol=1e-5)
    changed.sum().backward()
    assert bool((v.grad[:, 1:3, 1] != 0).any())

    layer.options["return_attn_probs"] = True
    with regard.intervene(layer) as change:
        change.ablate(heads=4)
        context, lse, probs = layer(q, k, v)  # a context changes no log-sum-exp
    assert bool((context[:, :, 4] == 0).all())
    assert (lse.shape, probs) == ((B, H, 7), None)
    with (  # noqa: PT012 - the last call alone raises
        pytest.raises(RecordError, match="without return_attn_probs"),
        regard.intervene(layer) as c,
    ):
        c.knock_out(queries=-1, keys=0)
        layer(q, k, v)
