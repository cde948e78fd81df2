"""Runs to record and save, and damage done to what was saved.

Axes: B batch, H heads, L queries, S keys, D head dimension.
"""

import json
import math

import safetensors.torch
import torch
import torch.nn.functional as F

import regard
from regard.masks.hiding import add_to_scores
from regard.record import _files

B, H, L, S, D = 2, 3, 5, 7, 4


def sdpa(query=None, key=None, **options):
    query = torch.randn(B, H, L, D) if query is None else query
    key = torch.randn(B, H, S, D) if key is None else key
    F.scaled_dot_product_attention(query, key, key, **options)


def own(**options):
    regard.attention(torch.randn(B, 6, L, D), *torch.randn(2, B, 3, S, D), **options)


PADDING = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
GAPS = torch.rand(B, 6, L, S, generator=torch.Generator().manual_seed(3)) < 0.6
BIAS = torch.randn(6, L, S, generator=torch.Generator().manual_seed(4))
RUNS = {
    "plain": sdpa,
    "causal": lambda: sdpa(is_causal=True),
    "scale": lambda: sdpa(scale=0.3),
    "padding": lambda: sdpa(attn_mask=PADDING.bool()[:, None, None]),
    "written out": lambda: sdpa(attn_mask=torch.ones(L, S).tril().bool()),
    "hidden rows": lambda: sdpa(attn_mask=torch.ones(L, S).tril(-1).bool()),
    "gaps": lambda: sdpa(attn_mask=GAPS[:, :3]),
    "bias": lambda: sdpa(attn_mask=BIAS[:3]),
    "bias that hides": lambda: sdpa(attn_mask=BIAS[:3].masked_fill(~GAPS[:, :3], -math.inf)),
    "one for all": lambda: sdpa(attn_mask=BIAS[0, :1]),
    "bfloat16": lambda: sdpa(*(torch.randn(B, H, L, D).bfloat16() for _ in range(2))),
    "float16": lambda: sdpa(*(torch.randn(B, H, L, D).half() for _ in range(2))),
    "float64": lambda: sdpa(*(torch.randn(B, H, L, D).double() for _ in range(2))),
    "bfloat16 bias": lambda: sdpa(
        *(torch.randn(B, H, n, D).bfloat16() for n in (L, S)), attn_mask=BIAS[:3].bfloat16()
    ),
    "groups": lambda: sdpa(torch.randn(B, 6, L, D), enable_gqa=True),
    "no leading": lambda: sdpa(torch.randn(L, D), torch.randn(S, D)),
    "heads alone": lambda: sdpa(torch.randn(H, L, D), torch.randn(H, S, D), is_causal=True),
    "five axes": lambda: sdpa(torch.randn(2, B, H, L, D), torch.randn(2, B, H, S, D)),
    "five axes with gaps": lambda: sdpa(
        torch.randn(2, B, H, L, D), torch.randn(2, B, H, S, D), attn_mask=GAPS[:, :3]
    ),
    "no rows": lambda: sdpa(torch.randn(B, H, 0, D)),
    "own": own,
    "window": lambda: own(mask=regard.causal() & regard.window(2)),
    "documents": lambda: own(mask=regard.documents(torch.tensor([0, 0, 0, 1, 1, 2, 2]))),
    "offsets": lambda: own(mask=regard.causal(offset=torch.tensor([1, 3]))),
    "prefix": lambda: own(mask=regard.masks.prefix(torch.tensor([1, 3])) & regard.padding(PADDING)),
    "alibi": lambda: own(alibi=0.5 ** torch.arange(1, 7), mask=regard.causal()),
    "sink": lambda: own(sink=torch.randn(6)),
    "softcap": lambda: own(softcap=2.0),
    "spans": lambda: own(
        mask=regard.causal()
        & regard.masks.hide(slice(1, 3), queries=[5, 6], heads=[0, 4])
        & regard.masks.hide(5)
        & add_to_scores(0.1, slice(0, 4))
    ),
    "everything": lambda: own(
        mask=regard.causal() & regard.padding(PADDING) & regard.dense(GAPS),
        bias=BIAS,
        alibi=0.5 ** torch.arange(1, 7),
        sink=torch.randn(6),
        softcap=2.5,
        scale=0.7,
    ),
}


def tensors_of(folder):
    """The file of a recording that holds its tensors; each saving names it anew."""
    (path,) = folder.glob("recording-*.safetensors")
    return path


def equal(one, other):
    assert [(a.name, a.kind, a.index, list(a.heads), list(a.rows)) for a in one.layers] == [
        (a.name, a.kind, a.index, list(a.heads), list(a.rows)) for a in other.layers
    ]
    assert (one.tokens, one.source_tokens) == (other.tokens, other.source_tokens)
    for a, b in zip(one.layers, other.layers, strict=True):
        first, second = a.pattern, b.pattern
        assert first.shape == second.shape
        assert first.dtype == second.dtype
        assert torch.equal(first.dense(), second.dense())
        assert torch.equal(first.logsumexp, second.logsumexp)
        problem, again = first.problem, second.problem
        assert torch.equal(problem.query, again.query)
        assert torch.equal(problem.key, again.key)
        assert (problem.scale, problem.softcap) == (again.scale, again.softcap)
        assert torch.equal(
            problem.rows.spread(problem.rows.positions), again.rows.spread(again.rows.positions)
        )
        if first.shape.numel():
            assert torch.equal(first.distance(), second.distance())


def saved(folder, run=sdpa, **options):
    with regard.record(**options) as recording:
        run()
    recording.save(folder)
    return recording


def damage(folder, change, tensors=None):
    """Rewrite both files after a change of the first layer's entry, and of tensors by role."""
    index = json.loads((folder / "recording.json").read_text())
    metadata, entry = {"mark": index["mark"]}, index["layers"][0]
    named = safetensors.torch.load_file(tensors_of(folder))
    for role, new in (tensors or {}).items():
        place = role.split()
        name = entry[place[0]] if len(place) == 1 else entry[place[0]][int(place[1])]
        named[name] = new(named[name]).contiguous()
    change(index, entry)
    safetensors.torch.save_file(named, tensors_of(folder), metadata=metadata)
    index["tensors"] = _files._checksum(tensors_of(folder))
    write_index(folder, index)


def write_index(folder, index):
    """Write an index down as one that was written so, and is not damaged."""
    index.pop("sha256")
    (folder / "recording.json").write_bytes(_files._sealed(index))


def nothing(index, entry):
    pass
