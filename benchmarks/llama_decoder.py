"""Greedy generation by llama.cpp, through its C interface: token ids in, token ids out.

``python -m benchmarks.llama_decoder FILE`` reads some tokens and generates two.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from benchmarks.arguments import take

_PROMPT = 32  # tokens of the trial: other kernels multiply several than one


class LlamaDecoder:
    """A model of a GGUF file, ready for a number of sequences and of threads.

    Args:
        path: the file.
        sequences: B, how many are generated together.
        tokens: of a sequence at most, with its prompt.
        threads: of the prompts and of the steps.
        half_cache: whether keys and values are kept in float16, which is llama.cpp's default.
        repacked: whether llama.cpp may lay weights out anew for its fastest kernels, its default.
    """

    def __init__(
        self,
        path: Path,
        *,
        sequences: int,
        tokens: int,
        threads: int,
        half_cache: bool,
        repacked: bool = True,
    ) -> None:
        import llama_cpp

        self._library: Any = llama_cpp
        _silence()
        llama_cpp.llama_backend_init()
        loading = llama_cpp.llama_model_default_params()
        # Of a mapped file the system may drop pages, which would be read while time is taken.
        loading.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
        loading.use_extra_bufts = repacked
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), loading)
        if self._model is None:
            raise ValueError(f"llama.cpp can't read {path}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = sequences * tokens
        options.n_batch = options.n_ubatch = max(512, sequences * tokens)
        options.n_seq_max = sequences
        options.n_threads = options.n_threads_batch = threads
        cache = llama_cpp.GGML_TYPE_F16 if half_cache else llama_cpp.GGML_TYPE_F32
        options.type_k = options.type_v = cache
        options.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        if self._context is None:
            raise ValueError(f"llama.cpp can't run {path}")
        self._batch = llama_cpp.llama_batch_init(sequences * tokens, 0, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def generate(self, prompts: Tensor, tokens: int) -> Tensor:
        """Append the most likely token, time after time: ``(B, N)`` to ``(B, N + tokens)``."""
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)  # noqa: FBT003 - a C function
        ids = np.concatenate(
            [prompts.numpy(), np.zeros((len(prompts), tokens), dtype=np.int64)], axis=1
        )
        read = 0
        for end in range(prompts.shape[1], ids.shape[1]):
            ids[:, end] = self._next(ids[:, read:end], read)
            read = end
        return torch.from_numpy(ids)

    def logits(self, ids: Tensor) -> Tensor:
        """The logits ``(N, V)`` after each of some tokens ``(N,)``, given one after another."""
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)  # noqa: FBT003 - a C function
        after = []
        for position, token in enumerate(ids.numpy()):
            self._next(np.array([[token]]), position)
            after.append(torch.from_numpy(self._logits(0).copy()))
        return torch.stack(after)

    def _next(self, ids: Any, start: int) -> list[int]:
        """Read tokens ``(B, n)``, which begin at a position; the best token after each row."""
        batch, number = self._batch, 0
        last = []
        for row, tokens in enumerate(ids.tolist()):
            for position, token in enumerate(tokens, start):
                batch.token[number] = token
                batch.pos[number] = position
                batch.n_seq_id[number] = 1
                batch.seq_id[number][0] = row
                batch.logits[number] = position == start + len(tokens) - 1
                number += 1
            last.append(number - 1)
        batch.n_tokens = number
        status = self._library.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        return [int(self._logits(index).argmax()) for index in last]

    def _logits(self, index: int) -> Any:
        """Of a token of the batch, ``(V,)``, where llama.cpp keeps them."""
        first = self._library.llama_get_logits_ith(self._context, index)
        vocabulary = self._library.llama_vocab_n_tokens(
            self._library.llama_model_get_vocab(self._model)
        )
        return np.ctypeslib.as_array(first, shape=(vocabulary,))


@cache
def _silence() -> object:
    """Let llama.cpp print nothing; it calls what is returned."""
    import llama_cpp

    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p())
    return silent


def convert(path: Path, to: Path, kind: str) -> Path:
    """Write a file with its matrices in another format, ``"q8_0"`` or ``"f16"``."""
    import llama_cpp

    _silence()
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = {"q8_0": 7, "f16": 1}[kind]  # LLAMA_FTYPE_MOSTLY_…
    options.allow_requantize = True
    if llama_cpp.llama_model_quantize(str(path).encode(), str(to).encode(), options):
        raise ValueError(f"llama.cpp can't write {path} as {kind}")
    return to


def ends_by_signal(path: Path) -> int:
    """Read and generate tokens in a process of its own; the signal that ended it, or 0.

    Raises:
        RuntimeError: it failed otherwise.
    """
    command = [sys.executable, "-m", "benchmarks.llama_decoder", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode > 0:
        raise RuntimeError(f"llama.cpp can't generate with {path}: {done.stderr}")
    return -done.returncode


def _main(path: Path) -> None:
    prompt = torch.zeros(1, _PROMPT, dtype=torch.int64)
    with LlamaDecoder(path, sequences=1, tokens=_PROMPT + 2, threads=1, half_cache=True) as decoder:
        decoder.generate(prompt, 2)


if __name__ == "__main__":
    about = "Read some tokens with llama.cpp and generate two."
    _main(*take("benchmarks.llama_decoder", about, file=Path))
