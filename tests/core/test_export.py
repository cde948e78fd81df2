"""Graphs by torch.compile, torch.export and make_fx: whole, and for symbolic sizes."""

import json

import pytest
from support.processes import run_script

pytestmark = pytest.mark.thorough

# In a process of its own: the compiler can't see through the type checks of the test run. One
# process serves all kinds and dtypes, since loading the compiler takes longer than most graphs, and
# prints what went wrong.
SETUP = """
import json, traceback, warnings
import torch, regard
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx
from regard.masks.hiding import add_to_scores

warnings.simplefilter("ignore")  # torch's own, of what it will deprecate
B, H, G, D, DV = 2, 6, 3, 11, 13
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-4}  # sums of some hundred terms near 1

def inputs(batch, queries, keys):
    torch.manual_seed(queries)
    shapes = (batch, H, queries, D), (batch, G, keys, D), (batch, G, keys, DV)
    return [torch.randn(shape).to(dtype) for shape in shapes]

OPTIONS = {
    "plain": {},
    "causal": {"mask": regard.causal()},
    "top left": {"mask": regard.causal(offset=0)},
    "window": {"mask": regard.causal() & regard.window(3), "scale": -0.3},
    "prefix": {"mask": regard.masks.prefix(2), "softcap": 3.0},
    "spans": {
        "mask": regard.causal()
        & regard.masks.hide(1, queries=slice(2, None, 2), heads=[0, 4])
        & regard.masks.hide(slice(None), queries=-2)
        & add_to_scores(0.7, slice(-2, None))
    },
    "dropout": {"mask": regard.causal(), "dropout": 0.5},
    "numbers": {"alibi": torch.arange(1.0, 1 + H), "sink": torch.ones(H)},
}
WRITTEN_OUT = ("window", "spans", "dropout")  # in float64, in many operators that take their time

def seeded(call, *tensors):
    torch.manual_seed(7)
    return call(*tensors)

def same(call, expected, sizes):
    tensors = inputs(*sizes)
    results, wanted = seeded(call, *tensors), seeded(expected, *tensors)
    torch.testing.assert_close(results, wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])

class Model(torch.nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, query, key, value):
        return regard.attention(query, key, value, **self.options)

def differentiated(model):
    def call(*tensors):
        tensors = [t.detach().requires_grad_() for t in tensors]
        context = model(*tensors)
        return context.detach(), *torch.autograd.grad(context.square().sum(), tensors)
    return call
"""

KINDS = {
    # torch writes its own check of sizes for the four keys of a word of Philox, which does not hold
    # for all of them; a fixed size does.
    "export": """
def run(name, model):
    if name == "dropout" and dtype == torch.float64:
        sizes, shapes = (B, 5, 7), None
    else:
        batch, queries, keys = (Dim(n, min=2, max=64) for n in ("batch", "queries", "keys"))
        sizes, shapes = (3, 11, 17), ({0: batch, 2: queries}, *({0: batch, 2: keys},) * 2)
    for strict in (True, False):
        program = export(model, tuple(inputs(B, 5, 7)), dynamic_shapes=shapes, strict=strict)
        same(program.module(), model, sizes)
""",
    "make_fx": """
def run(name, model):
    if name == "numbers":
        return  # tensors that are no arguments are none that it knows
    for mode in ("symbolic", "fake", "real"):
        graph = make_fx(lambda *tensors: model(*tensors), tracing_mode=mode)(*inputs(B, 5, 7))
        same(graph, model, (3, 11, 17) if mode == "symbolic" and name != "dropout" else (B, 5, 7))
""",
    "compile": """
def run(name, model):
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    if dtype == torch.float32:  # what is written out does not ask for gradients
        same(compiled, model, (B, 5, 7))
    for sizes in ((B, 5, 7), (B, 3, 11)):
        same(differentiated(compiled), differentiated(model), sizes)
""",
    "transforms": """
from torch.func import grad, vmap

def run(name, model):
    if name != "window":
        return  # torch.compile takes its time
    def loss(*tensors):
        return model(*tensors).square().sum()
    for call in (vmap(model), grad(loss), vmap(grad(loss)), grad(lambda *t: vmap(loss)(*t).sum())):
        torch.compiler.reset()
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        tensors = [torch.stack([t, t / 2]) for t in inputs(B, 5, 7)]
        atol = TOLERANCES[dtype]
        torch.testing.assert_close(compiled(*tensors), call(*tensors), rtol=0, atol=atol)
""",
    "call": """
def run(name, model):
    def call(*tensors):
        return regard.scaled_dot_product_attention(*tensors, is_causal=True, enable_gqa=True)
    if name == "window":
        torch.compiler.reset()
        same(torch.compile(call, fullgraph=True, backend="aot_eager"), call, (B, 5, 7))
""",
}

RUNS = """
wrong = {{}}
for dtype in TOLERANCES:
    for name in WRITTEN_OUT if dtype == torch.float64 else OPTIONS:
        try:
            run(name, Model(OPTIONS[name]))
        except Exception:
            wrong[name + " " + str(dtype)] = traceback.format_exc()
print(json.dumps(["{kind}", wrong]))
"""


@pytest.fixture(scope="module")
def wrong():
    """What went wrong, of each kind."""
    runs = (KINDS[kind] + RUNS.format(kind=kind) for kind in KINDS)
    printed = run_script(SETUP + "".join(runs))
    return dict(json.loads(line) for line in printed.splitlines() if line.startswith('["'))


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_has_no_breaks_and_equals_the_call(wrong, kind):
    assert not wrong[kind], "\n".join(f"{name}: {error}" for name, error in wrong[kind].items())
