"""A model in the page computes what Python's does: probabilities, draws, changed attention."""

import pytest
import torch

import regard
from regard.gpt import GPT, CharTokenizer, GPTConfig, Sampling, generate
from regard.gpt.sampling import probabilities, uniform
from regard.page.file.live import pack_model, tokenizer_file

SEEDED = 7


@pytest.mark.parametrize(
    ("number", "dtype"), [(0.5, "float16"), (2.0**20, "bfloat16"), (1 + 2.0**-20, "float32")]
)
def test_weights_are_packed_in_the_narrowest_type_that_holds_them(number, dtype):
    model = GPT(GPTConfig(layers=1, heads=1, dim=2, context=3, vocab_size=2))
    with torch.no_grad():
        model.wte.weight.fill_(number)
    entries = {one["name"]: one["dtype"] for one in packed(model)[0]["tensors"]}
    assert entries["wte.weight"] == dtype


def packed(model):
    """What the page gets of a model."""
    return pack_model(model, tokenizer_file(CharTokenizer("ab")))


SOFTMAX = {"live/sampling.js": "softmax"}
# The probabilities after each of some prefixes, read at once, or by one token more at a time.
FORWARD = """
const model = await modelOf(given.model, given.numbers);
const logitsAfter = (ids, cache, reading) => finished(model.read(ids, cache, reading));
const atOnce = (changes = []) =>
  given.ends
    .map((end) => logitsAfter(given.ids.slice(0, end), model.cache(end), { changes }))
    .map(softmax);
"""
# More than are read in one call, and fewer; the last one is the whole.
ENDS = [1, 2, 31, 33, 71]

# Every option that a model can have, in few models.
CONFIGS = {
    "GPT-2's": {},
    "later": {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "groups": 2, "bias": False},
    "windows": {"window": 5, "global_every": 2, "layers": 3, "qk_norm": True, "groups": 1},
    "no biases": {
        "bias": False,
        "positions": "rotary",
        "rotary_base": 500.0,
        "norm_eps": 0.1,
        "hidden": 7,
    },
}


def small(**options):
    torch.manual_seed(3)
    shape = {
        "vocab_size": 23,
        "context": 79,
        "layers": 2,
        "heads": 6,
        "dim": 36,
        "initial_std": 0.5,
    }
    model = GPT(GPTConfig(**shape | options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_next_token_probabilities_of_every_option(node, name):
    model = small(**CONFIGS[name])
    ids = torch.randint(23, (LENGTH,), generator=torch.Generator().manual_seed(SEEDED))
    description, numbers = packed(model)
    code = """
    const cache = model.cache(given.ids.length);
    const single = given.ids.map((id) => softmax(logitsAfter([id], cache)));
    return [atOnce(), given.ends.map((end) => single[end - 1])];"""
    data = {"model": description, "numbers": numbers, "ids": ids.tolist(), "ends": ENDS}
    at_once, by_one = (torch.tensor(rows) for rows in node(SOFTMAX, FORWARD + code, data))
    with torch.no_grad():
        expected = model.double()(ids).softmax(-1).float()[[end - 1 for end in ENDS]]
    torch.testing.assert_close(at_once, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(by_one, at_once, rtol=0, atol=1e-6)


LENGTH = 71
PLACES = {"layer": None, "head": None, "queries": None}


def _knock_out(change):
    change.knock_out(queries=slice(11, None), keys=slice(3, 11))
    change.knock_out(layers=1, heads=0, keys=slice(0, 9))


def test_changed_attention_is_that_of_intervene(node):
    model = small(groups=3)
    ids = torch.randint(23, (LENGTH,), generator=torch.Generator().manual_seed(SEEDED))
    cases = [
        (
            [{"kind": "ablate", "layer": 1, "head": 2}],
            lambda change: change.ablate(layers=1, heads=2),
        ),
        (
            [
                {**PLACES, "kind": "knock_out", "queries": [11, LENGTH], "keys": [3, 11]},
                {**PLACES, "kind": "knock_out", "layer": 1, "head": 0, "keys": [0, 9]},
            ],
            _knock_out,
        ),
    ]
    description, numbers = packed(model)
    code = FORWARD + "return given.changes.map(atOnce);"
    data = {
        "model": description,
        "numbers": numbers,
        "ids": ids.tolist(),
        "ends": [LENGTH],
        "changes": [changes for changes, _ in cases],
    }
    # In float32 Python is off by as much as the page: with these weights each by some 5e-6.
    exact = model.double()
    for given, (_, state) in zip(node(SOFTMAX, code, data), cases, strict=True):
        with torch.no_grad(), regard.intervene(exact) as change:
            state(change)
            expected = exact(ids[None])[0, -1].softmax(-1)
        actual = torch.tensor(given[0], dtype=torch.float64)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


SAMPLINGS = [
    {"temperature": 0.8},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 0.9, "top_p": 0.7, "repetition_penalty": 1.7},
    {"temperature": 1.0, "min_p": 0.2, "top_k": 9, "top_p": 0.95},
]


def test_the_same_seed_draws_the_same_tokens(node):
    model = small()
    description, numbers = packed(model)
    prompt, count = [5, 3, 11], 17
    code = """
    const model = await modelOf(given.model, given.numbers);
    const numbers = [0n, 1n, 9223372036854775807n].map((seed) => uniform(seed, 0n, 41n));
    return { numbers, texts: given.samplings.map((sampling) => {
      const [cache, ids] = [model.cache(79), [...given.prompt]];
      for (let step = 0, fresh = ids; step < given.count; step++) {
        const logits = finished(model.read(fresh, cache));
        fresh = [draw(logits, { ...sampling, seed: 12345n }, step, ids)];
        ids.push(...fresh);
      }
      return ids;
    }) };
    """
    data = {
        "model": description,
        "numbers": numbers,
        "prompt": prompt,
        "count": count,
        "samplings": SAMPLINGS,
    }
    answer = node({"live/sampling.js": "draw, uniform"}, code, data)
    assert answer["numbers"] == [uniform(seed, 0, 41) for seed in (0, 1, 2**63 - 1)]
    for ids, options in zip(answer["texts"], SAMPLINGS, strict=True):
        sampling = Sampling(**options, seed=12345)
        assert (
            ids == generate(model, torch.tensor(prompt), tokens=count, sampling=sampling).tolist()
        )


@pytest.mark.parametrize("options", SAMPLINGS[1:])
def test_filtered_probabilities(node, options):
    logits = (
        torch.randn(101, generator=torch.Generator().manual_seed(SEEDED)).mul(3).round()
    )  # ties
    code = "return probabilities(Float32Array.from(given.logits), given.options);"
    given = node(
        {"live/sampling.js": "probabilities"}, code, {"logits": logits.tolist(), "options": options}
    )
    expected = probabilities(logits[None], Sampling(**options))[0]
    torch.testing.assert_close(torch.tensor(given), expected, rtol=0, atol=1e-6)


def test_weights_travel_exactly_in_the_narrowest_precision(node):
    model = small()
    model.wte.weight.data = model.wte.weight.data.half().float()
    model.wte.weight.data[0, :4] = torch.tensor([2.0**-24, -0.0, 65504.0, -(2.0**-15)])
    model.wpe.weight.data = (model.wpe.weight.data.bfloat16() * 2.0**-60).float()
    description, numbers = packed(model)
    dtypes = {tensor["name"]: tensor["dtype"] for tensor in description["tensors"]}
    assert (dtypes["wte.weight"], dtypes["wpe.weight"]) == ("float16", "bfloat16")
    assert dtypes["h.0.attn.c_attn.weight"] == "float32"
    code = """
    const { kernels, weights } = await modelOf(given.model, given.numbers);
    const numbersOf = ({ name, count }) => kernels.floats(weights[name], count).slice();
    return Object.fromEntries(given.model.tensors.map((one) => [one.name, numbersOf(one)]));"""
    weights = node({}, code, {"model": description, "numbers": numbers})
    for name, tensor in model.state_dict().items():
        assert torch.equal(torch.tensor(weights[name]), tensor.flatten())
