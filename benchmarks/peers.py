"""Other libraries' causal attention on a CPU, each with as many threads as torch.

None of them is needed: `prepare` raises ImportError where one can't be had. Query, key and value
are (B, H, L, D): batch, heads, queries and keys, head dimension.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.dlpack import from_dlpack


class Ready(NamedTuple):
    """A peer with its tensors at hand."""

    call: Callable[[], Any]
    tensor: Callable[[Any], Tensor] = lambda context: context
    """Makes the call's result a tensor of torch."""


class Peer(NamedTuple):
    """A way to compute attention that is not ours."""

    package: str
    prepare: Callable[[Tensor, Tensor, Tensor], Ready]
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)


def _torch(query: Tensor, key: Tensor, value: Tensor) -> Ready:
    return Ready(partial(F.scaled_dot_product_attention, query, key, value, is_causal=True))


def _eager(query: Tensor, key: Tensor, value: Tensor) -> Ready:
    hidden = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(1)

    def attend() -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value

    return Ready(attend)


def _flex(query: Tensor, key: Tensor, value: Tensor) -> Ready:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise ImportError("torch.compile needs a C++ compiler")
    mask = create_block_mask(
        lambda b, h, i, j: i >= j,  # noqa: ARG005 - torch's signature
        *(None, None, query.shape[-2], key.shape[-2]),
        device="cpu",
    )
    attend = torch.compile(flex_attention, dynamic=False)
    return Ready(partial(attend, query, key, value, block_mask=mask))


def _zentorch(query: Tensor, key: Tensor, value: Tensor) -> Ready:
    import zentorch  # noqa: F401 - registers the compiler's backend

    compiled = torch.compile(
        partial(F.scaled_dot_product_attention, is_causal=True), backend="zentorch", dynamic=False
    )
    return Ready(partial(compiled, query, key, value))


def _onnxruntime(query: Tensor, key: Tensor, value: Tensor) -> Ready:
    import onnxruntime
    from onnx import TensorProto, helper

    names = ("query", "key", "value")
    graph = helper.make_graph(
        [helper.make_node("Attention", names, ["context"], is_causal=1)],
        "attention",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list("BHLD")) for name in names],
        [helper.make_tensor_value_info("context", TensorProto.FLOAT, list("BHLD"))],
    )
    opset = helper.make_opsetid("", 23)  # the first with this operator
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Its threads must not go on spinning into the others' time.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    arrays = {name: t.numpy() for name, t in zip(names, (query, key, value), strict=True)}
    return Ready(partial(session.run, None, arrays), lambda results: torch.from_numpy(results[0]))


def _jax(query: Tensor, key: Tensor, value: Tensor) -> Ready:
    os.environ["NPROC"] = str(torch.get_num_threads())  # XLA reads it when it starts
    import jax

    arrays = [jax.dlpack.from_dlpack(t.transpose(1, 2).contiguous()) for t in (query, key, value)]
    attend = jax.jit(partial(jax.nn.dot_product_attention, is_causal=True))
    return Ready(
        lambda: attend(*arrays).block_until_ready(),
        lambda context: from_dlpack(context).transpose(1, 2),
    )


def _openvino(query: Tensor, key: Tensor, value: Tensor) -> Ready:
    # Without this, importing it reports to its maker, from a process that it forks.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment] # None bars an import
    import openvino
    from openvino import opset13

    half = query.dtype == torch.bfloat16
    number = openvino.Type.bf16 if half else openvino.Type.f32
    parameters = [opset13.parameter(list(t.shape), number) for t in (query, key, value)]
    context = opset13.scaled_dot_product_attention(*parameters, causal=True)
    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
        "NUM_STREAMS": 1,
    }
    model = openvino.Model([context], parameters, "attention")
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    for place, part in enumerate((query, key, value)):
        # NumPy has no bfloat16: the bits go by another name.
        bits = part.view(torch.int16).numpy() if half else part.numpy()
        request.set_input_tensor(place, openvino.Tensor(bits, list(part.shape), number))

    def tensor(_: object) -> Tensor:
        bits = request.get_output_tensor().data
        context = torch.from_numpy(bits.view("int16") if half else bits)
        return context.view(query.dtype)

    return Ready(request.infer, tensor)


PEERS = {
    "torch SDPA": Peer("torch", _torch),
    "FlexAttention, compiled": Peer("torch", _flex),
    "eager": Peer("torch", _eager),
    "zentorch, compiled": Peer("zentorch", _zentorch),
    "onnxruntime Attention": Peer("onnxruntime", _onnxruntime, (torch.float32,)),
    "JAX dot_product_attention": Peer("jax", _jax),
    "OpenVINO": Peer("openvino", _openvino),
}


def version(package: str) -> str:
    """Which version is installed, if any."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
