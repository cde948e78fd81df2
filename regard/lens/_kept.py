"""What `record` may keep of values: norms behind W_O, parts along directions, values.

Each function here returns one for ``regard.record(model, keep=...)``. W is a head's slice of W_O,
``(Dv, E)``, and v a value with its bias. b_O is left out, and so is what stands between W_O and the
residual stream: a norm, a multiplier, or a gate before W_O.

Axes: B batch, H query heads, G key/value heads, s new keys, E model dimension, Dv head dimension of
value, n directions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard._arguments import tensor_of
from regard._modules import HasModule, module_of
from regard._shapes import Float, Int
from regard.errors import Error, RecordError
from regard.lens._norm import LinearNorm
from regard.lens.circuits import SUPPORTED, matrix_of, output_of, require_plain
from regard.record.sites import ModulePaths

Keep = Callable[[str, Tensor], dict[str, Tensor]]


def values() -> Keep:
    """Keep the values: ``layer.kept["value"]`` of ``(B, G, S, Dv)``.

    Example:
        >>> import regard, torch
        >>> layer = regard.nn.MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record(layer, keep=regard.lens.values()) as recording:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> recording.layers[0].kept["value"].shape
        torch.Size([1, 2, 5, 3])
    """
    return lambda _, value: {"value": value}


def norms(model: nn.Module | HasModule) -> Keep:
    """Keep ‖v W‖ of each key and query head: ``layer.kept["norm"]`` of ``(B, H, S)``.

    ``pattern.weighted(key=layer.kept["norm"])`` is then α·‖v W‖, norm-based attention (Kobayashi et
    al. 2020, arXiv:2004.10102, section 3.1). The norms are those of v Rᵀ, where Wᵀ = Q R is a QR
    decomposition, in float32 or wider; the weights are read at the first call of each layer.

    Args:
        model: a `regard.models.LanguageModel`, whose W_O were found when it was proved; or a module
            with torch's or regard's multi-head attention, regard's GPT, GPT-2, or a Llama-like
            model.

    Raises:
        TypeError: if no W_O is found, or it is no plain matrix of floating point.
        ValueError: for weights that are sharded, or have no values.
        Error: for a language model whose W_O did not stand the test; see its ``checks``.

    In the block, RecordError for a layer without a known W_O.

    Example:
        >>> import regard, torch
        >>> layer = regard.nn.MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record(layer, keep=regard.lens.norms(layer)) as recording:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> norm = recording.layers[0].kept["norm"]
        >>> norm.shape, recording[0].weighted(key=norm)
        (torch.Size([1, 2, 5]), WeightedPattern(1 × 2 × 5 queries × 5 keys, float32, cpu))
    """

    def factor(weight: Float[Tensor, "H Dv E"]) -> Float[Tensor, "H Dv r"]:
        weight = weight.cpu() if weight.device.type == "mps" else weight  # where there is no QR
        return torch.linalg.qr(weight.mT, mode="r").R.mT

    of = HeadMaps(model, factor)
    return lambda path, value: {"norm": of(path, value).norm(dim=-1)}


def directions(
    model: nn.Module | HasModule, tokens: int | Sequence[int] | Int[Tensor, " n"] | Tensor
) -> Keep:
    """Keep ⟨v W, u⟩ of each key and query head: ``layer.kept["direction"]`` of ``(B, H, S, n)``.

    Of a token, u is its row of the unembedding times the gain of the final norm, centred if the
    norm is (LayerNorm). ``pattern.weighted(key=layer.kept["direction"][..., 0])`` is then what each
    key adds to the token's logit, but for the norm's scale, one number a query.

    Args:
        model: as for `norms`; for tokens a `regard.models.LanguageModel` with a next token.
        tokens: ids of tokens; or directions ``(n, E)`` in the residual stream, floating point,
            which are taken as they are.

    Raises:
        TypeError: as for `norms`; for tokens without an unembedding.
        ValueError: for an id that is not in the vocabulary, or directions of another shape.
        Error: as for `norms`.

    Example:
        >>> import regard, torch
        >>> model = regard.models.open(None)
        >>> ids = torch.tensor([[5, 3, 7]])
        >>> with regard.record(model, keep=regard.lens.directions(model, [7, 3])) as recording:
        ...     _ = model.module(ids)
        >>> recording.layers[0].kept["direction"].shape
        torch.Size([1, 5, 3, 2])
    """
    if isinstance(tokens, Tensor) and tokens.is_floating_point():
        along = tokens.detach()
        if along.ndim != 2:
            raise ValueError(f"tokens has shape {tuple(along.shape)}, but directions are (n, E)")
    else:
        along = unembedding_rows(model, tokens)

    def factor(weight: Float[Tensor, "H Dv E"]) -> Float[Tensor, "H Dv n"]:
        if along.shape[1] != weight.shape[2]:
            raise ValueError(
                f"tokens has shape {tuple(along.shape)}, but the residual stream has "
                f"{weight.shape[2]} dimensions: (n, {weight.shape[2]}) is expected"
            )
        return weight @ along.to(weight).mT

    of = HeadMaps(model, factor)
    return lambda path, value: {"direction": of(path, value)}


class HeadMaps:
    """Multiplies the values of each head by a matrix that is made of its slice of W_O.

    Args:
        model: as for `norms`.
        factor: makes the matrices ``(H, Dv, r)`` of a layer's W ``(H, Dv, E)``, once.
    """

    def __init__(self, model: Any, factor: Callable[[Tensor], Tensor]) -> None:
        self._outputs = _outputs(model)
        self._factor = factor
        self._made: dict[str, Tensor] = {}

    def __call__(self, path: str, value: Float[Tensor, "B G s Dv"]) -> Float[Tensor, "B H s r"]:
        if path not in self._outputs:
            raise RecordError(
                f"no W_O is known of {path!r}; leave this layer out by layers=, or open the model "
                "by regard.models.open, which finds it, and give what it returns"
            )
        batch, groups, keys, dim = value.shape
        if path not in self._made:
            weight = matrix_of("W_O", self._outputs[path])  # (H·Dv, E)
            if weight.shape[0] % (groups * dim):
                raise RecordError(
                    f"{path!r} has {groups} heads of {dim} values, which do not fit W_O of shape "
                    f"{tuple(weight.shape)}: its rows must be a multiple of {groups * dim}"
                )
            wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
            self._made[path] = self._factor(wide.unflatten(0, (-1, dim)))
        maps = self._made[path].to(value.device)
        maps = maps.unflatten(0, (groups, -1))  # (G, H/G, Dv, r)
        product = value[:, :, None].to(maps.dtype) @ maps
        return product.reshape(batch, -1, keys, maps.shape[-1])


def _outputs(model: Any) -> dict[str, nn.Module]:
    """Return W_O of each layer, by the path under which `record` names the layer."""
    module = module_of(model)
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module or a regard.models.LanguageModel, but is "
            f"{type(model).__name__}"
        )
    paths, module = ModulePaths(module), require_plain(module)
    if module_of(model) is model:
        every = ((part, output_of(part)) for part in module.modules())
        found = {paths.path(part): output for part, output in every if output is not None}
    else:
        _require_check(model, "attention")
        found = {
            paths.path(module.get_submodule(block.attention)): module.get_submodule(block.output)
            for block in model.places.blocks
            if block.attention is not None and block.output is not None
        }
    if not found:
        raise TypeError(
            f"model is {type(module).__name__}, in which no W_O is known; {SUPPORTED}, torch's "
            "and regard's multi-head attention, and what regard.models.open opens"
        )
    return found


def _require_check(model: Any, name: str) -> None:
    """Refuse a language model in which an equation does not hold."""
    check = next(one for one in model.checks if one.name == name)
    if not check.holds:
        raise Error(f"model is {model.name}, of which this is not proved: {check}")


@torch.no_grad()
def unembedding_rows(model: Any, tokens: Any) -> Float[Tensor, "n E"]:
    """Return the directions of tokens: rows of the unembedding behind the final norm's gain."""
    index = tensor_of([tokens] if isinstance(tokens, int) else tokens)
    if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
        raise TypeError(f"tokens must be ids of tokens, but is {tokens!r}")
    places = getattr(model, "places", None)
    if module_of(model) is model or places is None or places.unembed is None:
        raise TypeError(
            f"tokens: of {type(model).__name__} no unembedding is known; open the model by "
            "regard.models.open, or give directions (n, E) in place of ids"
        )
    _require_check(model, "logits")
    head = model.module.get_submodule(places.unembed)
    weight = matrix_of("unembedding", head)
    rows = weight if isinstance(head, nn.Embedding) else weight.mT  # (V, E)
    wrong = [one for one in index.tolist() if not 0 <= one < len(rows)]
    if wrong:
        raise ValueError(f"tokens: {wrong[0]} is no id of a vocabulary of {len(rows)}")
    along = rows[index.to(rows.device)]
    along = along.to(torch.promote_types(along.dtype, torch.float32))
    if places.norm is None:
        return along
    norm = LinearNorm.of(model.module.get_submodule(places.norm), along.shape[-1])
    return norm.carried_back(along.double().cpu()).to(along)
