"""A CUDA device with numbers, where there is none: they lie in main memory and are computed there.

Tensors say that they are on ``cuda:0``. What mixes them with tensors of the CPU is refused as CUDA
refuses it, and so is handing them to numpy; every crossing to the CPU is counted, and so is all
that would wait for the device: what torch's own sync debug mode warns of. So it shows what a
program does with two devices. It says nothing of kernels, streams, memory or speed.
"""

import contextlib
import traceback

import pytest
import torch
from torch.nn.utils import clip_grad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from regard import _contexts
from regard_experiments.gpu import hardware, triton

DEVICE = torch.device("cuda:0")
_ATEN = torch.ops.aten
_CROSSING = {_ATEN._to_copy.default, _ATEN.copy_.default}
_BY_INDEX = {
    _ATEN.index.Tensor,
    _ATEN._unsafe_index.Tensor,
    _ATEN.index_put.default,
    _ATEN.index_put_.default,
    _ATEN._index_put_impl_.default,
}


_READING = {
    *(_ATEN._local_scalar_dense.default, _ATEN.is_nonzero.default, _ATEN.equal.default),
    *(_ATEN.nonzero.default, _ATEN.masked_select.default, _ATEN._unique2.default),
    _ATEN.repeat_interleave.Tensor,
}
_WAITS = []


def _inference_mode(mode=True):
    """`torch.no_grad` in its place, which takes no such tensors."""
    return torch.no_grad() if mode else contextlib.nullcontext()


class FakeGPUTensor(torch.Tensor):
    """A tensor that says it is on a GPU, and holds one of main memory."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
        )

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _computed(func, args, kwargs or {})

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def __repr__(self):
        return f"FakeGPUTensor({self.held!r})"

    def numpy(self):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def tolist(self):
        _wait("tolist")
        return self.held.tolist()

    def data_ptr(self):
        return self.held.data_ptr()

    def untyped_storage(self):
        return self.held.untyped_storage()


def _computed(func, args, kwargs):
    """Compute with what the tensors hold; refuse what CUDA would."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, FakeGPUTensor)]
    here = [t for t in tensors if not isinstance(t, FakeGPUTensor) and t.ndim > 0]
    if there and (func in _READING or _indexes_by_values(func, args)):
        _wait(str(func))
    if func in _CROSSING and _crosses(func, args, kwargs) and not _is_asynchronous(args, kwargs):
        _wait("copy")
    if func in _BY_INDEX and isinstance(args[0], FakeGPUTensor):
        here = []  # CUDA takes an index of the CPU
    if there and here and func not in _CROSSING:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {func} got some on cuda:0 and cpu"
        )
    target = kwargs.get("device")
    stays = bool(there) if target is None else torch.device(target).type == "cuda"
    known = {id(tensor.held): tensor for tensor in there}

    def held(leaf):
        if isinstance(leaf, FakeGPUTensor):
            return leaf.held
        return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

    def wrapped(leaf):
        if not isinstance(leaf, torch.Tensor) or not stays:
            return leaf
        return known[id(leaf)] if id(leaf) in known else FakeGPUTensor(leaf)

    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    result = func(*tree_map(held, args), **tree_map(held, kwargs))
    return args[0] if func is _ATEN.copy_.default else tree_map(wrapped, result)


def _crosses(func, args, kwargs):
    """Whether a copy begins on one device and ends on the other."""
    if func is _ATEN.copy_.default:
        # Not the other way round: torch's engine lays gradients out where the numbers really are.
        return isinstance(args[0], FakeGPUTensor) and not isinstance(args[1], FakeGPUTensor)
    target = kwargs.get("device")
    is_there = isinstance(args[0], FakeGPUTensor)
    return target is not None and is_there != (torch.device(target).type == "cuda")


def _is_asynchronous(args, kwargs):
    return kwargs.get("non_blocking") or (len(args) > 2 and args[2])


def _indexes_by_values(func, args):
    """Whether an index is a mask, whose count is read, or lies on the CPU, whence it is copied."""
    if func not in _BY_INDEX:
        return False
    index = [each for each in args[1] if each is not None]
    return any(each.dtype == torch.bool or not isinstance(each, FakeGPUTensor) for each in index)


def _wait(name):
    """Note what waits for the device, and the line of this project that asks for it."""
    frames = traceback.extract_stack()
    line = next((f for f in reversed(frames) if "/regard/" in f.filename), frames[-3])
    _WAITS.append(f"{name} at {line.filename.rpartition('/regard/')[2]}:{line.lineno}")


class _Operators(TorchDispatchMode):
    _mode_key = torch._C._TorchDispatchModeKey.FAKE  # by which torch does not look for a driver

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _computed(func, args, kwargs or {})


def _mimic_moving(patch, crossed):
    """Have tensors move by where they say they are, which torch's own functions do not ask."""

    def to(tensor, *args, copy=False, non_blocking=False, **named):
        if args and isinstance(args[0], torch.Tensor):
            device, dtype = args[0].device, args[0].dtype
        else:
            device, dtype, asynchronous, _ = torch._C._nn._parse_to(*args, **named)
            non_blocking = non_blocking or asynchronous
        device = tensor.device if device is None else device
        if device.type == tensor.device.type:
            same = dtype in (None, tensor.dtype) and not copy
            return tensor if same else _ATEN._to_copy.default(tensor, dtype=dtype)
        if device.type == "cpu":
            crossed.append(tuple(tensor.shape))
        return _ATEN._to_copy.default(tensor, dtype=dtype, device=device, non_blocking=non_blocking)

    def grouped(lists, *flags):
        groups = own_groups(lists, *flags).items()
        there = isinstance(lists[0][0], FakeGPUTensor)
        return {(DEVICE if there else device, dtype): rest for (device, dtype), rest in groups}

    own_groups = clip_grad._group_tensors_by_device_and_dtype  # which is told of main memory
    patch.setattr(clip_grad, "_group_tensors_by_device_and_dtype", grouped)
    patch.setattr(torch.Tensor, "to", to)
    patch.setattr(torch.Tensor, "cpu", lambda tensor: to(tensor, "cpu"))
    patch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)


def _mimic_driver(patch):
    """Replace torch.cuda's functions; its generator is the CPU's."""
    for name, answer in {
        "device": contextlib.nullcontext,
        "get_rng_state": lambda device: torch.default_generator.get_state(),
        "set_rng_state": lambda state, device: torch.default_generator.set_state(state),
        "manual_seed": torch.default_generator.manual_seed,
        "max_memory_allocated": lambda device: 0,
    }.items():
        patch.setattr(torch.cuda, name, answer)


@contextlib.contextmanager
def waits():
    """Collect what waits for the device within the block, in words."""
    _WAITS.clear()
    found = []
    try:
        yield found
    finally:
        found += _WAITS


@contextlib.contextmanager
def gpu():
    """Have a ``cuda:0`` that computes on the CPU, in torch's own operations.

    Yields:
        The shapes of the tensors that were copied to the CPU, one after the other.
    """
    crossed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "elsewhere", lambda problem, backend: "this GPU has no kernels")
        patch.setattr(hardware, "capability", lambda device: (9, 0))
        patch.setattr(triton, "objection_to_reading", lambda problem: "this GPU has no kernels")
        # A module's parameter is to become the tensor, not to take over what it holds.
        patch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
        _contexts._plain_keys()  # cached, and asked for in inference mode as it is
        patch.setattr(torch, "inference_mode", _inference_mode)
        own, modes = _contexts._len_torch_dispatch_stack, 1  # the mode below hides no numbers
        patch.setattr(_contexts, "_len_torch_dispatch_stack", lambda: own() - modes)
        _mimic_driver(patch)
        _mimic_moving(patch, crossed)
        lifts = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor makes them here, and moves them
        try:
            with _Operators():
                yield crossed
        finally:
            torch._C._set_only_lift_cpu_tensors(lifts)
