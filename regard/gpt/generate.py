"""Generation: one token after another, each sampled from the model's distribution.

The prompts are read once, into a KV cache; then a step costs one token.

Axis letters: B batch, N tokens of a prompt, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Literal, Required, SupportsIndex, TypedDict, Unpack, overload

import torch
from torch import Tensor

from regard._arguments import tensor_of
from regard._shapes import Float, Int
from regard._tensors import upload
from regard.gpt.cache import GPTCache
from regard.gpt.config import Sampling
from regard.gpt.engine import Engine
from regard.gpt.ids import check_ids
from regard.gpt.model import GPT
from regard.gpt.sampling import Sampler, require_tokens
from regard.gpt.tokenizer import Detokenizer, Tokenizer
from regard.gpt.unwrap import as_gpt, evaluating

Prompts = Tensor | Sequence[Tensor | Sequence[int]]

Past = Literal["slide", "refuse"]

_MOST_TOKENS = 2**50  # so that the number of bytes fits into an int64
_TOGETHER = 16  # tokens of a text on CUDA that are copied to the CPU at once


class Options(TypedDict, total=False):
    """The options of `stream` that `generate` passes on."""

    tokens: Required[int]
    sampling: Sampling | None
    past: Past


class TextOptions(Options, total=False):
    """The options of `stream_texts` that `stream_text` and `generate_texts` pass on."""

    stop: Sequence[str]


@overload
def generate(model: GPT | Engine, ids: Tensor, **options: Unpack[Options]) -> Tensor: ...
@overload
def generate(
    model: GPT | Engine, ids: Sequence[Tensor | Sequence[int]], **options: Unpack[Options]
) -> list[Tensor]: ...
def generate(
    model: GPT | Engine, ids: Prompts, **options: Unpack[Options]
) -> Tensor | list[Tensor]:
    """Continue one sequence or several.

    Each continuation is the same as without the others, up to the rounding of the logits: shorter
    prompts are padded on the left, and the padding is masked.

    The model sees at most its context, T tokens. With ``past="slide"`` a longer sequence drops the
    oldest quarter, and the rest is read again from position 0, so the model sees at least 3/4 T
    tokens. Of a prompt longer than T it sees the last T.

    Args:
        model: the model, which runs in evaluation mode and is restored to its mode afterwards; or
            an `Engine` of it, which is faster.
        ids: ``(B, N)`` or ``(N,)`` token ids; or a list of sequences of unequal lengths, tensors
            ``(N,)`` or lists of integers. Each holds at least one token.
        tokens: number of tokens to append.
        sampling: how they are sampled; None is `Sampling()`.
        past: beyond the context, ``"slide"`` drops the oldest tokens, ``"refuse"`` raises an error.

    On CUDA tokens are drawn without synchronization. If `ids` are on CUDA so is the result, and a
    token of −1 marks logits that are not finite; on the CPU they raise an error.

    Returns:
        `ids` with `tokens` more at the end, ``(B, N + tokens)`` or ``(N + tokens,)``; for a list,
        the list of such ``(N + tokens,)``.

    Raises:
        ValueError: if `ids` is empty or holds an id outside the vocabulary, `tokens` is out of
            range, `past` is invalid or refuses, or the model's logits are not finite.
        TypeError: if `ids` is not of an integer dtype, or `tokens` not an int.

    >>> from regard.gpt import load
    >>> model, tokenizer = load()
    >>> prompts = [tokenizer.encode(text) for text in ("The", "A cat")]
    >>> greedy = Sampling(temperature=0.0)
    >>> [len(out) for out in generate(model, prompts, tokens=5, sampling=greedy)]
    [6, 7]
    """
    new = list(stream(model, ids, **options))
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
    """Copy drawn tokens to a device; check them if that is the CPU."""
    tokens = tokens.to(device)
    if not tokens.is_cuda:
        require_tokens(tokens)
    return tokens


def stream(
    model: GPT | Engine,
    ids: Prompts,
    *,
    tokens: int,
    sampling: Sampling | None = None,
    past: Past = "slide",
) -> Iterator[Tensor]:
    """Return an iterator over the tokens that `generate` appends, each as soon as it is drawn.

    The arguments and the errors are those of `generate`; errors in the arguments are raised by the
    call, not by the iterator.

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
    model = model if isinstance(model, Engine) else as_gpt(model)
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
    drawn = _draw(model, prompts, tokens, sampling or Sampling())
    single = isinstance(ids, Tensor) and ids.ndim == 1
    return (token[0] for token in drawn) if single else drawn


def stream_text(
    model: GPT | Engine, tokenizer: Tokenizer, prompt: str, **options: Unpack[TextOptions]
) -> Iterator[str]:
    """Continue a prompt; the text comes in pieces, each as soon as its characters are complete.

    Args:
        model: the model, or an `Engine` of it.
        tokenizer: its tokenizer.
        prompt: the text to continue, at least one token of it.
        tokens: maximum number of tokens; the text ends earlier if the model draws the token that
            ends a document.
        sampling: as in `generate`.
        past: as in `generate`.
        stop: strings before which the text ends; of several that end with the same character, the
            longest counts.

    Returns:
        An iterator over the pieces, without the prompt. Bytes of an incomplete
        character at the end are decoded as U+FFFD.

    Raises:
        ValueError: as in `generate`; or if `prompt` or a stop string is empty.

    Example:
        >>> from regard.gpt import Sampling, load, stream_text
        >>> greedy = Sampling(temperature=0.0)
        >>> "".join(stream_text(*load(), "Once upon a", tokens=1, sampling=greedy))
        ' time'
    """
    return (piece for _, piece in stream_texts(model, tokenizer, [prompt], **options))


def stream_texts(
    model: GPT | Engine,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    **options: Unpack[TextOptions],
) -> Iterator[tuple[int, str]]:
    """Continue several prompts in one batch, each as `stream_text` does.

    A model on CUDA is synchronized at every token, since its text is decoded immediately.

    Returns:
        An iterator over pairs: the index of a prompt, and the next piece of its text.

    Raises:
        TypeError: if `prompts` is a str.
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
    model: GPT | Engine,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    at_once: bool,
    tokens: int,
    sampling: Sampling | None = None,
    past: Past = "slide",
    stop: Sequence[str] = (),
) -> Iterator[tuple[int, str]]:
    """Stream texts; with `at_once`, several pieces may come at a time."""
    if isinstance(prompts, str):
        raise TypeError("prompts is a str; expected a list of texts, such as [prompt]")
    if isinstance(stop, str) or not all(stop):
        raise ValueError(f"stop is {stop!r}; expected a list of strings, none of them empty")
    if not all(prompts):
        raise ValueError("prompt is empty; expected some text to continue from")
    ids = [tokenizer.encode(prompt) for prompt in prompts]
    drawn = stream(model, ids, tokens=tokens, sampling=sampling, past=past)
    many = _TOGETHER if at_once and _device(model).type == "cuda" else 1
    return _pieces(drawn, [Detokenizer(tokenizer, stop) for _ in prompts], many)


def generate_texts(
    model: GPT | Engine,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    **options: Unpack[TextOptions],
) -> list[str]:
    """Continue several prompts and return the new texts; arguments as in `stream_text`.

    On CUDA, tokens are copied to the CPU 16 at a time, to synchronize less often; so up to 15 more
    are drawn than the texts need.

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


def _device(model: GPT | Engine) -> torch.device:
    return model.device if isinstance(model, Engine) else as_gpt(model).device


def _prompts(model: GPT | Engine, ids: Prompts) -> list[Tensor]:
    """Return the prompts as tensors on the model's device, checked."""
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


def _check(ids: Tensor, model: GPT | Engine) -> None:
    """Check ids on the CPU; ids on CUDA are checked by the device."""
    if not ids.is_cuda:
        check_ids(ids, model.config)


def _draw(
    model: GPT | Engine, prompts: list[Tensor], tokens: int, sampling: Sampling
) -> Iterator[Tensor]:
    if not prompts or tokens == 0:
        return
    sequences = IncrementalDecoder(model, prompts, tokens)
    sampler = Sampler(sampling, prompts, model.config.vocab_size, prompts[0].device)
    for _ in range(tokens):
        token = sampler.draw(sequences.next_logits())  # (B,)
        sequences.append(token)
        yield token


class IncrementalDecoder:
    """A batch of sequences, left-padded so that their ends are aligned.

    The model reads the prompts once, then one token per step. When a sequence is longer than the
    context, its oldest quarter is dropped and the rest read again from position 0. So a step costs
    one token, and every T/4 steps 3T/4 tokens are read again.

    Args:
        model: the model, or an `Engine` of it.
        prompts: ``(N,)`` ids each, at least one, on the model's device.
        tokens: number of tokens that will be appended.
    """

    def __init__(
        self,
        model: GPT | Engine,
        prompts: Sequence[Int[Tensor, "N"]],
        tokens: int,
    ) -> None:
        self._model = model
        longest = max(len(prompt) for prompt in prompts)
        self._end = longest
        self._ids = prompts[0].new_zeros(len(prompts), longest + tokens)
        for row, prompt in zip(self._ids, prompts, strict=True):
            row[longest - len(prompt) : longest] = prompt
        context = model.config.context
        self._starts = [longest - min(len(prompt), context) for prompt in prompts]
        """Index in `_ids` of the first token that the model reads, for each sequence."""
        self._cache: GPTCache | None = None

    def next_logits(self) -> Float[Tensor, "B V"]:
        """Read the new tokens, and return the logits of the next ones."""
        with self._evaluating(), torch.inference_mode():
            if self._cache is None or self._drop_oldest():
                return self._read_again()
            return self._model.next_logits(self._ids[:, self._end - 1 : self._end], self._cache)

    def append(self, token: Int[Tensor, "B"]) -> None:
        """Append a token to each sequence; if none was drawn, the model reads token 0."""
        self._ids[:, self._end] = token.clamp(min=0) if token.is_cuda else token
        self._end += 1

    def _drop_oldest(self) -> bool:
        """Drop the oldest quarter of sequences longer than the context; True if there were any."""
        context = self._model.config.context
        if self._end - min(self._starts) <= context:
            return False
        self._starts = [
            start + max(1, context // 4) if self._end - start > context else start
            for start in self._starts
        ]
        return True

    def _read_again(self) -> Tensor:
        first = min(self._starts)
        padding = None
        if max(self._starts) > first:
            padding = torch.tensor([s - first for s in self._starts], device="cpu")
            padding = upload(padding, self._ids.device)
        if self._cache is None:
            room = min(self._ids.shape[1] - first, self._model.config.context)
            self._cache = GPTCache(self._model.config, capacity=room, padding=padding)
        else:
            self._cache.reset(padding=padding)
        return self._model.next_logits(self._ids[:, first : self._end], self._cache)

    def _evaluating(self) -> AbstractContextManager[None]:
        return nullcontext() if isinstance(self._model, Engine) else evaluating(self._model)


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
