"""Every backend against the oracle: no further from it than twice torch's own kernel."""

import functools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from support.cases import HALF, Case, cases
from support.cpu_paths import ON_CPU
from support.draws import normal
from support.tolerances import as_exact_as_torch, interval_masks, large

import regard
from regard.backends import torch_sdpa

BLOCK = 256  # queries that torch_sdpa works on at a time


@given(cases(), st.sampled_from(ON_CPU))
def test_each_backend_is_as_exact_as_torch_s_own_kernel(case, backend):
    served = case.dtype != torch.float64 and (backend == "native" or "softcap" not in case.options)
    assume(backend == "eager" or served)
    as_exact_as_torch(case, backend)


@pytest.mark.each_once
@pytest.mark.parametrize("queries", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1])
@pytest.mark.parametrize("name", interval_masks(1, 1))
def test_torch_sdpa_around_block_boundaries(name, queries):
    assert BLOCK == torch_sdpa._BLOCK
    for keys in (queries, 331):
        as_exact_as_torch(large(queries, keys, interval_masks(queries, keys)[name]), "torch_sdpa")


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", ["causal", "padding", "everything"])
def test_torch_sdpa_around_block_boundaries_in_half_precision(name, dtype):
    case = large(BLOCK + 1, 331, interval_masks(BLOCK + 1, 331)[name], dtype=dtype)
    as_exact_as_torch(case, "torch_sdpa")


def test_torch_sdpa_in_blocks_with_all_options():
    queries, keys = BLOCK + 1, 331
    others = {
        "bias": normal(3, 1, keys),
        "alibi": torch.tensor([0.5, 0.25, 0.125]),
        "sink": torch.tensor([0.5, -2.0, 3.0]),
        "scale": 0.3,
    }
    as_exact_as_torch(large(queries, keys, regard.causal(), **others), "torch_sdpa")


@given(cases(dtypes=[torch.float32], softcap=False))
def test_torch_s_public_call_gives_the_same(case):
    """What other devices get: a kernel of torch's choice, without log-sum-exp."""
    case.options.pop("sink", None)
    case.others.pop("sink", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_sdpa, "_flash_on_cpu", torch_sdpa._any_kernel)
        as_exact_as_torch(case, "torch_sdpa")


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_logits_of_ten_thousand(dtype, backend):
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]).to(dtype)
    mask = regard.causal()
    case = Case(
        query=100 * signs[None, None, :, None],
        key=100 * signs.roll(1)[None, None, :, None],
        value=normal(1, 1, 5, 3, dtype=dtype),
        make_mask=lambda: mask,
        others={"scale": 1.0},
        visible=torch.ones(1, 1, 5, 5, dtype=torch.bool).tril(),
        positions=torch.arange(5)[None],
    )
    assert float(case.plain_logits()[case.visible].abs().min()) == 1e4
    as_exact_as_torch(case, backend)


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("length", [2, 37, BLOCK + 1])
def test_results_do_not_depend_on_later_tokens(length, backend):
    query, key, value = (normal(2, 3, length, 16, seed=s) for s in range(3))
    at = length // 2
    run = functools.partial(regard.attention_with_pattern, mask=regard.causal(), backend=backend)
    context, pattern = run(query, key, value)
    changed = [torch.cat([t[..., :at, :], 9 * t[..., at:, :] + 1], -2) for t in (query, key, value)]
    again, other = run(*changed)
    assert torch.equal(context[..., :at, :], again[..., :at, :])
    assert not torch.equal(context[..., at:, :], again[..., at:, :])
    assert torch.equal(pattern.logsumexp[..., :at], other.logsumexp[..., :at])
    assert torch.equal(pattern[..., :at, :], other[..., :at, :])


@pytest.mark.parametrize("backend", ON_CPU)
def test_zero_scores_are_the_causal_average(backend):
    x = normal(7, 5)
    zeros = torch.zeros(7, 3)
    means = torch.stack([x[: t + 1].mean(0) for t in range(7)])
    context = regard.attention(zeros, zeros, x, mask=regard.causal(), backend=backend)
    torch.testing.assert_close(context, means)


@pytest.mark.parametrize("backend", ON_CPU)
def test_grouped_heads_are_consecutive(backend):
    query, key = normal(2, 6, 5, 4), normal(2, 3, 7, 4)
    value = normal(2, 3, 7, 3)
    grouped = regard.attention(query, key, value, backend=backend)
    for head in range(6):
        alone = regard.attention(query[:, head], key[:, head // 2], value[:, head // 2])
        torch.testing.assert_close(grouped[:, head], alone)


def test_torch_sdpa_asks_torch_for_less_than_the_whole_matrix(monkeypatch):
    """Blocks are handed only the keys they can see: a window costs no more the longer the text."""
    sizes = []
    flash = torch_sdpa._flash_on_cpu

    def noted(query, key, *rest, **options):
        sizes.append((query.shape[-2], key.shape[-2]))
        return flash(query, key, *rest, **options)

    monkeypatch.setattr(torch_sdpa, "_flash_on_cpu", noted)
    x = normal(1, 1, 5 * BLOCK, 8)
    regard.attention(x, x, x, mask=regard.causal() & regard.window(10), backend="torch_sdpa")
    assert sizes == [(BLOCK, BLOCK)] + [(BLOCK, BLOCK + 9)] * 4


def test_plain_causal_attention_is_torch_s_own_call():
    query, key, value = (normal(2, 3, 300, 16, seed=s) for s in range(3))
    context = regard.attention(query, key, value, mask=regard.causal(), backend="torch_sdpa")
    own = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.equal(context, own)
