"""What reading costs: tokens a second that an engine generates, with and without the plugin.

``VLLM_ENABLE_V1_MULTIPROCESSING=0 python experiments/vllm/throughput.py [ROUNDS [WAYS]]`` serves a
batch again and again, in turn: as if the plugin were not there; attached, and nobody asks; and with
one request of the batch, or all, that ask for readouts of one layer or of all; or in the first of
these ways. Medians of the rounds.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers

import regard_vllm
from vllm import LLM, SamplingParams

BATCH, PROMPT, TOKENS, LAYERS = 8, 128, 32, 4
READ: tuple[Any, ...] = ("received", "topk", "entropy")


def main(rounds: int = 15, count: int = 5) -> None:
    """Measure, and print a line for each way."""
    with tempfile.TemporaryDirectory() as folder:
        engine = start(Path(folder))
    worker = engine.llm_engine.model_executor.driver_worker.worker
    answers = regard_vllm.attach(engine)
    attached = worker.model_runner.execute_model
    ways = {
        "not attached": [None] * BATCH,
        "attached": [None] * BATCH,
        "one asks of a layer": [regard_vllm.ask(READ, layers=[1]), *[None] * (BATCH - 1)],
        "one asks of all layers": [regard_vllm.ask(READ), *[None] * (BATCH - 1)],
        "all ask of all layers": [regard_vllm.ask(READ)] * BATCH,
    }
    seconds: dict[str, list[float]] = {way: [] for way in [*ways][:count]}
    for number in range(rounds + 1):
        for way in seconds if number % 2 else reversed(seconds):
            asks = ways[way]
            if way == "not attached":
                del worker.model_runner.execute_model  # what attach has put before the class's own
            taken = serve(engine, answers, number, asks)
            worker.model_runner.execute_model = attached
            if number:  # the first round warms up
                seconds[way].append(taken)
    plain = statistics.median(seconds["not attached"])
    for way, values in seconds.items():
        median = statistics.median(values)
        spread = f"{min(values):.3f} to {max(values):.3f}"
        speed = BATCH * TOKENS / median
        print(f"{way:24}{median:7.3f} s ({spread}){speed:8.0f} tokens/s{plain / median:7.3f}")


def start(folder: Path) -> LLM:
    """Start an engine on a model of random weights."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return LLM(
        str(folder),
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=256,
        kv_cache_memory_bytes=2**28,
        distributed_executor_backend="uni",
    )


def serve(engine: LLM, answers: regard_vllm.Answers, seed: int, asks: list[Any]) -> float:
    """Generate a batch and take its answers; the seconds that took."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(512, (BATCH, PROMPT), generator=generator).tolist()
    sampling = [
        SamplingParams(
            temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False, extra_args=ask
        )
        for ask in asks
    ]
    before = time.perf_counter()
    outputs = engine.generate([{"prompt_token_ids": own} for own in ids], sampling, use_tqdm=False)
    for output, ask in zip(outputs, asks, strict=True):
        if ask is not None:
            answers.take(output)
    return time.perf_counter() - before


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
