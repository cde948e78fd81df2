"""The stages of the reader's file from tokens to a GPT that writes: pages 9a to 9d.

The definitions here have a switch for each mistake. Axes: B batch, T positions, E channels, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.record import RecordError, record
from regard_course._mine_attention import heads_attended
from regard_course._stage import (
    Names,
    Stage,
    StageError,
    parameters_of,
    require_equal,
    require_gradients,
    require_past,
    takes,
)

__all__ = ["STAGES", "gpt_logits"]

_SENTENCE = "But they were all of them deceived."
_GELU = "GELU in its exact form; GPT-2's is the one with approximate='tanh'"


def block_output(
    x: Tensor,
    of: Mapping[str, Tensor],
    heads: int,
    *,
    path: str = "",
    post: bool = False,
    residuals: tuple[bool, bool] = (True, True),
    parallel: bool = False,
    norms: tuple[str, str] = ("ln_1", "ln_2"),
    unnormed: bool = False,
    activation: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """A block by its definition, (B, T, E) to the same.

    Args:
        x: what it reads.
        of: its parameters.
        heads: H.
        path: what their names begin with.
        post: whether norms come behind. From here on all is a mistake.
        residuals: whether x is added to attention's and to the MLP's output.
        parallel: whether the MLP reads x as it came.
        norms: whose numbers the two norms have.
        unnormed: whether attention and MLP read what is not normed.
        activation: of the MLP; None is GPT-2's.
    """
    activation = partial(F.gelu, approximate="tanh") if activation is None else activation

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], of[f"{path}{name}.weight"], of[f"{path}{name}.bias"])

    def attend(x: Tensor) -> Tensor:
        return heads_attended(x, of, heads, path=f"{path}attn.")

    def mlp(x: Tensor) -> Tensor:
        inner = activation(x @ of[f"{path}mlp.c_fc.weight"].mT + of[f"{path}mlp.c_fc.bias"])
        return inner @ of[f"{path}mlp.c_proj.weight"].mT + of[f"{path}mlp.c_proj.bias"]

    if post:
        x = norm(x + attend(x), norms[0])
        return norm(x + mlp(x), norms[1])
    before = x
    attended = attend(x if unnormed else norm(x, norms[0]))
    x = x + attended if residuals[0] else attended
    read = before if parallel else x
    added = mlp(read if unnormed else norm(read, norms[1]))
    return x + added if residuals[1] else added


def gpt_logits(
    ids: Tensor,
    of: Mapping[str, Tensor],
    heads: int,
    layers: Sequence[int],
    *,
    places: Tensor | None = None,
    positions: bool = True,
    normed: bool = True,
    **block: Any,
) -> Tensor:
    """A GPT by its definition, ids (B, T) to logits (B, T, V).

    Args:
        ids: what it reads.
        of: its parameters.
        heads: H.
        layers: which blocks run, in this order.
        places: the positions of the ids; None counts from 0.
        positions: whether rows of wpe are added.
        normed: whether ln_f comes before the logits.
        block: for `block_output`.
    """
    x = of["wte.weight"][ids]
    if positions:
        x = x + of["wpe.weight"][torch.arange(ids.shape[-1]) if places is None else places]
    for layer in layers:
        x = block_output(x, of, heads, path=f"h.{layer}.", **block)
    if normed:
        x = F.layer_norm(x, x.shape[-1:], of["ln_f.weight"], of["ln_f.bias"])
    return x @ of["wte.weight"].mT


def _block_shapes(width: int, path: str = "") -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for norm in ("ln_1", "ln_2"):
        shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
    for name, rows, columns in (
        ("attn.c_attn", 3 * width, width),
        ("attn.c_proj", width, width),
        ("mlp.c_fc", 4 * width, width),
        ("mlp.c_proj", width, 4 * width),
    ):
        shapes |= {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
    return {f"{path}{name}": shape for name, shape in shapes.items()}


def _gpt(names: Names) -> tuple[Any, dict[str, Tensor]]:
    """A GPT of the reader in evaluation mode: V = 11, T = 7, E = 12, H = 3, two blocks."""
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (11, 12), "wpe.weight": (7, 12)}
    shapes |= {"ln_f.weight": (12,), "ln_f.bias": (12,)}
    shapes |= _block_shapes(12, "h.0.") | _block_shapes(12, "h.1.")
    model = names["GPT"](11, 7, 12, 3, 2)
    return model.eval(), parameters_of("GPT(11, 7, 12, 3, 2)", model, shapes)


def _vocabulary(names: Names) -> None:
    vocabulary = names["Vocabulary"](list(_SENTENCE))
    known = sorted(set(_SENTENCE))
    right = [known.index(one) for one in _SENTENCE]
    ids = vocabulary.encode(list(_SENTENCE))
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise StageError(f"encode gives a {type(ids).__name__}, not a list of numbers")
    if ids != right:
        first = list(dict.fromkeys(_SENTENCE))
        why = "ids follow the order of the pieces: sorted(set(pieces))"
        if ids == [first.index(one) for one in _SENTENCE]:
            why = f"ids in the order of first appearance; {why}"
        elif ids == [one + 1 for one in right]:
            why = "ids are counted from 1, not from 0"
        elif len(set(ids)) == len(known):
            why = f"a set has no order, and another one in the next run; {why}"
        raise StageError(f"encode(list('But')) gives {ids[:3]}, not {right[:3]}", why)
    pieces = vocabulary.decode(ids)
    if pieces != list(_SENTENCE):
        raise StageError(f"decode(encode(pieces)) is {pieces!r:.40}, not the pieces")


def _batch(names: Names) -> None:
    ids, starts = torch.arange(100, 140), torch.tensor([3, 11, 0])
    rows = ids[starts[:, None] + torch.arange(5)]
    came = names["batch"](ids, starts, 5)
    if not isinstance(came, tuple | list) or len(came) != 2:
        raise StageError("batch(ids, starts, 5) gives no two tensors", "return inputs, targets")
    require_equal("the inputs of batch(ids, starts, 5)", came[0], rows)
    mistakes = {
        "targets are not shifted: each position would be asked for what it has read": lambda: rows,
        "targets are shifted the wrong way: the token before": lambda: rows - 1,
        "targets are shifted by two": lambda: rows + 2,
    }
    require_equal("the targets of batch(ids, starts, 5)", came[1], rows + 1, mistakes)


def _block(names: Names) -> None:
    torch.manual_seed(9)
    block = names["Block"](12, 3).eval()
    of = parameters_of("Block(12, 3)", block, _block_shapes(12))
    x = torch.randn(2, 5, 12)
    right = partial(block_output, x, of, 3)
    mistakes = {
        "the norms come behind; here they come before attention and MLP": partial(right, post=True),
        "no residual around attention: x + …": partial(right, residuals=(False, True)),
        "no residual around the MLP: x + …": partial(right, residuals=(True, False)),
        "no residuals: x + …": partial(right, residuals=(False, False)),
        "the MLP reads x as it came, without what attention has added": partial(
            right, parallel=True
        ),
        "the norms are left out": partial(right, unnormed=True),
        "ln_1 twice": partial(right, norms=("ln_1", "ln_1")),
        "the norms have changed places": partial(right, norms=("ln_2", "ln_1")),
        _GELU: partial(right, activation=F.gelu),
        "ReLU for GELU": partial(right, activation=F.relu),
        "no activation in the MLP": partial(right, activation=lambda x: x),
    }
    require_equal("Block(12, 3)(x)", block(x), right(), mistakes)
    require_gradients("Block", block, block(x))


def _model(names: Names) -> None:
    torch.manual_seed(9)
    ids = torch.randint(11, (2, 6))
    new = names["GPT"](11, 7, 12, 3, 2).eval()(ids)
    if not isinstance(new, Tensor) or new.shape != (2, 6, 11):
        shape = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
        raise StageError(f"GPT(11, 7, 12, 3, 2)(ids 2 × 6) gives {shape}, not (2, 6, 11)")
    model, of = _gpt(names)
    right = partial(gpt_logits, ids, of, 3, (0, 1))
    mistakes: dict[str, Callable[[], Tensor]] = {
        "positions are not added": partial(right, positions=False),
        "wpe is asked for ids, not for positions": partial(right, places=ids.clamp(max=6)),
        "positions are counted from 1": partial(right, places=torch.arange(1, 7)),
        "ln_f is left out": partial(right, normed=False),
        "probabilities, not logits: softmax comes later": lambda: right().softmax(-1),
        "only the first block runs": partial(gpt_logits, ids, of, 3, (0,)),
        "the last block alone runs": partial(gpt_logits, ids, of, 3, (1,)),
        "blocks run from the last to the first": partial(gpt_logits, ids, of, 3, (1, 0)),
    }
    require_equal("GPT(11, 7, 12, 3, 2)(ids)", model(ids), right(), mistakes)
    earlier = (torch.randint(11, (2, 6)) + ids + 1) % 11

    def logits(rows: Tensor) -> Tensor:
        result: Tensor = model(rows)
        return result

    require_past("GPT", logits, ids, torch.where(earlier == ids, (ids + 1) % 11, earlier))
    require_gradients("GPT", model, model(ids))
    torch.manual_seed(0)
    wide = names["GPT"](29, 7, 48, 3, 1).eval()
    rows = torch.randint(29, (40, 8))
    loss = F.cross_entropy(wide(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).item()
    if loss > log(29) + 0.5:
        raise StageError(
            f"the loss of a new GPT(29, …) is {loss:.1f}, and ln 29 is {log(29):.1f}",
            "the embedding starts too large: nn.init.normal_(self.wte.weight, std=0.1)",
        )


def _train(names: Names) -> None:
    known = sorted(set(_SENTENCE))
    ids = torch.tensor([known.index(one) for one in _SENTENCE])
    rows = ids.unfold(0, 9, 1)  # every chunk, and a token more
    inputs, targets = rows[:, :-1], rows[:, 1:]

    def new() -> Any:
        torch.manual_seed(0)
        return names["GPT"](19, 8, 24, 3, 1)

    # Nothing is learned, so each step has the same gradient.
    gradients = []
    for steps in (1, 2):
        model = new()
        names["train"](model, lambda: (inputs, targets), steps, lr=0.0)
        gradients.append(model.wte.weight.grad)
    one, two = gradients
    if one is not None and two is not None and torch.allclose(two, 2 * one, atol=1e-6):
        raise StageError(
            "after two steps the gradient is twice that of one", "optimizer.zero_grad() is missing"
        )
    model = new()
    before = model.wte.weight.detach().clone()
    losses = names["train"](model, lambda: (inputs, targets), 40, lr=1e-2)
    if torch.equal(before, model.wte.weight.detach()):
        raise StageError("the model is as before", "optimizer.step() or loss.backward() is missing")
    if not isinstance(losses, list) or len(losses) != 40:
        raise StageError("train(model, draw, 40) gives no list of 40 losses", "losses.append(…)")
    if not all(isinstance(loss, float) for loss in losses):
        raise StageError("the losses are tensors, each with its whole graph", "loss.item()")
    with torch.no_grad():
        logits = model.eval()(inputs).flatten(0, 1)
    asked, read = (F.cross_entropy(logits, one.flatten()).item() for one in (targets, inputs))
    if read < asked:
        raise StageError(
            f"the loss of what comes next is {asked:.1f}, of what was read {read:.1f}",
            "it was trained on what it reads, not on the targets",
        )
    if abs(losses[0] - log(19)) > 0.5:
        raise StageError(
            f"the first loss is {losses[0]:.1f}, and ln 19 is {log(19):.1f}",
            "the mean over all positions of the batch: cross_entropy's own mean",
        )
    if asked > 1.5:
        raise StageError(f"after 40 steps the loss is still {asked:.1f}; it was {log(19):.1f}")


def _cache(names: Names) -> None:
    torch.manual_seed(9)
    model, of = _gpt(names)
    ids = torch.randint(11, (2, 6))
    require_equal("GPT without a cache", model(ids), gpt_logits(ids, of, 3, (0, 1)))
    cache: list[Any] = [[] for _ in range(2)]
    with torch.no_grad():
        first, second, last = (model(part, cache) for part in ids.split([3, 2, 1], dim=-1))
    whole = gpt_logits(ids, of, 3, (0, 1))
    require_equal("the first three tokens, with an empty cache", first, whole[:, :3])
    held = [tuple(part.shape[-2] for part in one) for one in cache]
    if not all(len(one) == 2 for one in held):
        raise StageError(
            "after three tokens the cache is empty", "past[:] = key, value changes the list itself"
        )
    if held != [(6, 6)] * 2:
        keys, values = held[0]
        raise StageError(
            f"after six tokens the cache holds {keys} keys and {values} values",
            "the cache forgets keys: append the new ones to those of before, then keep all",
        )
    again = torch.cat([torch.arange(3), torch.arange(2)])
    mistakes = {
        "positions begin at 0 again; they go on after those in the cache": lambda: gpt_logits(
            ids[:, :5], of, 3, (0, 1), places=again
        )[:, 3:],
    }
    try:
        require_equal("tokens 3 and 4, after three in the cache", second, whole[:, 3:5], mistakes)
    except StageError as wrong:
        why = wrong.why or (
            "the last query sits at the last key; is the mask of attend right for S > L?"
        )
        raise StageError(wrong.what, why) from None
    require_equal("token 5, after five in the cache", last, whole[:, 5:])


def _sample(names: Names) -> None:
    sample = names["sample"]
    logits = torch.tensor([0.0, 2.0, 1.0, -1.0])
    many = logits.expand(4000, 4)
    require_equal("sample(logits, temperature=0.0)", sample(many[:3], 0.0), torch.tensor([1, 1, 1]))

    def drawn(temperature: float, top_k: int | None = None) -> Tensor:
        came = sample(many, temperature, top_k)
        if not isinstance(came, Tensor) or came.shape != (4000,):
            shape = tuple(came.shape) if isinstance(came, Tensor) else type(came).__name__
            raise StageError(f"sample(logits 4000 × 4) gives {shape}, not (4000,)", "squeeze(-1)")
        return torch.bincount(came, minlength=4) / 4000

    def is_near(shares: Tensor, logits: Tensor) -> bool:
        return bool((shares - logits.softmax(-1)).abs().max() < 0.04)

    shares = drawn(2.0)
    if not is_near(shares, logits / 2):
        why = ""
        if is_near(shares, logits * 2):
            why = "logits are multiplied by the temperature, not divided"
        elif is_near(shares, logits):
            why = "the temperature is not used; divide before softmax"
        elif shares.max() == 1.0:
            why = "always the likeliest: torch.multinomial draws"
        what = f"at temperature 2 the likeliest is drawn {shares[1]:.2f} of the time"
        raise StageError(f"{what}, not {(logits / 2).softmax(-1)[1]:.2f}", why)
    shares = drawn(1.0, 2)
    if not is_near(shares, torch.tensor([-torch.inf, 2.0, 1.0, -torch.inf])):
        count = int((shares > 0).sum())
        why = "top_k is not used" if is_near(shares, logits) else "the k likeliest stay"
        raise StageError(f"with top_k=2, {count} tokens are drawn", why)


def _generate(names: Names) -> None:
    torch.manual_seed(9)
    model, of = _gpt(names)
    ids = torch.randint(11, (2, 2))
    calls: list[int] = []
    hook = model.register_forward_pre_hook(lambda _, given: calls.append(given[0].shape[-1]))
    came = names["generate"](model, ids, 5, temperature=0.0)
    hook.remove()
    rows = ids
    for _ in range(5):
        guess = gpt_logits(rows, of, 3, (0, 1))[:, -1].argmax(-1, keepdim=True)
        rows = torch.cat([rows, guess], dim=-1)
    require_equal(
        "generate(model, ids, 5, temperature=0.0)",
        came,
        rows,
        {
            "the text that it read is left out": lambda: rows[:, 2:],
            "one token too few": lambda: rows[:, :-1],
        },
    )
    if calls[1:] != [1] * len(calls[1:]):
        raise StageError(
            f"the model reads {calls} tokens, one call after another",
            "with the cache, each call after the first needs the new token alone",
        )


def _is_seen(names: Names) -> bool:
    """Whether a recording sees the model's heads; a wrong model is another stage's matter."""
    if not takes(names.get("GPT"), "V", "T", "E", "H", "layers"):
        return False
    try:
        model = names["GPT"](11, 7, 12, 3, 2).eval()
        with torch.no_grad(), record(model) as recording:
            model(torch.arange(5)[None])
        return len(recording.layers) > 0
    except RecordError:
        return False


def _seen(names: Names) -> None:
    model, _ = _gpt(names)
    with torch.no_grad(), record(model) as recording:
        model(torch.arange(5)[None])
    heads = [layer.pattern.shape for layer in recording.layers]
    expected = "(1, 3, 5, 5) in each of two blocks"
    if [tuple(one) for one in heads] != [(1, 3, 5, 5)] * 2:
        raise StageError(f"regard.record sees {[tuple(one) for one in heads]}, not {expected}")
    upper = torch.ones(5, 5).triu(1).bool()
    if any((layer.pattern.dense()[..., upper] != 0).any() for layer in recording.layers):
        raise StageError("a recorded head sees later tokens")


def _has(name: str, *parameters: str) -> Callable[[Names], bool]:
    return lambda names: takes(names.get(name), *parameters)


def _has_cache(names: Names) -> bool:
    return takes(getattr(names.get("GPT"), "forward", None), "cache")


STAGES = (
    Stage("9a", "Vocabulary(pieces)", _has("Vocabulary"), _vocabulary),
    Stage("9b", "Block(E, H, dropout)", _has("Block"), _block),
    Stage("9b", "GPT(V, T, E, H, layers)", _has("GPT"), _model),
    Stage("9c", "batch(ids, starts, length)", _has("batch"), _batch),
    Stage("9c", "train(model, draw, steps, lr)", _has("train"), _train),
    Stage("9d", "GPT.forward(ids, cache)", _has_cache, _cache),
    Stage("9d", "sample(logits, temperature, top_k)", _has("sample"), _sample),
    Stage("9d", "generate(model, ids, count)", _has("generate"), _generate),
    Stage("9d", "seen by regard.record", _is_seen, _seen),
)
