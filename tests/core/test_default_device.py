"""torch's default device applies to new tensors of a model, not to the reading of patterns.

On the meta device a tensor has no numbers, so that one that is made there without being asked for
is found at once.
"""

import ast
from pathlib import Path
from threading import Event

import pytest
import torch
from support.sources import nodes
from torch import nn

import regard
from regard.gpt import GPT, GPTConfig
from regard.page import RecordingSubject
from regard.page._windows import Window
from regard.record import read_while_running

PACKAGE = Path(regard.__file__).parent
# The parameters of layers are made on the default device, and commands have none.
FILES = [path for path in PACKAGE.rglob("*.py") if path.parent.name not in {"cli", "nn"}]
MAKE = {
    *("arange", "as_tensor", "empty", "empty_strided", "eye", "full", "linspace", "logspace"),
    *("ones", "rand", "randint", "randn", "randperm", "scalar_tensor", "tensor", "zeros"),
    *("tril_indices", "triu_indices", "Generator"),
}

READOUTS = [
    regard.readouts.TopK(2),
    regard.readouts.Max(),
    regard.readouts.Entropy(),
    regard.readouts.Distance(),
    regard.readouts.Offsets(3),
    regard.readouts.Mass(slice(0, 2)),
    regard.readouts.Mass([0, 2]),
    regard.readouts.Spans([0, 1, -1, 1]),
    regard.readouts.Received(),
    regard.readouts.Received("mean", queries=[1, 3], grouped=True),
    regard.readouts.MaxScore(),
    regard.readouts.Lag(1),
    regard.readouts.Blocks(2, 3),
    regard.readouts.Image(4, 3),
]
MASKS = {
    "none": lambda: None,
    "causal": regard.causal,
    "window": lambda: regard.causal() & regard.window(3),
    "prefix": lambda: regard.masks.prefix(2),
}


def is_same(actual, expected):
    if isinstance(expected, torch.Tensor):
        return actual.device.type == "cpu" and torch.equal(
            actual.nan_to_num(-7.0), expected.nan_to_num(-7.0)
        )
    if isinstance(expected, (tuple, list)):
        return all(is_same(*pair) for pair in zip(actual, expected, strict=True))
    return actual == expected


def test_every_tensor_is_created_on_an_explicit_device():
    for path, node in ((file, node) for file in FILES for node in nodes(file)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        if of_torch and node.func.attr in MAKE:
            named = any(keyword.arg == "device" for keyword in node.keywords)
            assert named, f"{path}:{node.lineno}: {ast.unparse(node)} names no device"


def read(pattern, other):
    """All that there is to read of a pattern."""
    return [
        *pattern.read(*READOUTS),
        pattern.dense(),
        pattern[:, 1, [0, 2], 1:],
        pattern[0, :, 3],
        pattern[:1].entropy(),
        pattern.at(torch.tensor([1, 3], device="cpu")).dense(),
        pattern.crop((1, 4), (0, 3)).dense(),
        pattern @ torch.ones(pattern.shape[-1], 2, device="cpu"),
        pattern.singular_values(2),
        pattern.mean().entropy(),
        *(pattern.divergence(other, kind) for kind in ("js", "kl", "tv")),
        pattern.verify(),
    ]


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", MASKS)
def test_a_pattern_on_the_cpu(mask, dtype):
    query, other = torch.randn(2, 2, 4, 5, 3, dtype=dtype).unbind()
    key = torch.randn(2, 2, 5, 3, dtype=dtype)

    def make():
        patterns = (regard.Pattern(q, key, mask=MASKS[mask]()) for q in (query, other))
        return read(*patterns)

    expected = make()
    with torch.device("meta"):
        actual = make()
    assert is_same(actual, expected)


def test_steps_written_out():
    query, key, value = torch.randn(3, 2, 5, 3).unbind()

    def make():
        steps = regard.explain(query, key, value, mask=regard.causal(), sink=query[:, 0, 0])
        return [steps.context, steps.entropy(), steps.distance(), steps.spans([0, 1, 1]),
                steps.image(2, 3), steps.offsets(3)]  # fmt: skip

    expected = make()
    with torch.device("meta"):
        assert is_same(make(), expected)


CHANGES = {
    "ablate": lambda change: change.ablate(layers=1, heads=0, by="mean"),
    "knock_out": lambda change: change.knock_out(keys=[0, 2], queries=slice(3, None)),
    "steer": lambda change: change.steer(keys=1, by=2.0, heads=1),
    "temper": lambda change: change.temper(by=0.5, heads=1),
}


def a_model():
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=11, context=16, layers=2, heads=2, dim=12)).eval()


@pytest.mark.each_once
@pytest.mark.parametrize("name", CHANGES)
@torch.no_grad()
def test_changes_and_recordings_of_a_model_on_the_cpu(name):
    model, ids = a_model(), torch.tensor([[1, 4, 7, 2, 9, 3]])

    def make():
        with (
            regard.intervene(model) as change,
            regard.record(model, rows=slice(1, None), heads=[1, 0]) as recording,
            read_while_running(
                model, regard.readouts.Mass([0, 5]), regard.readouts.Received()
            ) as run,
        ):
            CHANGES[name](change)
            logits = model(ids)
        readings = [reading.values for reading in run.values()]
        again = [r.values for r in recording.read(*READOUTS[:12]).values()]
        return [logits, *readings, *again, *recording.dense()]

    expected = make()
    with torch.device("meta"):
        assert is_same(make(), expected)


@torch.no_grad()
def test_a_pattern_put_into_another_run_and_what_heads_do():
    model, ids = a_model(), torch.tensor([[1, 4, 7, 2, 9, 3]])

    def make():
        with regard.record(model, tokens=list("abcabc")) as recording:
            model(ids)
        with regard.intervene(model) as change:
            change.patch(layers=0, pattern=recording[1])
            logits = model(ids.flip(-1))
        heads = regard.lens.heads(recording)
        effects = [
            regard.lens.effects(model, ids[0], regard.lens.Logit(3), progress=False, **how).values
            for how in ({}, {"over": "keys"}, {"method": "gradient"})
        ]
        rollout = regard.lens.rollout(recording, query=-1)
        return [logits, repr(heads), *effects, rollout]

    expected = make()
    with torch.device("meta"):
        actual = make()
    assert is_same(actual, expected)


def test_a_report_and_an_answer_of_the_explorer(tmp_path):
    with regard.record(model := a_model()) as recording:
        model(torch.tensor([[1, 4, 7, 2, 9, 3]]))

    def make():
        regard.report(recording, tmp_path / "page.html", title="a page")
        run = RecordingSubject(recording, title="a page").run("0")
        whole = Window((0, 6), (0, 6), 1)
        maps = [run.map(0, "mean", whole, Event()), run.sketch(0, "mean", 2)]
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        return [page, *maps, repr(run.steps(0, 0, 3, count=2, picked=None))]

    expected = make()
    with torch.device("meta"):
        assert is_same(make(), expected)


def test_a_layer_of_torch_that_is_recorded():
    layer = nn.TransformerEncoderLayer(12, 2, batch_first=True, dropout=0.0)
    x = torch.randn(2, 5, 12)
    with regard.record(layer) as recording:
        layer(x)
    with torch.device("meta"), regard.record(layer) as again:
        layer(x)
    assert is_same(again.dense(), recording.dense())
