"""Calls of torch's flex_attention: what its mods do to scores is recorded, or refused.

Weights lie in [0, 1]; float32 with head dimensions below 10 keeps their error below 1e-6.
"""

import pytest
import torch
from support.interception import close
from torch import nn
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

import regard
from regard.record import RecordError

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

B, H, L, S, D = 2, 3, 5, 7, 4
SLOPES = torch.tensor([0.7, 0.2, 1.3])
IDS = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 3]])


@pytest.fixture(autouse=True)
def no_gradients():  # which torch computes on a GPU alone
    with torch.no_grad():
        yield


def tensors(groups=H):
    return torch.randn(B, H, L, D), torch.randn(B, groups, S, D), torch.randn(B, groups, S, D)


def weights(query, key, score_mod=None, mask_mod=None, scale=None):
    """The weights in float64, score by score."""
    key = key.repeat_interleave(H // key.shape[1], 1)
    scores = query.double() @ key.double().mT * (D**-0.5 if scale is None else scale)
    for place in torch.cartesian_prod(*map(torch.arange, scores.shape)):
        b, h, q, k = place
        if score_mod is not None:
            scores[b, h, q, k] = score_mod(scores[b, h, q, k], b, h, q, k)
        if mask_mod is not None and not mask_mod(b, h, q, k):
            scores[b, h, q, k] = -torch.inf
    return torch.softmax(scores, -1).nan_to_num(0)


def recorded(*arguments, **options):
    with regard.record() as recording:
        flex_attention(*arguments, **options)
    return recording[0]


MASKS = {
    "causal": lambda b, h, q, k: q + S - L >= k,
    "window": lambda b, h, q, k: (q + 2 >= k) & (q - k < 2),
    "documents": lambda b, h, q, k: IDS[b, q] == IDS[b, k],
    "of heads": lambda b, h, q, k: k <= q + h,
    "with gaps": lambda b, h, q, k: (q + k) % 2 == 0,
    "hides all": lambda b, h, q, k: (q > 1) & (k > q),
}


@pytest.mark.parametrize("name", MASKS)
def test_block_masks(name):
    query, key, value = tensors()
    mask_mod = MASKS[name]
    blocks = create_block_mask(mask_mod, B, H, L, S, device="cpu", BLOCK_SIZE=2)
    pattern = recorded(query, key, value, block_mask=blocks)
    close(pattern, weights(query, key, mask_mod=mask_mod))
    assert (pattern.problem.rows.allowed is None) == (name != "with gaps")


MODS = {
    "bias": lambda score, b, h, q, k: score + SLOPES[h] * (k - q),
    "softcap": lambda score, b, h, q, k: 0.7 * torch.tanh(score / 0.7),
    "softcap, then bias": lambda score, b, h, q, k: 2 * torch.tanh(score / 2) - SLOPES[h] * k,
    "factor": lambda score, b, h, q, k: score * 1.7,
    "factor, then softcap": lambda score, b, h, q, k: 2 * torch.tanh(1.5 * score / 2),
    "hides": lambda score, b, h, q, k: torch.where(q + 2 >= k, score, -float("inf")),
    "in float32": lambda score, b, h, q, k: score.float() + SLOPES[h] * k,
}


@pytest.mark.parametrize("name", MODS)
def test_score_mods(name):
    query, key, value = tensors()
    for scale in (None, 0.3):
        pattern = recorded(query, key, value, score_mod=MODS[name], scale=scale)
        close(pattern, weights(query, key, MODS[name], scale=scale))


def test_score_mods_within_block_masks():
    """What a score_mod does to hidden scores is of no matter."""
    query, key, value = tensors()
    causal = MASKS["causal"]

    def score_mod(score, b, h, q, k):
        return torch.where(q + S - L >= k, score + SLOPES[h], score * score)

    blocks = create_block_mask(causal, None, None, L, S, device="cpu")
    pattern = recorded(query, key, value, score_mod=score_mod, block_mask=blocks)
    close(pattern, weights(query, key, mask_mod=causal))


@pytest.mark.parametrize(
    "score_mod",
    [
        lambda score, b, h, q, k: score * score,
        lambda score, b, h, q, k: torch.where(score > 0.5, score + 1, score),
        lambda score, b, h, q, k: score * SLOPES[h],
        lambda score, b, h, q, k: 2 * torch.tanh((score + SLOPES[h]) / 2),
        lambda score, b, h, q, k: score.clamp(max=0.9),
        lambda score, b, h, q, k: torch.relu(score),
    ],
)
def test_other_score_mods_are_refused(score_mod):
    query, key, value = tensors()
    with pytest.raises(RecordError, match="score_mod of flex_attention is not of the form"):
        recorded(4 * query, key, value, score_mod=score_mod)


def test_blocks_that_are_not_those_of_the_mask_mod_are_refused():
    query, key, value = tensors()
    causal = MASKS["causal"]
    blocks = create_block_mask(causal, None, None, L, S, device="cpu", BLOCK_SIZE=2)
    listed = blocks.kv_num_blocks, blocks.kv_indices
    whole = blocks.full_kv_num_blocks, blocks.full_kv_indices
    for lists in ((*listed,), (*whole, *listed)):  # the whole ones left out, or interchanged
        other = BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=2, mask_mod=causal, seq_lengths=(L, S))
        with pytest.raises(RecordError, match="block_mask of flex_attention has blocks"):
            recorded(query, key, value, block_mask=other)


def test_blocks_for_all_entries_and_heads_may_have_a_mask_mod_for_each():
    lengths = torch.tensor([5, 2])

    def mask_mod(b, h, q, k):
        return (k < lengths[b]) & (k <= q + h)

    query, key, value = tensors()
    blocks = create_block_mask(mask_mod, None, None, L, S, device="cpu")  # of the first alone
    close(recorded(query, key, value, block_mask=blocks), weights(query, key, mask_mod=mask_mod))


def test_one_mask_for_all_entries_and_heads_is_evaluated_once():
    def mask_mod(b, h, q, k):
        return k <= q

    query, key, value = tensors()
    blocks = create_block_mask(mask_mod, None, None, L, S, device="cpu")
    rows = recorded(query, key, value, block_mask=blocks).problem.rows
    sizes = {tensor.shape[:2] for tensor in (rows.start, rows.stop)}
    assert sizes == {(1, 1)}


@pytest.mark.parametrize("number", [-1e7, torch.finfo(torch.float32).min])
def test_large_numbers_in_place_of_hidden_keys_are_refused(number):
    query, key, value = tensors()

    def score_mod(score, b, h, q, k):
        return torch.where(k < q, score, number)

    with pytest.raises(RecordError, match="hide keys by block_mask or -inf"):
        recorded(query, key, value, score_mod=score_mod)


def test_grouped_heads_and_one_batch_of_keys():
    query, key, value = tensors(groups=1)
    pattern = recorded(query, key, value, score_mod=MODS["bias"], enable_gqa=True)
    close(pattern, weights(query, key, MODS["bias"]))
    blocks = create_block_mask(MASKS["causal"], B, None, L, S, device="cpu")
    pattern = recorded(query, key[:1], value[:1], None, blocks, enable_gqa=True)
    close(pattern, weights(query, key[:1], mask_mod=MASKS["causal"]))


def test_autocast():
    query, key, value = tensors()
    with torch.autocast("cpu", torch.bfloat16):
        pattern = recorded(query, key, value)
    close(pattern, weights(query.bfloat16(), key.bfloat16()))


class Layer(nn.Module):
    def __init__(self, attend, **options):
        super().__init__()
        self.attend, self.options = attend, options

    def forward(self, *tensors):
        return self.attend(*tensors, **self.options)


def test_results_keep_every_bit():
    layer, inputs = Layer(flex_attention, score_mod=MODS["softcap"]), tensors()
    plain = layer(*inputs)
    with regard.record(layer) as recording:
        seen = layer(*inputs)
    assert torch.equal(plain, seen)
    assert len(recording) == 1


def test_interventions_change_the_calls():
    """Also of a compiled function, which runs eagerly."""
    layer, (query, key, value) = Layer(torch.compile(flex_attention, backend="eager")), tensors()
    with regard.intervene(layer) as change, regard.record(layer) as recording:
        change.knock_out(queries=-1, keys=slice(1, 3), heads=2)
        changed = layer(query, key, value)
    weights = recording[0].dense()
    assert bool((weights[:, 2, -1, 1:3] == 0).all())
    torch.testing.assert_close(changed, weights @ value, rtol=0, atol=1e-5)
    layer.options["return_aux"] = AuxRequest(lse=True)
    with pytest.raises(RecordError, match="without return_lse"), regard.intervene(layer) as change:  # noqa: PT012
        change.knock_out(queries=-1, keys=0)
        layer(query, key, value)
    with regard.record(layer) as recording:
        _, aux = layer(query, key, value)
    lse = recording[0].logsumexp
    torch.testing.assert_close(aux.lse, lse.float().view_as(aux.lse), rtol=0, atol=1e-5)


def test_gradients_are_those_of_the_plain_run(monkeypatch):
    """Also of what a score_mod captures; on a CPU, torch can compute them and refuses to."""
    monkeypatch.setitem(flex_attention.__globals__, "_validate_device", lambda *_: None)
    slopes = SLOPES.clone().requires_grad_()
    inputs = [tensor.requires_grad_() for tensor in tensors()]
    layer = Layer(flex_attention, score_mod=lambda score, b, h, q, k: score + slopes[h] * k)

    def gradients():
        return torch.autograd.grad(layer(*inputs).square().sum(), (*inputs, slopes))

    with torch.enable_grad():
        plain = gradients()
        with regard.record(layer):
            seen = gradients()
    assert all(map(torch.equal, plain, seen))
