"""Effects of models whose modules hand on more than they return are those of whole runs.

Given ids or a mapping, `effects` skips what comes before a change; given a function, it never does.
"""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from record.models.classes import randomize
from torch import nn

import regard
from regard.gpt import GPT, GPTConfig
from regard.intercept import observe_calls

HEADS, SIZE, VOCAB, LENGTH, LAYERS = 2, 7, 31, 11, 5
WIDTH = HEADS * SIZE
TARGET = regard.lens.Logit(5)
GLOBALS = {"scale": 1.0}


@pytest.fixture(autouse=True)
def seeded_and_without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture
def ids():
    return torch.randint(VOCAB, (LENGTH,))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(context.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A block that returns its sum with the attention, and so hands on nothing else."""

    def __init__(self):
        super().__init__()
        self.attn = Attention()

    def forward(self, x, beside):
        return x + self.attn(x)


class Model(nn.Module):
    """Blocks one after the other, beside which there is an object that all of them get."""

    block = Block
    beside = list

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(self.block() for _ in range(LAYERS))
        self.unembedding = nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids):
        x, beside = self.embedding(input_ids), self.beside()
        for block in self.blocks:
            x = block(x, beside)
        return self.unembedding(x)


class OutputsInAList(Model):
    class block(Block):
        def forward(self, x, beside):
            y = self.attn(sum(beside, x))
            beside.append(y)
            return y


class ArgumentsInAList(Model):
    class block(Block):
        def forward(self, x, beside):
            beside.append(x)
            return self.attn(sum(beside))


class NumbersInAList(Model):
    class block(Block):
        def forward(self, x, beside):
            beside.append(float(x.std()))
            return x + sum(beside) * self.attn(x)


class SharedKeys(Model):
    beside = dict

    class block(Block):
        def forward(self, x, beside):
            y = self.attn(x + beside.get("first", 0))
            beside.setdefault("first", y * 2)
            return x + y


class LengthOfACache(Model):
    class block(Block):
        def forward(self, x, beside):
            y, longest = self.attn(x), beside[-1].shape[1] if beside else 0
            beside.append(y[:, : 1 + longest])
            return x + longest * y


class WrittenArgument(Model):
    class block(Block):
        def forward(self, x, beside):
            y = self.attn(x)
            x.mul_(1.5)
            return y

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = x + block(x, None)
        return self.unembedding(x)


class WrittenResult(Model):
    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for block in self.blocks:
            y = block(x, None)
            y += x
            y *= 0.5
            x = y
        return self.unembedding(x)


class WrittenMemory(Model):
    class block(Block):
        def forward(self, x, beside):
            beside.memory += self.attn(x)
            return x + beside.memory

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        beside = SimpleNamespace(memory=torch.zeros_like(x))
        for block in self.blocks:
            x = block(x, beside)
        return self.unembedding(x)


class Attribute(Model):
    class block(Block):
        def forward(self, x, beside):
            self.latest.number = float(x[..., 0].mean()) + self.latest.number
            return x + self.latest.number * self.attn(x)

    def forward(self, input_ids):
        latest = SimpleNamespace(number=0.0)
        for block in self.blocks:
            block.latest = latest
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x, None)
        return self.unembedding(x)


class Global(Model):
    class block(Block):
        def forward(self, x, beside):
            GLOBALS["scale"] *= float(x[..., 1].std()) + 0.5
            return x + GLOBALS["scale"] * self.attn(x)

    def forward(self, input_ids):
        GLOBALS["scale"] = 1.0
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x, None)
        GLOBALS["scale"] = 1.0  # as it was before
        return self.unembedding(x)


def with_a_closure():
    counts = {"calls": 0}

    class Counting(Block):
        def forward(self, x, beside):
            counts["calls"] += 1
            return x + counts["calls"] * self.attn(x)

    class Closure(Model):
        block = Counting

        def forward(self, input_ids):
            counts["calls"] = 0
            x = self.embedding(input_ids)
            for block in self.blocks:
                x = block(x, None)
            return self.unembedding(x)

    return Closure()


class Drawn(Model):
    class block(Block):
        def forward(self, x, beside):
            return x + self.attn(F.dropout(x, 0.3))

    def forward(self, input_ids):
        torch.manual_seed(1)  # so that each run draws the same
        x = self.embedding(input_ids[:, :])
        for block in self.blocks:
            x = block(x[:, :, :], None)
        return self.unembedding(x)


MODELS = (
    *(OutputsInAList, ArgumentsInAList, NumbersInAList, SharedKeys, LengthOfACache),
    *(WrittenArgument, WrittenResult, WrittenMemory, Attribute, Global, with_a_closure),
)


def assert_same(model, inputs, target, **options):
    """Compare what is given as a mapping with the same as a function."""
    given = regard.lens.effects(model, inputs, target, **options)
    expected = regard.lens.effects(model, lambda model: model(**inputs), target, **options)
    assert expected.values.abs().max() > 1e-4
    torch.testing.assert_close(given.values, expected.values, atol=2e-5, rtol=1e-4)
    assert given.unchanged == pytest.approx(expected.unchanged, rel=1e-6, abs=1e-6)
    return given


@pytest.mark.parametrize(
    ("make", "batch_size"),
    [
        *((make, None) for make in MODELS),
        *((make, 1) for make in (SharedKeys, WrittenMemory)),
        *(
            pytest.param(make, 1, marks=pytest.mark.thorough)
            for make in MODELS
            if make not in {SharedKeys, WrittenMemory}
        ),
    ],
)
def test_models(make, batch_size, ids):
    model = randomize(make()).eval()
    for block in model.blocks:  # small steps, so that numbers stay where rounding is small
        block.attn.out.weight.data.mul_(0.3)
    if make is Global or make is with_a_closure or batch_size == 1:
        model(ids[None])  # what it writes to has been written to before
    if make in {NumbersInAList, Attribute, Global}:
        batch_size = 1  # they mix the entries of a batch
    inputs = {"input_ids": ids[None]}
    assert_same(model, inputs, TARGET, layers=slice(1, None), batch_size=batch_size)
    keys = {"over": [(0, 2), (3, 6), (1, 9)], "layers": [3, 4]}
    assert_same(model, inputs, TARGET, batch_size=batch_size, **keys)


def test_what_a_run_draws_comes_in_its_order(ids):
    assert_same(randomize(Drawn()), {"input_ids": ids[None]}, TARGET, batch_size=1)


def test_hooks_see_what_they_would(ids):
    model, seen = randomize(Model()).eval(), []

    def keep(module, args, output):
        seen.append(output)

    for block in model.blocks:
        block.attn.qkv.register_forward_hook(keep)

    def target(output):
        first = seen[-LAYERS]  # of this run
        return output[:, -1, 0] + first[:, -1, 0] * output[:, -1, 1]

    assert_same(model, {"input_ids": ids[None]}, target)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_writing_is_seen_in_every_mode(mode, ids):
    model = randomize(WrittenMemory()).eval()
    with mode():
        assert_same(model, {"input_ids": ids[None]}, TARGET)


def calls_of(model, run, **options):
    """How many attention calls the effects of all heads take."""
    calls = []
    with observe_calls(calls.append):
        regard.lens.effects(model, run, TARGET, **options)
    return len(calls)


def test_what_comes_before_a_change_is_skipped_where_modules_hand_on_outputs_alone(ids):
    """But in the first run; and runs of all other layers show that nothing else is used."""
    config = GPTConfig(vocab_size=VOCAB, context=17, layers=LAYERS, heads=3, dim=24)
    unchanged, shown = LAYERS, LAYERS - 1
    for model, inputs, heads in (
        (GPT(config).eval(), ids, 3),
        (randomize(Model()).eval(), {"input_ids": ids[None]}, 2),
    ):
        first, rest = LAYERS, LAYERS - (heads == 2)  # all but the first two are one batch
        assert calls_of(model, inputs) == unchanged + first + shown + rest
        each = heads * LAYERS * (LAYERS + 1) // 2
        assert calls_of(model, inputs, batch_size=1) == unchanged + shown + each


def test_a_block_runs_on_the_copies_that_differ_before_its_end(ids):
    model, sizes = randomize(Model()).eval(), []
    with observe_calls(lambda call: sizes.append(len(call.query))):
        regard.lens.effects(model, {"input_ids": ids[None]}, TARGET)
    changed = [HEADS * layer for layer in range(1, LAYERS)]  # those of the first layer came before
    assert sizes[1 - LAYERS :] == changed


class Remembered(Model):
    """Blocks that get tensors with an entry per copy in an object, where nobody looks for them."""

    class block(Block):
        def forward(self, x, beside):
            return x + beside.first * self.attn(x)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        beside = SimpleNamespace(first=x[:, :1].clone())
        for block in self.blocks:
            x = block(x, beside)
        return self.unembedding(x)


def test_a_block_that_cannot_run_on_a_part_of_the_batch_runs_on_all_of_it(ids):
    assert_same(randomize(Remembered()).eval(), {"input_ids": ids[None]}, TARGET)


class Unlisted(Model):
    """Blocks that are attributes, of which nobody can tell that they are blocks."""

    def __init__(self):
        super().__init__()
        blocks = self.blocks
        del self.blocks
        for number, block in enumerate(blocks):
            setattr(self, f"block_{number}", block)

    @property
    def blocks(self):
        return [getattr(self, f"block_{number}") for number in range(LAYERS)]


def test_a_model_without_a_list_of_blocks_runs_whole(ids):
    model = randomize(Unlisted()).eval()
    assert calls_of(model, {"input_ids": ids[None]}) == LAYERS + LAYERS


class Context:
    """What no look at a model's attributes shows."""

    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 1.0


CONTEXT = Context()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = regard.nn.MultiHeadAttention(24, 3, mask=regard.causal())

    def forward(self, x):
        x = x + self.attention(x) * CONTEXT.scale
        CONTEXT.scale = float(x[:1].abs().mean())
        return x


class Handing(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 24)
        self.blocks = nn.Sequential(*(Scaled() for _ in range(LAYERS)))
        self.output = nn.Linear(24, VOCAB)

    def forward(self, input_ids):
        CONTEXT.scale = 1.0
        return self.output(self.blocks(self.embedding(input_ids)))


def test_what_is_handed_on_out_of_sight_is_found_by_a_run(ids):
    model = randomize(Handing()).eval()
    values = regard.lens.effects(model, ids, TARGET, batch_size=1).values
    expected = regard.lens.effects(model, lambda model: model(ids[None]), TARGET).values
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-6)
