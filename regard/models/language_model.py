"""A language model: the module, its tokenizer, and what was found and proved of its places.

Axes: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from regard._arguments import Indices
from regard._shapes import Float, Int
from regard.errors import Error
from regard.gpt import GPT, Engine, Sampling, stream
from regard.gpt.int8 import to_int8
from regard.gpt.model_files import to_huge_pages
from regard.gpt.sampling import Sampler
from regard.gpt.tokenizer import Tokenizer
from regard.gpt.utf8 import normalized
from regard.intercept import Call, last_logits, observe_calls, takes_logits_to_keep
from regard.lens import token_offsets
from regard.models.memory import free_memory
from regard.models.own_gpt import own_gpt
from regard.models.places import Places, find_places, run_once, text_config
from regard.models.proof import Check, prove
from regard.models.text import PretrainedTokenizer, Prompt, prompt_of
from regard.record import Layer, RecordError, read_layers, record
from regard.record.sites import choose_kind, kinds_of

__all__ = ["LanguageModel", "TextRun"]

T = TypeVar("T")

_PART = 0.25  # of the free memory, which a recording may take
_TAIL = 8  # tokens of a prompt that drawn ones are decoded behind
_PROBE = 7  # tokens that the places are found on


@dataclass(frozen=True, kw_only=True, eq=False)
class TextRun:
    """What a run over one text leaves behind.

    Args:
        layers: the layers of self-attention.
        values: their values ``(G, T, Dv)``; None for a layer whose are not known.
        logits: after one token; None for an encoder.
    """

    layers: tuple[Layer, ...]
    values: tuple[Float[Tensor, "G T Dv"] | None, ...]
    logits: Float[Tensor, " V"] | None

    def values_of(self, layer: int) -> tuple[Float[Tensor, "T Dv"], ...] | None:
        """Return the values of each head of a layer; the heads of a group share theirs."""
        own, heads = self.values[layer], self.layers[layer].heads
        return None if own is None else tuple(own[h * len(own) // len(heads)] for h in heads)


class LanguageModel:
    """A model that reads text: of `regard.gpt`, or of transformers, a causal one or an encoder.

    `regard.record`, `regard.intervene` and `regard.lens.effects` take it in place of a module.

    Args:
        module: the model, in evaluation mode.
        tokenizer: its tokenizer: of `regard.gpt`, or a fast one of transformers.
        name: what it is called.
        places: paths of modules, by the names of the fields of `Places`, in place of those that are
            found.

    Attributes:
        places: where its parts meet; see `regard.models.places`.
        checks: whether its equations hold; see `regard.models.proof`.

    Example:
        >>> import regard
        >>> model = regard.models.open(None)
        >>> model.name, model.predicts, [check.holds for check in model.checks]
        ('the model that comes with regard', True, [True, True, True])
    """

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Any,
        *,
        name: str,
        places: Mapping[str, str | None] | None = None,
    ) -> None:
        self.module = module
        self.tokenizer: Tokenizer | PretrainedTokenizer = (
            tokenizer if hasattr(tokenizer, "tokens") else PretrainedTokenizer(tokenizer, name)
        )
        self.name = name
        own: dict[str, str] = {}
        if isinstance(module, GPT):
            # Where the output is the embedding, transposed, it is no module of its own.
            own = {"embed": "wte", "unembed": "wte" if module.lm_head is None else "lm_head"}
        self._stated: dict[str, str | None] = {**own, **(places or {})}
        # Asked here, since a block that observes or changes the model installs hooks.
        self._takes_positions = takes_logits_to_keep(module)
        self._proved: tuple[Places, tuple[Check, ...]] | None = None
        unknown = set(self._stated) - {"embed", "norm", "unembed"}
        if unknown:
            raise ValueError(
                f"places has {min(unknown)!r}; the places that can be stated are embed, norm and "
                "unembed, each as the path of a module"
            )

    def __repr__(self) -> str:
        return f"LanguageModel({self.name!r}, {type(self.module).__name__})"

    @property
    def places(self) -> Places:
        """Where its parts meet, found at the first request."""
        return self._prove()[0]

    @property
    def checks(self) -> tuple[Check, ...]:
        """Whether its equations hold, checked at the first request."""
        return self._prove()[1]

    def _prove(self) -> tuple[Places, tuple[Check, ...]]:
        if self._proved is None:
            ids = torch.arange(_PROBE, device=self.device) * 31 % self.vocab_size
            run = run_once(self.module, self._inputs(ids[None]))
            places = find_places(self.module, run, self._stated)
            self._proved = places, prove(self.module, run, places)
        return self._proved

    @property
    def remarks(self) -> tuple[str, ...]:
        """What has to be said of it: blocks without weights, and equations that do not hold."""
        blocks = self.places.blocks
        attending = sum(block.attention is not None for block in blocks)
        hybrid = (
            f"{attending} of its {len(blocks)} blocks have weights; the others mix tokens otherwise"
        )
        said = [hybrid] if attending < len(blocks) else []
        expected = [one for one in self.checks if self.predicts or one.name != "logits"]
        return (*said, *(str(check) for check in expected if not check.holds))

    @property
    def is_own(self) -> bool:
        """Whether regard trained it: a `GPT` with a tokenizer of regard."""
        return isinstance(self.module, GPT) and not isinstance(self.tokenizer, PretrainedTokenizer)

    @property
    def predicts(self) -> bool:
        """Whether it has a next token; an encoder has none."""
        return isinstance(self.module, GPT) or _has_head(self.module)

    @property
    def device(self) -> torch.device:
        """The device of its input."""
        return next(self.module.parameters()).device

    @property
    def context(self) -> int | None:
        """Its context length in tokens; None if unknown."""
        if isinstance(self.module, GPT):
            return self.module.config.context
        config = text_config(self.module)
        longest: int | None = getattr(config, "max_position_embeddings", None)
        return longest

    @property
    def vocab_size(self) -> int:
        """V."""
        if isinstance(self.module, GPT):
            return self.module.config.vocab_size
        size: int = text_config(self.module).vocab_size
        return size

    @property
    def has_read(self) -> str | None:
        """What it was trained on, in a line; None if that is not known here."""
        return self.module.has_read if isinstance(self.module, GPT) else None

    @property
    def is_chat(self) -> bool:
        """Whether it has a template for conversations."""
        return isinstance(self.tokenizer, PretrainedTokenizer) and self.tokenizer.is_chat

    @property
    def ends(self) -> frozenset[int]:
        """The tokens at which an answer ends."""
        config = getattr(self.module, "generation_config", None)
        stated = getattr(config, "eos_token_id", None)
        known = stated if isinstance(stated, list) else [stated]
        return frozenset(one for one in (*known, self.tokenizer.end) if one is not None)

    def read(
        self, text: str, *, chat: bool = False, system: str | None = None, special: bool = True
    ) -> Prompt:
        """Return what the model reads of a text.

        Args:
            text: the text; for `chat` a message to the model.
            chat: whether the model's own template surrounds it.
            system: with `chat`, what the system says.
            special: whether the tokens that its tokenizer adds to every text, such as one for its
                beginning, are added.

        Raises:
            ValueError: if the model has no template, `system` comes without `chat`, or the text
                holds a character without a token.

        Example:
            >>> import regard
            >>> regard.models.open(None).read("The cat").ids
            (268, 985)
        """
        if chat and not self.is_chat:
            raise ValueError(f"chat is True, but {self.name} has no chat template; leave it out")
        if system is not None and not chat:
            raise ValueError("system goes with chat=True: only a chat template has a place for it")
        if isinstance(self.tokenizer, PretrainedTokenizer):
            return prompt_of(self.tokenizer, text, chat=chat, system=system, special=special)
        text = normalized(text)
        ids = self.tokenizer.encode(text)
        offsets = token_offsets(self.tokenizer.tokens(ids)) if ids else []
        return Prompt(text=text, ids=tuple(ids), offsets=tuple(offsets), added=(False,) * len(ids))

    def token(self, text: str) -> int:
        """Return the id of a token by its text.

        Raises:
            ValueError: if the text is not exactly one token.
        """
        ids = self.tokenizer.encode(text)
        if len(ids) != 1:
            pieces = ", ".join(map(repr, self.tokenizer.tokens(ids))) or "none"
            raise ValueError(
                f"{text!r} must be one token, but is {len(ids)}: {pieces}; a word after a space "
                "begins with that space, such as ' on'"
            )
        return ids[0]

    def __call__(self, text: str | Int[Tensor, " T"]) -> Float[Tensor, "T V"]:
        """Return the logits after each token of a text, or of its ids.

        Raises:
            TypeError: for an encoder, which has no next token.
        """
        if isinstance(text, str):
            return self._logits(torch.tensor(self.read(text).ids, device=self.device))
        return self._logits(text.to(self.device))

    def record(
        self, ids: Int[Tensor, " T"], position: int = -1, *, layers: Indices | None = None
    ) -> TextRun:
        """Run over a text, and keep its attention and the logits after one token.

        Args:
            ids: the text.
            position: the token whose logits are computed, of a model that has a next token.
            layers: indices of the layers to keep; None is all.

        Raises:
            RecordError: for attention that cannot be recorded, and for a text whose queries, keys
                and values would take more than a quarter of the free memory; `read_layers` keeps
                none.
        """
        objection = None if layers is not None else self.objection(len(ids))
        if objection is not None:
            raise RecordError(
                f"{objection}: give a shorter text, or read its layers while the model runs, by "
                "read_layers"
            )
        values: dict[str, Tensor] = {}

        def keep(call: Call) -> None:
            latest = recording.layers[-1:]  # the call's, unless its layer is not kept
            if latest and call.value is not None and call.modules:
                name = latest[0].name
                if self.module.get_submodule(name) is call.modules[-1]:
                    values[name] = call.value[0] if call.value.ndim == 4 else call.value

        with torch.no_grad(), record(self.module, layers=layers) as recording, observe_calls(keep):
            logits = self._run(ids, position)
        kept = recording.of_kind().layers
        found = [values.get(layer.name) for layer in kept]  # each (G, T, Dv)
        return TextRun(layers=kept, values=tuple(found), logits=logits)

    def read_layers(
        self, ids: Int[Tensor, " T"], read: Callable[[Layer], T], position: int = -1
    ) -> tuple[tuple[tuple[Layer, T], ...], Float[Tensor, " V"] | None]:
        """Run over a text of any length, and read each layer as it runs; no queries are kept.

        Args:
            ids: the text.
            read: takes a layer of self-attention, whose pattern is there until it returns.
            position: as for `record`.

        Returns:
            Each layer with what was read of it, and the logits, as those of a `TextRun`.

        Raises:
            RecordError: for attention that cannot be recorded.

        Example:
            >>> import regard, torch
            >>> model = regard.models.open(None)
            >>> ids = torch.tensor(model.read("The cat sat").ids)
            >>> results, logits = model.read_layers(ids, lambda layer: layer.pattern[..., -1, :])
            >>> len(results), logits.shape
            (4, torch.Size([3072]))
        """
        with torch.no_grad(), read_layers(self.module, read) as results:
            logits = self._run(ids, position)
        kind = choose_kind(None, kinds_of(layer.kind for layer, _ in results))
        return tuple(pair for pair in results if pair[0].kind == kind), logits

    def objection(self, tokens: int) -> str | None:
        """Say why a text of so many tokens is not recorded, in a clause; None if it fits.

        It fits if its queries, keys and values take at most a quarter of the free memory.
        """
        config, free = text_config(self.module), free_memory()
        heads = getattr(config, "num_attention_heads", None) or getattr(config, "heads", None)
        width = getattr(config, "hidden_size", None) or getattr(config, "dim", None)
        layers = getattr(config, "num_hidden_layers", None) or getattr(config, "layers", None)
        if free is None or not heads or not width or not layers or self.device.type != "cpu":
            return None
        # At most: heads may share keys and values.
        each = 3 * layers * max(width, heads * (getattr(config, "head_dim", None) or 0)) * 4
        if tokens * each <= free * _PART:
            return None
        return (
            f"the queries, keys and values of these {tokens:,} tokens would take up to "
            f"{tokens * each / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        )

    def as_gpt(self, *, weights: Literal["int8"] | None = None) -> LanguageModel:
        """Return this model as a `GPT` of regard, which generates by an `Engine`.

        Args:
            weights: ``"int8"`` rounds its matrices to int8, with a scale a row.

        Raises:
            Error: if the model is not of Llama's shape; the message says what it has that a `GPT`
                lacks. Also for a model in half precision, and to round one whose matrices are in
                blocks.

        Example:
            >>> import regard
            >>> regard.models.open().as_gpt(weights="int8").module.has_int8_weights
            True
        """
        gpt = own_gpt(self)
        if weights == "int8" and gpt.weights == "blocks":
            raise Error(f'{self.name} has weights in blocks: open it with weights="int8"')
        if weights == "int8":
            gpt = deepcopy(gpt) if gpt is self.module else gpt
            to_int8(gpt)
        if gpt.weights is not None and gpt is not self.module:
            to_huge_pages(gpt)
        return LanguageModel(gpt, self.tokenizer, name=self.name)

    def _run(self, ids: Int[Tensor, " T"], position: int) -> Float[Tensor, " V"] | None:
        """Run over a text; return the logits after one token, None for an encoder."""
        if self.predicts:
            return self.logits_at(ids, [position])[0]
        self.module(**self._inputs(ids[None]))
        return None

    def logits_at(self, ids: Int[Tensor, " T"], positions: Sequence[int]) -> Float[Tensor, "R V"]:
        """Return the logits after some tokens, computing no others where that is possible.

        Raises:
            TypeError: for an encoder, which has no next token.
        """
        rows = [range(len(ids))[position] for position in positions]
        if not self._takes_positions:
            return self._logits(ids)[rows]
        kept = torch.tensor(rows, device=ids.device)
        return self._logits(ids, logits_to_keep=kept)[-len(rows) :]

    def _logits(self, ids: Int[Tensor, " T"], **options: Any) -> Tensor:
        if not self.predicts:
            raise TypeError(f"{self.name} is an encoder, which has no next token")
        if isinstance(self.module, GPT):
            own: Tensor = self.module(ids, **options)
            return own
        output: Tensor = self.module(**self._inputs(ids[None]), **options).logits[0]
        return output

    def _inputs(self, ids: Int[Tensor, "B T"]) -> dict[str, Any]:
        if isinstance(self.module, GPT):
            return {"ids": ids}
        return {"input_ids": ids} | ({"use_cache": False} if self.predicts else {})

    def stream(
        self, ids: Sequence[int], *, tokens: int, sampling: Sampling | None = None
    ) -> Iterator[int]:
        """Return an iterator over the tokens that the model draws, one after another.

        A `GPT` goes on beyond its context, without its oldest tokens; another model ends there, and
        at a token that ends its answer.

        Args:
            ids: what it reads, at least one token.
            tokens: the largest number to draw.
            sampling: how they are drawn; None is `Sampling()`.

        Raises:
            ValueError: for invalid ids or numbers, or logits that are not finite.
            TypeError: for an encoder.
        """
        if not self.predicts:
            raise TypeError(f"{self.name} is an encoder, which has no next token to draw")
        if isinstance(self.module, GPT):
            prompt = torch.tensor(ids, device="cpu")
            drawn = stream(self._generator(self.module), prompt, tokens=tokens, sampling=sampling)
            return map(int, drawn)
        return self._draw(list(ids), tokens, sampling or Sampling())

    def stream_text(
        self,
        ids: Sequence[int],
        *,
        tokens: int,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
    ) -> Iterator[str]:
        """Return an iterator over the text that the model draws, piece by piece.

        Args:
            ids: what it reads, as for `stream`.
            tokens: the largest number to draw.
            sampling: how they are drawn; None is `Sampling()`.
            stop: strings; the text ends before the first one that is complete.

        Raises:
            ValueError, TypeError: as for `stream`.
        """
        return self._pieces(
            list(ids[-_TAIL:]), self.stream(ids, tokens=tokens, sampling=sampling), stop
        )

    def _pieces(
        self, before: list[int], drawn: Iterator[int], stop: Sequence[str]
    ) -> Iterator[str]:
        # Decoded behind tokens of the prompt, since a decoder strips the space that begins a text.
        start, shown, text = len(self.tokenizer.decode(before)), 0, ""
        for token in drawn:
            if token in self.ends:
                break
            before.append(token)
            text = self.tokenizer.decode(before)[start:]
            ends = [place for end in stop if (place := text.find(end)) >= 0]
            if ends:
                text = text[: min(ends)]
                break
            # The rest may be an incomplete character, or begin a string to stop at.
            whole = len(text.rstrip("\ufffd"))
            whole -= max(
                (n for end in stop for n in range(len(end)) if text[:whole].endswith(end[:n])),
                default=0,
            )
            if whole > shown:
                yield text[shown:whole]
                shown = whole
        if text[shown:]:
            yield text[shown:]

    def _generator(self, module: GPT) -> Engine | GPT:
        try:
            return Engine(module)
        except ValueError:  # an objection, such as the hooks of a run in another thread
            return module

    def _draw(self, ids: list[int], tokens: int, sampling: Sampling) -> Iterator[int]:
        prompt = torch.tensor(ids, device="cpu")
        sampler = Sampler(sampling, [prompt], self.vocab_size, self.device)
        past: Any = None
        longest = self.context
        for _ in range(tokens):
            if longest is not None and len(ids) >= longest:
                return
            new = ids if past is None else ids[-1:]
            with torch.no_grad():
                output = self.module(
                    input_ids=torch.tensor([new], device=self.device),
                    past_key_values=past,
                    use_cache=True,
                    **(last_logits(1) if self._takes_positions else {}),
                )
            past = getattr(output, "past_key_values", None)  # some hybrids have another cache
            token = int(sampler.draw(output.logits[:, -1].float()))
            ids.append(token)
            yield token
            if token in self.ends:
                return


def _has_head(module: nn.Module) -> bool:
    try:
        return getattr(module, "get_output_embeddings")() is not None  # noqa: B009 - not of every module
    except (AttributeError, NotImplementedError):
        return False
