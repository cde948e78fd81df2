"""Generation: one token after another, each drawn from what the model gives the next.

The prompts are read once, into a cache of keys and values; then a step costs one token.

Axis letters: B batch, N tokens of a prompt, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, Required, SupportsIndex, TypedDict, Unpack, overload

import torch
from torch import Tensor

from regard._arguments import tensor_of
from regard._tensors import upload
from regard.gpt._detokenizer import Detokenizer
from regard.gpt._incremental import IncrementalDecoder
from regard.gpt.ids import check_ids
from regard.gpt.model import GPT
from regard.gpt.sampling import Sampler, Sampling, require_tokens
from regard.gpt.tokenizer import Tokenizer
from regard.gpt.unwrap import as_gpt

Prompts = Tensor | Sequence[Tensor | Sequence[int]]

Past = Literal["slide", "refuse"]

_MOST_TOKENS = 2**50  # whose number of bytes is one that torch holds
_TOGETHER = 16  # tokens of a text on CUDA that are read at once


class Options(TypedDict, total=False):
    """The options of `stream` that `generate` passes on."""

    tokens: Required[int]
    sampling: Sampling | None
    past: Past


class TextOptions(Options, total=False):
    """The options of `stream_texts` that `stream_text` and `generate_texts` pass on."""

    stop: Sequence[str]


@overload
def generate(model: GPT, ids: Tensor, **options: Unpack[Options]) -> Tensor: ...
@overload
def generate(
    model: GPT, ids: Sequence[Tensor | Sequence[int]], **options: Unpack[Options]
) -> list[Tensor]: ...
def generate(model: GPT, ids: Prompts, **options: Unpack[Options]) -> Tensor | list[Tensor]:
    """Continue one sequence or several.

    Each comes out as if it were alone, to the rounding of the logits: shorter prompts are padded on
    the left, and the padding is hidden.

    Past the context: the model sees at most its context, T tokens. With ``past="slide"`` a sequence
    that has more drops its oldest quarter, and the rest is read again from position 0; so the model
    sees 3/4 T tokens or more. Of a prompt longer than T it sees the last T.

    Args:
        model: the model; it runs in evaluation mode, without dropout, and is left as it was.
        ids: ``(B, N)`` or ``(N,)`` token ids; or a list of sequences of unequal lengths, tensors
            ``(N,)`` or lists of integers. Each holds at least one token.
        tokens: how many to append.
        sampling: how they are sampled; None is `Sampling()`.
        past: past the context, whether to drop the oldest tokens or to raise.

    On CUDA nothing is read while tokens are drawn. Those that are copied to the CPU are checked;
    where `ids` lie on CUDA the result does too, and a token of −1 says that logits were not finite.

    Returns:
        `ids` with `tokens` more at the end, ``(B, N + tokens)`` or ``(N + tokens,)``; for a list,
        the list of such ``(N + tokens,)``.

    Raises:
        ValueError: `ids` is empty or holds an id outside the vocabulary, `tokens` is out of range,
            `past` is neither or refuses, or the model's logits are not finite.
        TypeError: `ids` is not of an integer dtype, or `tokens` not an int.

    >>> from regard.gpt import load
    >>> model, tokenizer = load()
    >>> prompts = [tokenizer.encode(text) for text in ("The", "A cat")]
    >>> greedy = Sampling(temperature=0.0)
    >>> [len(out) for out in generate(model, prompts, tokens=5, sampling=greedy)]
    [6, 7]
    """
    new = list(_start(model, ids, model_is_fixed=True, **options))
    if isinstance(ids, Tensor):
        if new:
            added = _read(torch.stack(new, dim=-1), ids.device)  # (B, tokens)
        else:  # no tokens, or no sequences
            added = ids.new_zeros(*ids.shape[:-1], options["tokens"])
        return torch.cat([ids, added.to(ids.dtype)], dim=-1)
    prompts = [tensor_of(prompt) for prompt in ids]
    if not new:
        return [prompt.clone() for prompt in prompts]
    columns = torch.stack(new, dim=-1)  # (B, tokens)
    if not any(prompt.is_cuda for prompt in prompts):
        columns = _read(columns, torch.device("cpu"))  # all at once
    pairs = zip(prompts, columns, strict=True)
    return [torch.cat([prompt, added.to(prompt)]) for prompt, added in pairs]


def _read(tokens: Tensor, device: torch.device) -> Tensor:
    """Copy drawn tokens to a device; those that reach the CPU are known, and so are checked."""
    tokens = tokens.to(device)
    if not tokens.is_cuda:
        require_tokens(tokens)
    return tokens


def stream(
    model: GPT,
    ids: Prompts,
    *,
    tokens: int,
    sampling: Sampling | None = None,
    past: Past = "slide",
) -> Iterator[Tensor]:
    """The tokens that `generate` appends, each as soon as it is drawn.

    The arguments and the errors are those of `generate`; what is wrong with the arguments is raised
    at the call.

    Returns:
        An iterator over `tokens` tensors of shape ``(B,)``, or ``()`` for `ids` of shape ``(N,)``.

    Example:
        >>> import torch
        >>> from regard.gpt import Sampling, load, stream
        >>> model, tokenizer = load()
        >>> ids, greedy = torch.tensor(tokenizer.encode("Once upon a")), Sampling(temperature=0.0)
        >>> drawn = stream(model, ids, tokens=1, sampling=greedy)
        >>> [tokenizer.decode([int(token)]) for token in drawn]
        [' time']
    """
    return _start(model, ids, tokens=tokens, sampling=sampling, past=past, model_is_fixed=False)


def _start(
    model: GPT,
    ids: Prompts,
    *,
    tokens: int,
    sampling: Sampling | None = None,
    past: Past = "slide",
    model_is_fixed: bool,
) -> Iterator[Tensor]:
    """What `stream` returns; the decoder has to know whether the model is fixed."""
    model = as_gpt(model)
    prompts = _prompts(model, ids)
    if not isinstance(tokens, SupportsIndex):
        raise TypeError(f"tokens is a {type(tokens).__name__}; expected an int")
    if not 0 <= tokens <= _MOST_TOKENS:
        raise ValueError(f"tokens is {tokens}; expected 0 to {_MOST_TOKENS}")
    if past not in {"slide", "refuse"}:
        raise ValueError(f"past is {past!r}; expected slide or refuse")
    longest, context = max(map(len, prompts), default=0), model.config.context
    if past == "refuse" and longest + tokens > context:
        raise ValueError(
            f"the prompt has {longest} tokens and tokens={tokens} more do not fit into "
            f"the model's context of {context}; choose tokens={max(0, context - longest)} or "
            'fewer, or drop the oldest with past="slide"'
        )
    drawn = _draw(model, prompts, tokens, sampling or Sampling(), model_is_fixed=model_is_fixed)
    single = isinstance(ids, Tensor) and ids.ndim == 1
    return (token[0] for token in drawn) if single else drawn


def stream_text(
    model: GPT, tokenizer: Tokenizer, prompt: str, **options: Unpack[TextOptions]
) -> Iterator[str]:
    """The text that follows a prompt, in pieces, each as soon as its characters are complete.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        prompt: the text to continue, at least one token of it.
        tokens: how many tokens to draw at most; the text ends before, where the model draws the
            token that ends a document.
        sampling: as in `generate`.
        past: as in `generate`.
        stop: as soon as one of these strings is complete, the text ends before it; of several that
            end with the same character, before the longest.

    Returns:
        An iterator over the pieces, without the prompt. Bytes of an incomplete
        character at the end read as U+FFFD.

    Raises:
        ValueError: as in `generate`; or `prompt` or a stop string is empty.

    Example:
        >>> from regard.gpt import Sampling, load, stream_text
        >>> greedy = Sampling(temperature=0.0)
        >>> "".join(stream_text(*load(), "Once upon a", tokens=1, sampling=greedy))
        ' time'
    """
    return (piece for _, piece in stream_texts(model, tokenizer, [prompt], **options))


def stream_texts(
    model: GPT, tokenizer: Tokenizer, prompts: Sequence[str], **options: Unpack[TextOptions]
) -> Iterator[tuple[int, str]]:
    """The texts that follow several prompts, generated together, as `stream_text` does for one.

    A model on CUDA is waited for at every token, whose text is wanted at once.

    Returns:
        An iterator over pairs: the index of a prompt, and the next piece of its text.

    Raises:
        TypeError: `prompts` is a str.
        ValueError: as in `stream_text`.

    Example:
        >>> from regard.gpt import Sampling, load, stream_texts
        >>> greedy = Sampling(temperature=0.0)
        >>> pieces = stream_texts(*load(), ["Once upon a", "The"], tokens=1, sampling=greedy)
        >>> sorted({number for number, _ in pieces})
        [0, 1]
    """
    return _stream_texts(model, tokenizer, prompts, at_once=False, **options)


def _stream_texts(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    at_once: bool,
    tokens: int,
    sampling: Sampling | None = None,
    past: Past = "slide",
    stop: Sequence[str] = (),
) -> Iterator[tuple[int, str]]:
    """Stream texts; where they are read at once, a caller's code runs at the end alone."""
    if isinstance(prompts, str):
        raise TypeError("prompts is a str; expected a list of texts, such as [prompt]")
    if isinstance(stop, str) or not all(stop):
        raise ValueError(f"stop is {stop!r}; expected a list of strings, none of them empty")
    if not all(prompts):
        raise ValueError("prompt is empty; expected some text to continue from")
    ids = [tokenizer.encode(prompt) for prompt in prompts]
    drawn = _start(model, ids, tokens=tokens, sampling=sampling, past=past, model_is_fixed=at_once)
    many = _TOGETHER if at_once and as_gpt(model).device.type == "cuda" else 1
    return _pieces(drawn, [Detokenizer(tokenizer, stop) for _ in prompts], many)


def generate_texts(
    model: GPT, tokenizer: Tokenizer, prompts: Sequence[str], **options: Unpack[TextOptions]
) -> list[str]:
    """The texts that follow several prompts, without the prompts; arguments as in `stream_text`.

    On CUDA, 16 tokens are drawn before they are read, so that most wait for nothing: up to 15 more
    than the texts need.

    >>> from regard.gpt import load
    >>> greedy = Sampling(temperature=0.0)
    >>> texts = generate_texts(*load(), ["The cat", "A"], tokens=9, sampling=greedy, stop=["."])
    >>> len(texts)
    2
    """
    texts = [""] * len(prompts)
    for row, piece in _stream_texts(model, tokenizer, prompts, at_once=True, **options):
        texts[row] += piece
    return texts


def _prompts(model: GPT, ids: Prompts) -> list[Tensor]:
    """The prompts as tensors on the model's device, checked."""
    device = model.device
    if isinstance(ids, Tensor):
        if ids.ndim not in {1, 2} or ids.shape[-1] == 0:
            raise ValueError(
                f"ids has shape {tuple(ids.shape)}; expected (B, N) or (N,), at least one token to "
                "continue from"
            )
        _check(ids, model)
        return list(upload(ids, device).reshape(-1, ids.shape[-1]))
    prompts = [tensor_of(row) for row in ids]
    for row, prompt in enumerate(prompts):
        if prompt.ndim != 1 or len(prompt) == 0:
            raise ValueError(
                f"sequence {row} of ids has shape {tuple(prompt.shape)}; expected (N,), at least "
                "one token to continue from"
            )
        _check(prompt, model)
    return [upload(prompt, device) for prompt in prompts]


def _check(ids: Tensor, model: GPT) -> None:
    """Check ids on the CPU; those on CUDA the model leaves to the device."""
    if not ids.is_cuda:
        check_ids(ids, model.config)


def _draw(
    model: GPT, prompts: list[Tensor], tokens: int, sampling: Sampling, *, model_is_fixed: bool
) -> Iterator[Tensor]:
    if not prompts or tokens == 0:
        return
    sequences = IncrementalDecoder(model, prompts, tokens, model_is_fixed=model_is_fixed)
    sampler = Sampler(sampling, prompts, model.config.vocab_size, prompts[0].device)
    for _ in range(tokens):
        token = sampler.draw(sequences.next_logits())  # (B,)
        sequences.append(token)
        yield token


def _pieces(
    drawn: Iterator[Tensor], texts: list[Detokenizer], many: int
) -> Iterator[tuple[int, str]]:
    while some := list(islice(drawn, many)):
        for tokens in _read(torch.stack(some), torch.device("cpu")).tolist():
            for row, (text, token) in enumerate(zip(texts, tokens, strict=True)):
                piece = text.add(token)
                if piece:
                    yield row, piece
            if all(text.stopped for text in texts):
                return
    for row, text in enumerate(texts):
        piece = text.end()
        if piece:
            yield row, piece
