"""Blocks of tasks that share a thread: each holds for its own task, and for those started in it."""

import asyncio
import contextvars
import threading

import pytest
import torch
from record.models.classes import CASES
from support.interception import Stack, check_nothing_left_behind, encoder
from support.loop import run_in_loop
from torch import nn
from torch.utils.checkpoint import checkpoint

import regard
from regard.record import RecordError, read_while_running

X = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def nothing_left_behind():
    yield
    check_nothing_left_behind()


async def turn():
    """Let every other task go on."""
    for _ in range(3):
        await asyncio.sleep(0)


def together(*coroutines):
    async def all_of_them():
        with torch.no_grad():
            return await asyncio.gather(*coroutines)

    return run_in_loop(all_of_them())


def without(model, head, x=X):
    with torch.no_grad(), regard.intervene(model) as change:
        change.ablate(heads=head)
        return model(x)


def test_generators_each_in_a_context_of_its_own():
    def recorded():
        model = Stack(2, heads=4)
        with regard.record() as recording:
            model(X)
            yield
        yield [layer.name for layer in recording.layers]

    generators = [recorded(), recorded()]
    contexts = [contextvars.copy_context() for _ in generators]
    for _ in range(2):
        steps = [c.run(next, g) for c, g in zip(contexts, generators, strict=True)]
    assert [len(names) for names in steps] == [2, 2]


def models():
    torch.manual_seed(1)
    layer = regard.nn.MultiHeadAttention(12, 4, mask=regard.causal())
    return {"sdpa": Stack(2, heads=4), "torch": encoder().eval(), "regard": layer}


@pytest.mark.parametrize("name", models())
def test_interventions(name):
    model = models()[name]

    async def changed(head):
        with regard.intervene(model) as change:
            change.ablate(heads=head)
            await turn()
            once = model(X)
            await turn()
            assert torch.equal(model(X), once)
            return once

    async def unchanged():
        await asyncio.sleep(0)
        return model(X)

    with torch.no_grad():
        expected = [without(model, 0), without(model, 3), model(X)]
    actual = together(changed(0), changed(3), unchanged())
    for ours, theirs in zip(actual, expected, strict=True):
        assert torch.equal(ours, theirs)
    assert (actual[0] - actual[1]).abs().max() > 1e-3


def test_recordings():
    model = Stack(2)

    async def recorded(x):
        with regard.record(model) as recording:
            await turn()
            model(x)
            await turn()
        return recording

    async def of_anything(x):
        with regard.record() as recording:
            await turn()
            model(x)
        return recording

    inputs = [X, X[:1, :5], 2 * X]
    recordings = together(recorded(inputs[0]), recorded(inputs[1]), of_anything(inputs[2]))
    for recording, x in zip(recordings, inputs, strict=True):
        with torch.no_grad(), regard.record(model) as expected:
            model(x)
        assert len(recording) == len(expected) == 2
        for ours, theirs in zip(recording, expected, strict=True):
            assert torch.equal(ours.dense(), theirs.dense())


def test_readouts_that_are_taken_with_the_context():
    torch.manual_seed(1)
    layer = regard.nn.MultiHeadAttention(12, 4, mask=regard.causal())
    long = torch.randn(3, 1, 67, 12)  # from 64 rows on, a kernel computes both

    async def read(x):
        with read_while_running(layer, regard.readouts.Entropy()) as run:
            await turn()
            layer(x)
        return run["entropy"].values

    async def other():
        await asyncio.sleep(0)
        return layer(long[2])

    *entropies, out = together(read(long[0]), read(long[1]), other())
    with torch.no_grad():
        assert torch.equal(out, layer(long[2]))
    for entropy, x in zip(entropies, long[:2], strict=True):
        assert torch.equal(entropy, together(read(x))[0])


def test_monitors():
    model = Stack(2)

    async def monitored(x):
        monitor = regard.Monitor(model, every=1)
        with torch.enable_grad(), monitor.update():
            await turn()
            model(x)
        return monitor.values("entropy")

    async def other():
        await asyncio.sleep(0)
        with torch.enable_grad():
            model(5 * X)

    first, second, _ = together(monitored(X), monitored(X[:1]), other())
    for actual, x in ((first, X), (second, X[:1])):
        assert torch.equal(actual, together(monitored(x))[0])
    assert not torch.equal(first, second)


def test_a_block_holds_for_tasks_that_are_started_in_it_until_it_ends():
    model, later = Stack(2), []

    async def call(after=False):
        if after:
            await turn()
        return model(X)

    async def outer():
        with regard.intervene(model) as change, regard.record(model) as recording:
            change.ablate(heads=0)
            later.append(asyncio.create_task(call(after=True)))
            inside = await asyncio.gather(call(), call())
        return inside, len(recording)

    async def all_of_them():
        with torch.no_grad():
            inside, layers = await outer()
            return inside, layers, await later[0]

    inside, layers, after = run_in_loop(all_of_them())
    with torch.no_grad():
        plain = model(X)
    assert layers == 4  # of two runs
    for out in inside:
        assert torch.equal(out, without(model, 0))
    assert torch.equal(after, plain)


def test_names_of_transformers():
    model = CASES["llama"].build("eager")
    ids = torch.randint(3, 101, (1, 9))

    class Names:
        def convert_ids_to_tokens(self, ids):
            return [f"<{number}>" for number in ids]

    async def recorded():
        with regard.record(model, tokens=Names()) as recording:
            await turn()
            assert model.config._attn_implementation == "regard"
            model(ids)
            await turn()
        return recording

    async def other():
        await asyncio.sleep(0)
        assert model.config._attn_implementation == "eager"
        return model(ids.flip(1)).logits

    recording, out = together(recorded(), other())
    with torch.no_grad():
        assert torch.equal(out, model(ids.flip(1)).logits)
    assert recording.tokens == (tuple(f"<{number}>" for number in ids[0].tolist()),)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # of vmap
def test_what_only_a_block_refuses_is_allowed_in_other_tasks():
    mha = nn.MultiheadAttention(12, 4, batch_first=True).eval()
    layer = nn.TransformerEncoderLayer(12, 4, 16, batch_first=True).eval()
    ragged = torch.nested.nested_tensor([X[0], X[1, :4]])
    model = Stack(1)

    async def waiting():
        with regard.record(model) as recording, regard.intervene(model):
            await turn()
            model(X)
        return recording

    async def other():
        await asyncio.sleep(0)
        return mha(X, X, X)[0], layer(ragged).to_padded_tensor(0.0), torch.vmap(model)(X[:, None])

    recording, actual = together(waiting(), other())
    assert len(recording) == 1
    for ours, theirs in zip(actual, together(other())[0], strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_backward_pass_belongs_to_the_task_too(reentrant):
    model = Stack(2)

    def gradient(*, wait):
        async def changed(head):
            x = X.clone().requires_grad_()
            with torch.enable_grad(), regard.intervene(model) as change:
                change.temper(by=3.0, heads=head)
                loss = checkpoint(model, x, use_reentrant=reentrant).square().sum()
                if wait:
                    await turn()
                loss.backward()
            return x.grad

        return changed

    actual = together(gradient(wait=True)(0), gradient(wait=True)(2))
    for ours, head in zip(actual, (0, 2), strict=True):
        (alone,) = together(gradient(wait=False)(head))
        assert torch.equal(ours, alone)


def test_another_context_of_the_same_thread():
    model, copied = Stack(2), contextvars.copy_context()
    with torch.no_grad():
        plain = model(X)
        with regard.intervene(model) as change:
            change.ablate(heads=0)
            assert torch.equal(copied.run(model, X), plain)  # it began before the block
            inside = contextvars.copy_context()
            assert torch.equal(inside.run(model, X), model(X))
            results = []
            thread = threading.Thread(target=lambda: results.append(inside.run(model, X)))
            thread.start()
            thread.join()
            assert not torch.equal(model(X), plain)
        # Another thread has neither the block nor gradients that are off.
        assert torch.equal(results[0], plain)
        assert torch.equal(inside.run(model, X), plain)  # after the block


def test_a_block_that_ends_in_another_context():
    model = Stack(2)
    monitor = regard.Monitor(model, every=1)
    with torch.no_grad():
        monitor.begin()
        model.train()(X)
        contextvars.copy_context().run(monitor.end)
        assert monitor.updates == (0,)
        monitor.begin()
        monitor.cancel()
        with pytest.raises(RecordError, match="on this thread and in this task"):  # noqa: SIM117
            with regard.record(model):
                contextvars.Context().run(model, X)
