"""Bring tensors to one layout, (batch, heads, ...), and to one device.

On CUDA nothing is read back unless the caller asks for it, since that waits for all queued work:
checks run on the device, and uploads from the CPU are asynchronous.

Axes: B batch, H query heads, L queries, S keys; b and h are B or 1, H or 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard._arguments import overrides_torch_function
from regard._contexts import is_concrete
from regard._shapes import Bool, Shaped


def flat(leading: tuple[int, ...]) -> tuple[int, int]:
    """Flatten leading dimensions to two sizes: batch and heads."""
    return math.prod(leading[:-1]), leading[-1] if leading else 1


def align(
    tensor: Shaped[Tensor, "*t n"], leading: tuple[int, ...], name: str
) -> Shaped[Tensor, "b h n"]:
    """Align a per-sequence tensor with leading dimensions from the left; flatten them to two."""
    own = tuple(tensor.shape[:-1])
    fits = len(own) <= len(leading) and all(
        have in (1, want) for have, want in zip(own, leading, strict=False)
    )
    if not fits:
        raise ValueError(
            f"{name} has leading dimensions {own}, which do not line up from the left with the "
            f"query's {leading}"
        )
    tensor = tensor.reshape(*own, *(1,) * (len(leading) - len(own)), tensor.shape[-1])
    if tensor.ndim <= 3:
        return tensor.reshape(*(1,) * (3 - tensor.ndim), *tensor.shape)
    return tensor.expand(*leading[:-1], -1, -1).flatten(0, -3)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape to which shapes broadcast.

    torch's own function of this name imports sympy when it is first called, for half a second.

    Raises:
        ValueError: if they do not broadcast.

    >>> broadcast_shapes((7, 1, 5), (3, 1), ())
    (7, 3, 5)
    """
    result: list[int] = []  # from the last dimension to the first
    for shape in shapes:
        for place, size in enumerate(reversed(shape)):
            if place == len(result):
                result.append(size)
            elif result[place] == 1:
                result[place] = size
            elif size not in (1, result[place]):
                raise ValueError(f"{', '.join(str(tuple(s)) for s in shapes)} do not broadcast")
    return tuple(reversed(result))


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Return whether a tensor of a shape can be expanded to the target."""
    try:
        return broadcast_shapes(shape, target) == tuple(target)
    except ValueError:
        return False


def matrix(
    tensor: Tensor | None,
    name: str,
    leading: tuple[int, ...],
    queries: int,
    keys: int,
    device: torch.device,
) -> Tensor | None:
    """Reshape a matrix that broadcasts to ``(*leading, L, S)`` to four axes ``(b, h, l, s)``."""
    if tensor is None:
        return None
    full = (*leading, queries, keys)
    if not broadcasts_to(tensor.shape, full):
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, which does not broadcast to {full}"
        )
    tensor = upload(tensor, device)
    if len(leading) > 2 and tensor.ndim > 3:  # several batch dimensions become one
        return tensor.expand(*leading, *tensor.shape[-2:]).flatten(0, -4)
    return tensor.reshape(*(1,) * (4 - tensor.ndim), *tensor.shape)


def per_key(
    numbers: Tensor,
    name: str,
    leading: tuple[int, ...],
    heads: tuple[int, int],
    keys: int,
    device: torch.device,
) -> Shaped[Tensor, "b h S"]:
    """Reshape one entry per key, which broadcasts to ``(*leading, S)``, to (b, h, S).

    Args:
        numbers: the entries.
        name: what they are called in errors.
        leading: the pattern's leading dimensions.
        heads: what they are flattened to: batch entries and heads, or with selected heads a batch
            entry for each.
        keys: number of keys.
        device: where the pattern is.
    """
    if not numbers.ndim or numbers.shape[-1] != keys or numbers.ndim > len(leading) + 1:
        raise ValueError(
            f"{name} has shape {tuple(numbers.shape)}, but holds one entry for each of {keys} "
            f"keys: {(*leading, keys)}, or less in front"
        )
    rows = matrix(numbers[..., None, :], name, leading, 1, keys, device)
    assert rows is not None, "there are numbers"
    rows = rows[..., 0, :]
    if rows.shape[:2] != (1, 1) and heads != flat(leading):
        rows = rows.expand(*flat(leading), -1).reshape(*heads, -1)
    return rows


def four_axes(tensor: Tensor, leading: tuple[int, ...]) -> Tensor:
    """Reshape a tensor to (B, heads, positions, dim); batch dimensions of size 1 are expanded."""
    if tensor.ndim == 4 and tensor.shape[0] == leading[0]:
        return tensor
    heads = tensor.shape[-3:-2]
    tensor = tensor.expand(*leading[:-1], *heads, *tensor.shape[-2:])
    batch = flat(leading)[0]
    return tensor.reshape(batch, heads[0] if heads else 1, *tensor.shape[-2:])


def per_head(numbers: Tensor | None, name: str, leading: tuple[int, ...]) -> Tensor | None:
    """Reshape per-head numbers, which broadcast to the leading dimensions, to (b, h)."""
    if numbers is None:
        return None
    if not broadcasts_to(numbers.shape, leading):
        raise ValueError(
            f"{name} holds one number a head: its shape {tuple(numbers.shape)} must broadcast to "
            f"the query's leading dimensions {leading}"
        )
    if len(leading) > 2 and numbers.ndim > 1:
        return numbers.expand(*leading[:-1], -1).flatten(0, -2)
    return numbers.reshape(*(1,) * (2 - numbers.ndim), *numbers.shape)


def padded_size(size: int) -> int:
    """Round a size up to a multiple of 16, which is 64 bytes of float32.

    The rounding of matrix products depends on the alignment of rows in memory. With rows of whole
    cache lines, a sequence is rounded more nearly alike alone and in a batch.
    """
    return -(-size // 16) * 16


def pad_last(tensor: Shaped[Tensor, "*b n d"], width: int) -> Shaped[Tensor, "*b n w"]:
    """Pad the last axis with zeros, which do not change a dot product."""
    return tensor if tensor.shape[-1] == width else pad(tensor, (0, width - tensor.shape[-1]))


def cut_last(tensor: Shaped[Tensor, "*b w"], width: int) -> Shaped[Tensor, "*b n"]:
    """Truncate the last axis, for example to undo `pad_last`."""
    return tensor if tensor.shape[-1] == width else tensor.narrow(-1, 0, width)


def is_nvidia(device: torch.device) -> bool:
    """Return True for a CUDA device; ROCm devices have the same type, but run other kernels."""
    return device.type == "cuda" and torch.version.hip is None


def upload(tensor: Shaped[Tensor, "..."], device: torch.device) -> Shaped[Tensor, "..."]:
    """Copy a tensor to a device; from the CPU to a GPU asynchronously, through pinned memory."""
    stays = device.type != "cuda" or tensor.is_cuda
    if stays or tensor.requires_grad or not is_concrete(tensor):  # pinning detaches
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def require(condition: Bool[Tensor, ""], message: str) -> None:
    """Assert a condition, asynchronously on CUDA.

    A failed assertion on CUDA prints the message to stderr and makes the context unusable, as an
    index out of range does in torch's lookups.

    Raises:
        ValueError: if it does not hold, on any other device.
    """
    if condition.is_cuda:
        torch._assert_async(condition, message)  # noqa: SLF001 - torch has no public name
    elif not bool(condition):
        raise ValueError(message)


class Mover:
    """Moves tensors to a device and caches the copies, since layers share masks and biases.

    Args:
        device: the target device.
    """

    def __init__(self, device: str | torch.device) -> None:
        self._device = device
        self._moved: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        """Move a tensor; one that is already on the device is returned as it is."""
        place = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
        if place not in self._moved:
            # The reference to the tensor keeps its address from being reused.
            self._moved[place] = tensor, tensor.to(self._device)
        return self._moved[place][1]


def matmul_alone(
    kind: type,
    function: Any,
    types: Iterable[type],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    cure: str,
) -> Any:
    """Implement ``__torch_function__`` of a lazy matrix: matmul is computed, the rest refused.

    Args:
        kind: the class of the lazy matrix, which implements ``@`` from either side.
        function: the argument of ``__torch_function__``.
        types: likewise.
        args: likewise.
        kwargs: likewise.
        cure: end of the error, which says how to make a tensor of the matrix.

    Raises:
        TypeError: for any other function, unless another type may handle it.
    """
    if function in (torch.Tensor.__matmul__, torch.Tensor.matmul, torch.matmul):
        left, right = _operands(*args, **kwargs or {})
        return left @ right if isinstance(left, kind) else right.__rmatmul__(left)
    # torch's Python functions also list plain tensors among the types; those handle nothing.
    if any(not issubclass(other, kind) and overrides_torch_function(other) for other in types):
        return NotImplemented
    name = torch.overrides.resolve_name(function) or function.__name__
    own = next(own for own in types if issubclass(own, kind))
    raise TypeError(f"{name} takes tensors, but a {own.__name__} is not stored as one; {cure}")


def _operands(input: Any, other: Any, *, out: Any = None) -> tuple[Any, Any]:  # noqa: A002 - torch's
    if out is not None:
        raise TypeError(
            f"out must be None where a factor is not stored as a tensor, but is "
            f"{type(out).__name__}; take the product that matmul returns"
        )
    return input, other


def version(tensor: torch.Tensor) -> int:
    """Return the tensor's version counter; inference tensors have none and give 0."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - its only name
