"""CUDA where there is none.

Tensors without numbers suffice to see what is chosen and why. FlexAttention computes on a CPU with
torch's own reference: the functions of a score, the blocks and the gradients are those that a GPU
gets; the kernel is not. The fused kernels are stood in for by what their documentation says.
"""

import contextlib
import math
from dataclasses import replace
from functools import partialmethod

import pytest
import torch
import torch.nn.attention.flex_attention as torchs
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from regard.inputs import Scoring, check
from regard_experiments.gpu import hardware, self_check
from regard_experiments.gpu.flex import _kernel
from regard_experiments.gpu.fused import flash
from support.cases import HALF


@contextlib.contextmanager
def gpu(capability=(9, 0), *, cudnn=91002, flash_attention=None, triton=True):
    """Tensors on a CUDA device that has no memory: who reads a number off it fails."""
    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(allow_non_fake_inputs=True):
        patch.setattr(hardware, "capability", lambda device: capability)
        patch.setattr(hardware, "cudnn_version", lambda: cudnn)
        patch.setattr(hardware, "why_no_triton", lambda: None if triton else "there is no Triton")
        patch.setattr(flash, "activated", lambda: flash_attention)
        patch.setattr(FakeTensor, "__getitem__", _item)
        patch.setattr(FakeTensor, "__invert__", partialmethod(torch.bitwise_not))
        yield


def _item(tensor, index):
    """``tensor[index]`` by operators: Python's own way to them asks the driver for the device."""
    entries = [*index] if isinstance(index, tuple) else [index]
    is_dots = [entry is Ellipsis for entry in entries]
    dots = is_dots.index(True) if True in is_dots else len(entries)
    missing = tensor.ndim - sum(e is not None and e is not Ellipsis for e in entries)
    entries[dots : dots + 1] = [slice(None)] * missing
    result, axis, picked = tensor, 0, {}
    for entry in entries:
        if entry is None:
            result = torch.unsqueeze(result, axis)
        elif isinstance(entry, slice):
            result = torch.ops.aten.slice.Tensor(
                result, axis, entry.start, entry.stop, entry.step or 1
            )
        elif isinstance(entry, torch.Tensor):
            picked[axis] = entry
        else:
            result, axis = torch.select(result, axis, entry), axis - 1
        axis += 1
    if picked:
        result = torch.ops.aten.index.Tensor(result, [picked.get(i) for i in range(result.ndim)])
    return result


def gpu_problem(
    dtype=torch.bfloat16,
    queries=256,
    keys=None,
    dim=64,
    dim_value=None,
    groups=2,
    is_finite=True,
    trained=None,
    dropout=0.0,
    check_finite=False,
    **options,
):
    """A problem of 2 sequences and 4 heads on that device; is_finite=None leaves that unknown."""
    keys = queries if keys is None else keys
    query = torch.empty(2, 4, queries, dim, dtype=dtype, device="cuda")
    key = torch.empty(2, groups, keys, dim, dtype=dtype, device="cuda")
    value = torch.empty(2, groups, keys, dim_value or dim, dtype=dtype, device="cuda")
    problem = check(query, key, value, Scoring(**options), check_finite=check_finite)
    problem = replace(problem, dropout=dropout)  # draws no seed
    if trained is not None:  # after the fact: torch can't follow gradients without a GPU
        named = {"query": problem.query, "bias": problem.rows.bias, "sink": problem.sink}
        named[trained].requires_grad_()
    if is_finite is not None:
        problem.__dict__["is_finite"] = is_finite
    return problem


@contextlib.contextmanager
def flex_on_cpu(*, traced=False, checked=False):
    """Let FlexAttention compute on a CPU; traced as on a GPU where gradients are wanted.

    Its self-check is left out unless checked.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not checked:
            patch.setattr(self_check, "attention_failure", lambda *arguments: None)
        patch.setattr(hardware, "elsewhere", lambda problem, backend: None)
        patch.setattr(hardware, "too_old", lambda problem, needed: None)
        patch.setattr(hardware, "why_no_triton", lambda: None)
        patch.setattr(torchs, "_validate_device", lambda *tensors: None)  # refuses gradients
        if traced:
            compiled = torch.compile
            patch.setattr(torch, "compile", lambda f, **o: compiled(f, backend="aot_eager", **o))
            _kernel._compiled.cache_clear()
        else:
            patch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
            patch.setattr(_kernel, "_compiled", lambda kind: _kernel._call)
        yield
    if traced:
        _kernel._compiled.cache_clear()


@contextlib.contextmanager
def documented_kernels(*, checked=False):
    """Let the fused kernels of CUDA be computed on a CPU, as they are documented.

    They insist on what the real ones insist on, and no gradient passes through the log-sum-exp.
    Their self-check is left out unless checked.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not checked:
            patch.setattr(self_check, "attention_failure", lambda *arguments: None)
        patch.setattr(hardware, "elsewhere", lambda problem, backend: None)
        patch.setattr(hardware, "capability", lambda device: (9, 0))
        patch.setattr(hardware, "cudnn_version", lambda: 91002)
        patch.setattr(flash, "activated", lambda: None)
        for name in ("flash", "cudnn", "efficient"):
            call = f"_scaled_dot_product_{name}_attention"
            patch.setattr(torch.ops.aten, call, globals()[f"_{name}"])
        yield


def _flash(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale):
    assert query.dtype in HALF
    assert query.shape[-1] == value.shape[-1] <= 256
    context, logsumexp = _written_out(query, key, value, scale)(
        causal_from=key.shape[-2] - query.shape[-2] if is_causal else None
    )
    return context, logsumexp.masked_fill(logsumexp.isnan(), torch.inf), None, None, 0, 0


def _cudnn(query, key, value, attn_bias, compute_log_sumexp, is_causal=False, *, scale):
    assert query.dtype in HALF
    assert attn_bias is None
    assert compute_log_sumexp
    assert query.shape[-2] == key.shape[-2] or not is_causal
    context, logsumexp = _written_out(query, key, value, scale)(0 if is_causal else None)
    return context, logsumexp[..., None], None, None, 0, 0


def _efficient(query, key, value, attn_bias, compute_log_sumexp, is_causal=False, *, scale):
    assert compute_log_sumexp
    assert key.shape[1] == query.shape[1]
    assert attn_bias is None or not is_causal
    if attn_bias is not None:
        assert attn_bias.dtype == query.dtype
        assert attn_bias.shape == (*query.shape[:-1], key.shape[-2])
        assert attn_bias.stride(-1) == 1
        assert attn_bias.stride(-2) % 16 == 0
        assert not attn_bias.requires_grad
    context, logsumexp = _written_out(query, key, value, scale)(0 if is_causal else None, attn_bias)
    missing = -logsumexp.shape[-1] % 32
    return context, torch.nn.functional.pad(logsumexp, (0, missing), value=math.nan), None, None


def _written_out(query, key, value, scale):
    assert scale > 0
    for tensor in (query, key, value):
        assert tensor.ndim == 4
        assert tensor.shape[-1] % 8 == 0
        assert tensor.stride(-1) == 1
        assert all(s * tensor.itemsize % 16 == 0 and s > 0 for s in tensor.stride()[:-1])
        assert tensor.data_ptr() % 16 == 0

    def compute(causal_from=None, bias=None):
        group = query.shape[1] // key.shape[1]
        spread = [t.repeat_interleave(group, 1).float() for t in (key, value)]
        scores = query.float() @ spread[0].mT * scale
        if bias is not None:
            scores = scores + bias.float()
        if causal_from is not None:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(causal_from + 1)
            scores = scores.masked_fill(hidden, -torch.inf)
        weights = torch.softmax(scores, -1).to(query.dtype)
        context = weights @ spread[1].to(query.dtype)
        return context, torch.logsumexp(scores, -1).detach()

    return compute
