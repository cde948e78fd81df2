"""Requests that vLLM serves, beside the same models in transformers with eager attention."""

import pytest
import torch
from transformers import AutoModelForCausalLM

import regard
import regard_vllm
from vllm import SamplingParams

READ = ["received", "entropy", "topk", "spans", "recording"]
SPANS = [0, 0, 1, 1, 1, -1, 2]
GENERATED = 11


def prompts(*lengths):
    generator = torch.Generator().manual_seed(7)
    ids = [torch.randint(2, 96, (length,), generator=generator).tolist() for length in lengths]
    return [{"prompt_token_ids": own} for own in ids]


def sampling(extra_args=None, **options):
    return SamplingParams(
        temperature=0, max_tokens=GENERATED, ignore_eos=True, extra_args=extra_args, **options
    )


def eager_weights(folder, output, dtype):
    """The weights of all rows that were computed, (layers, H, T, T), in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=dtype)
    ids = [*output.prompt_token_ids, *output.outputs[0].token_ids][:-1]
    with torch.no_grad():
        layers = model.eval()(torch.tensor([ids]), output_attentions=True).attentions
    return torch.cat(layers).double()


def require_close(answer, weights, tolerance):
    read = {name: answer.readings[name].values[:, 0].double() for name in answer.readings}
    close = {"rtol": 0, "atol": tolerance}
    torch.testing.assert_close(read["entropy"], torch.special.entr(weights).sum(-1), **close)
    torch.testing.assert_close(read["received"], weights.sum(-2), **close)
    torch.testing.assert_close(read["top_weights"], weights.topk(3).values, **close)
    labels = torch.tensor(SPANS)
    spans = [weights[..., : len(SPANS)][..., labels == n].sum(-1) for n in range(3)]
    torch.testing.assert_close(read["spans"], torch.stack(spans, -1), **close)


# In float32 the two libraries' sums are of another order, layer after layer; bfloat16 rounds each
# number of a layer to 8 bits, and its weights of 100 tokens are added up in ``received``.
@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance", "options"),
    [
        ("llama", "float32", 1e-4, {"max_num_batched_tokens": 64}),
        ("llama", "bfloat16", 0.6, {"max_num_batched_tokens": 64}),
        ("gpt2", "float32", 1e-4, {"distributed_executor_backend": "uni"}),
        ("mistral", "float32", 1e-4, {"max_num_batched_tokens": 64, "block_size": 32}),
    ],
)
def test_readouts_are_those_of_transformers(
    model, start, tmp_path, kind, dtype, tolerance, options
):
    folder = model(kind)
    engine = start(
        folder,
        dtype=dtype,
        additional_config={"regard": {"recordings": str(tmp_path)}},
        **options,
    )
    answers = regard_vllm.attach(engine)
    asked = sampling(regard_vllm.ask(READ, k=3, spans=SPANS))
    outputs = engine.generate(prompts(101, 37, 67), [asked, sampling(), asked], use_tqdm=False)
    for output in (outputs[0], outputs[2]):
        answer = answers.take(output)
        length = len(output.prompt_token_ids) + GENERATED - 1
        assert answer.rows == range(length)
        require_close(answer, eager_weights(folder, output, getattr(torch, dtype)), tolerance)
        recording = regard.load(answer.recording)
        assert recording.tokens[0][:2] == tuple(f"w{i}" for i in output.prompt_token_ids[:2])
        # of the very numbers in the cache: sums of chunks are rounded once more
        again = recording.read(
            regard.readouts.Entropy(), regard.readouts.Received(), regard.readouts.TopK(3)
        )
        for name in again:
            torch.testing.assert_close(
                answer.readings[name].values, again[name].values, rtol=1e-6, atol=1e-6
            )
    with pytest.raises(regard_vllm.AnswerError, match="asked for nothing"):
        answers.take(outputs[1])


def test_the_prefix_cache_preemption_choices_and_errors(model, start):
    folder = model("llama")
    engine = start(
        folder,
        dtype="float32",
        block_size=32,
        num_gpu_blocks_override=9,
        distributed_executor_backend="uni",
    )
    answers = regard_vllm.attach(engine)
    ask = regard_vllm.ask(["entropy", "received", "topk", "spans"], k=3, spans=SPANS)
    one = prompts(101)

    # A cached prefix: its rows are not computed, and the answer says so.
    (first,) = engine.generate(one, sampling(ask), use_tqdm=False)
    whole = answers.take(first)
    (second,) = engine.generate(one, sampling(ask), use_tqdm=False)
    part = answers.take(second)
    assert (whole.rows, part.rows) == (range(111), range(96, 111))
    entropy = whole.readings["entropy"].values[..., 96:]
    torch.testing.assert_close(part.readings["entropy"].values, entropy, rtol=0, atol=1e-4)
    (third,) = engine.generate(one, sampling(ask, skip_reading_prefix_cache=True), use_tqdm=False)
    assert answers.take(third).rows == range(111)

    # Nine blocks of 32 do not hold three such requests: one is interrupted, and computed again.
    new = sampling(ask, skip_reading_prefix_cache=True)
    outputs = engine.generate(prompts(90, 91, 93), new, use_tqdm=False)
    for output in outputs:
        answer = answers.take(output)
        require_close(answer, eager_weights(folder, output, torch.float32), 1e-4)

    # Several choices, and a request that can't be read.
    two = SamplingParams(n=2, seed=3, max_tokens=5, ignore_eos=True, extra_args=ask)
    outputs = engine.generate(
        prompts(23, 29), [two, sampling({"regard_read": ["typo"]})], use_tqdm=False
    )
    for choice in range(2):
        assert answers.take(outputs[0], choice).rows.stop == 27
    assert len(outputs[1].outputs[0].token_ids) == GENERATED
    with pytest.raises(regard_vllm.AnswerError, match="read must name some of"):
        answers.take(outputs[1])


def test_a_compiled_model_is_read(model, start):
    folder = model("llama")
    engine = start(folder, dtype="float32", enforce_eager=False, distributed_executor_backend="uni")
    answers = regard_vllm.attach(engine)
    ask = regard_vllm.ask(["entropy", "received", "topk", "spans"], k=3, spans=SPANS)
    (output,) = engine.generate(prompts(53), sampling(ask), use_tqdm=False)
    require_close(answers.take(output), eager_weights(folder, output, torch.float32), 1e-4)


def test_an_engine_that_cannot_be_read_is_refused_by_name(model, start):
    engine = start(
        model("llama"),
        dtype="bfloat16",
        kv_cache_dtype="fp8",
        distributed_executor_backend="uni",
    )
    answers = regard_vllm.attach(engine)
    (output,) = engine.generate(prompts(13), sampling(regard_vllm.ask(["entropy"])), use_tqdm=False)
    with pytest.raises(regard_vllm.AnswerError, match="kv_cache_dtype='auto'"):
        answers.take(output)
