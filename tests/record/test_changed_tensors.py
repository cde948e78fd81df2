"""What happens to the tensors of a run after they were recorded."""

import contextlib

import pytest
import torch
from support.caches import CAUSAL, PROMPT, STEPWISE, Attend, B, D, H, T, close, exact, sequence

import regard
from regard.record import RecordError


@pytest.mark.parametrize("which", ["query", "key"])
@pytest.mark.parametrize("offload", [None, "cpu"])
def test_a_tensor_that_is_written_to_afterwards(which, offload):
    layer, (query, key) = Attend(), sequence(PROMPT)
    query, key = query.clone(), key.clone()
    weights = exact(query, key)
    with regard.record(layer, offload=offload) as recording:
        layer(query, key, is_causal=True)
    close(recording[0], weights)
    {"query": query, "key": key}[which].add_(1)
    if offload is not None:
        close(recording[0], weights)
        return
    for look in (lambda: recording[0], lambda: recording.layers[0].pattern):
        with pytest.raises(RecordError, match=r"written to after.*offload='cpu'"):
            look()


@pytest.mark.parametrize("offload", [None, "cpu"])
def test_a_bias_that_is_written_to_afterwards(offload):
    layer, (query, key), bias = Attend(), sequence(PROMPT), torch.randn(PROMPT, PROMPT)
    scores = query.double() @ key.double().mT * D**-0.5 + bias
    with regard.record(layer, offload=offload) as recording:
        layer(query, key, attn_mask=bias)
    bias.add_(torch.eye(PROMPT))
    if offload is not None:
        close(recording[0], scores.softmax(-1))
        return
    with pytest.raises(RecordError, match=r"written to after.*offload='cpu'"):
        recording[0].dense()


@pytest.mark.parametrize("offload", [None, "cpu"])
def test_storage_that_is_freed_afterwards(offload):
    layer, (query, key) = Attend(), sequence(PROMPT)
    query, key = query.clone(), key.clone()
    weights = exact(query, key)
    with regard.record(layer, offload=offload) as recording:
        layer(query, key, is_causal=True)
    key.untyped_storage().resize_(0)
    if offload is not None:
        close(recording[0], weights)
        return
    with pytest.raises(RecordError, match=r"were freed after.*offload='cpu'"):
        recording[0].dense()


def test_storage_that_is_freed_between_steps():
    layer, (query, key) = Attend(), sequence()
    with regard.record(layer) as recording:
        for start, stop in STEPWISE:
            cache = key[..., :stop, :].clone()
            visible = CAUSAL[start:stop, :stop]
            layer(query[..., start:stop, :].clone(), cache, attn_mask=visible)
            if start > 0:  # the first is compared with
                cache.untyped_storage().resize_(0)
    close(recording[0], exact(query, key))


def test_parts_of_a_projection_are_copied_out_of_it():
    """q, k and v cut out of one tensor would keep all of it, and change with it."""
    layer, joint = Attend(), torch.randn(B, PROMPT, 3, H, D)
    query, key, value = joint.transpose(1, 3).unbind(2)
    weights = exact(query, key)
    with regard.record(layer) as recording:
        layer(query, key, value, is_causal=True)
    problem = recording[0].problem
    for kept in (problem.query, problem.key):
        assert kept.untyped_storage().nbytes() == kept.numel() * 4
    joint.zero_()
    close(recording[0], weights)


def test_a_query_that_is_written_to_in_a_later_step():
    layer, (query, key) = Attend(), sequence()
    pieces = []
    with regard.record(layer) as recording:
        for start, stop in STEPWISE:
            pieces.append(query[..., start:stop, :].clone())
            visible = CAUSAL[start:stop, :stop]
            layer(pieces[-1], key[..., :stop, :].clone(), attn_mask=visible)
    pieces[-1].add_(1)
    with contextlib.suppress(RecordError):
        close(recording[0], exact(query, key))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_buffers_of_either_mode(mode):
    """A scratch buffer that each step's query is written into."""
    layer, (query, key) = Attend(), sequence()
    with mode(), regard.record(layer) as recording:
        scratch = torch.empty(B, H, 1, D)
        cache = torch.zeros(B, H, T, D)
        for t in range(T):
            scratch.copy_(query[..., t : t + 1, :])
            cache[..., t : t + 1, :] = key[..., t : t + 1, :]
            layer(scratch, cache[..., : t + 1, :])
    with contextlib.suppress(RecordError):
        close(recording[0], exact(query, key))
