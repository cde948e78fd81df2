"""Trace a GPT on CUDA, where there is none, as one graph, and print what is in the graph.

The tensors hold no numbers, so a read of one ends the graph; it is not compiled. In a process of
its own: a graph can't be made of functions whose types are checked.
"""

import json
import sys
from collections import Counter

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import _disable_current_modes

from regard import attention, causal
from regard.gpt import GPT, GPTConfig
from regard.gpt.training.batches import document_mask
from regard_experiments.gpu.flex import _kernel
from support.fake_cuda import gpu

LATER = {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "groups": 2, "qk_norm": True}
SHAPE = {"vocab_size": 31, "context": 67, "layers": 2, "heads": 4, "dim": 128}


def on_cuda(**options):
    """A model on CUDA, in bfloat16; without gradients, which torch can't follow without a GPU."""
    with _disable_current_modes(), torch.device("meta"):
        model = GPT(GPTConfig(**SHAPE | options)).bfloat16()
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                empty = torch.empty(weight.shape, dtype=weight.dtype, device="cuda")
                module._parameters[name] = torch.nn.Parameter(empty, requires_grad=False)
    return model


def graph_of(function, *arguments):
    """Trace a function as one graph: how often each operator occurs in it."""
    counter = CompileCounterWithBackend("eager")
    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(function, fullgraph=True, backend=counter)(*arguments)
    (graph,) = counter.graphs
    return Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_function")


def stand_in(query, key, value, scale, score_mod, blocks):
    """Stands for FlexAttention, of which torch can't trace the kernel without a GPU."""
    tables = blocks.kv_indices, blocks.full_kv_indices, blocks.q_indices, blocks.full_q_indices
    assert {table.shape[-2:] for table in tables} == {(1, 1)}
    return query + 0, query.sum(-1, dtype=torch.float32)


def refusal(function, *arguments):
    """Why a function can't be made a graph."""
    try:
        graph_of(function, *arguments)
    except TorchDynamoException as error:
        return str(error)
    return None


def result(name):
    """The graph of a model or of a training step's mask, or why there can't be one."""
    ids = torch.zeros(2, 67, dtype=torch.int64, device="cuda")
    x = torch.zeros(1, 4, 67, 32, dtype=torch.bfloat16, device="cuda")
    windowed = on_cuda(window=50, layers=1)
    _kernel._call = stand_in
    make = {
        "plain": lambda: graph_of(on_cuda(**LATER), ids),
        "documents": lambda: graph_of(lambda ids: windowed(ids, mask=document_mask(ids, 3)), ids),
        "dropout": lambda: graph_of(on_cuda(dropout=0.1, layers=1), ids),
        "checked": lambda: refusal(
            lambda x: attention(x, x, x, mask=causal(), check_finite=True), x
        ),
    }
    return make[name]()


if __name__ == "__main__":
    with gpu():
        sys.stdout.write(json.dumps(result(sys.argv[1])))
