"""What a backward pass computes again belongs to the blocks that it was first computed in."""

import _thread
import functools
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch
from record.models.classes import CASES
from support.changed_attention import ChangedAttention, edit
from support.edits import changed
from support.interception import Stack
from support.written_models import in_torch
from torch import nn
from torch.autograd.graph import _engine_run_backward
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import CheckpointFunction, checkpoint

import regard
from regard.intercept import now
from regard.record import RecordError

EDITS = {
    "knock_out": edit("knock_out", layers=1, keys=[1, 2]),
    "steer": edit("steer", layers=1, keys=[3], by=1.0, heads=0),
    "temper": edit("temper", layers=1, by=3.0),
    "ablate": edit("ablate", layers=1, heads=0),
}
SIZE = (2, 7, 12)
ENDED = r"computes attention calls again .* put the backward pass inside the block"
ELSEWHERE = (
    r"computes attention calls again .* on another thread .* inside the block, on its thread"
)
WAYS = pytest.mark.parametrize("reentrant", [True, False])


class Checkpointed(nn.Module):
    """A stack of which some blocks are computed again in the backward pass."""

    def __init__(self, *, reentrant, layers=(0, 1, 2), checkpoint=checkpoint):
        super().__init__()
        torch.manual_seed(1)
        self.stack, self.layers, self.reentrant = Stack(3), layers, reentrant
        self.checkpoint = checkpoint

    def forward(self, x):
        for number, block in enumerate(self.stack.h):
            if number in self.layers:
                x = self.checkpoint(block, x, use_reentrant=self.reentrant)
            else:
                x = block(x)
        return x


def start():
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(2)).requires_grad_()


def gradient(model, x, loss):
    """The gradient of everything by a loss."""
    model.zero_grad()
    x.grad = None
    loss.backward()
    return [x.grad.clone(), *(p.grad.clone() for p in model.parameters())]


def expected(edits):
    """By torch's own operations, with nothing computed again."""
    model, x = Checkpointed(reentrant=False, layers=()), start()
    with in_torch(ChangedAttention(edits)):
        return gradient(model, x, model(x).square().sum())


def compare(actual, edits, factor=1.0):
    for ours, theirs in zip(actual, expected(edits), strict=True):
        # Sums over 14 positions in another order than torch's kernels have.
        torch.testing.assert_close(ours, factor * theirs, rtol=1e-4, atol=1e-4)


# After the block


@WAYS
@pytest.mark.parametrize("name", EDITS)
def test_after_the_block_it_is_refused(name, reentrant):
    model, x = Checkpointed(reentrant=reentrant), start()
    loss = changed(model, [EDITS[name]], lambda: model(x)).square().sum()
    with pytest.raises(RecordError, match=ENDED):
        loss.backward()


def test_by_keyword_too():
    model, x = Stack(2), start()
    with regard.intervene(model) as change:
        change.ablate(layers=0, heads=1)
        loss = checkpoint(function=lambda: model(x), use_reentrant=False).sum()
    with pytest.raises(RecordError, match=ENDED):
        torch.autograd.grad(loss, x)


@WAYS
def test_in_an_outer_block_it_is_refused_too(reentrant):
    model, x = Checkpointed(reentrant=reentrant), start()
    with regard.intervene(model) as outer:
        outer.ablate(layers=2, heads=0)
        loss = changed(model, [EDITS["ablate"]], lambda: model(x)).square().sum()
        with pytest.raises(RecordError, match=ENDED):
            loss.backward()


@WAYS
def test_what_the_block_did_not_change_may_be_computed_again_after_it(reentrant):
    model, x = Checkpointed(reentrant=reentrant, layers=(0, 2)), start()
    loss = changed(model, [EDITS["temper"]], lambda: model(x)).square().sum()
    compare(gradient(model, x, loss), [EDITS["temper"]])

    other = Stack(2)
    with regard.intervene(other) as change:
        change.ablate(heads=0)
        other(x)
        with regard.record(model) as recording:
            loss = model(x).square().sum()
    assert len(recording) == 3
    compare(gradient(model, x, loss), [])


# Before the block, and before a change


@WAYS
def test_calls_from_before_the_block_are_computed_as_they_were(reentrant):
    model, x = Checkpointed(reentrant=reentrant), start()
    plain = model(x).square().sum()
    with regard.intervene(model) as change:
        change.ablate(layers=1, heads=0)
        model(x)
        compare(gradient(model, x, plain), [])


@WAYS
def test_a_difference_to_the_model_as_it_is(reentrant):
    model, x, edits = Checkpointed(reentrant=reentrant), start(), [EDITS["steer"]]
    plain = model(x).square().sum()
    with regard.intervene(model) as change:
        edits[0].state(change)
        loss = model(x).square().sum() - plain
        actual = gradient(model, x, loss)
    pairs = zip(actual, expected(edits), expected([]), strict=True)
    for ours, one, other in pairs:
        torch.testing.assert_close(ours, one - other, rtol=1e-3, atol=1e-3)  # which nearly cancel


@WAYS
def test_each_change_holds_for_the_calls_after_it(reentrant):
    model, x = Checkpointed(reentrant=reentrant), start()
    with regard.intervene(model) as change:
        EDITS["steer"].state(change)
        first = model(x).square().sum()
        EDITS["ablate"].state(change)
        second = model(x).square().sum()
        compare(gradient(model, x, first), [EDITS["steer"]])
        compare(gradient(model, x, second), [EDITS["steer"], EDITS["ablate"]])


# On another thread, where autograd counts its nodes anew


MORE = 5000  # nodes than the graphs of any test here have


def count_on(nodes):
    """Let the graphs of this thread have had so many more nodes."""
    one = torch.ones(1, requires_grad=True)
    for _ in range(nodes):
        one * 2


def afresh(test):
    """Run a test on a thread of its own: graphs with no nodes yet are soon outnumbered."""

    @functools.wraps(test)
    def run(**arguments):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(test, **arguments).result()

    return run


def on_a_thread(function, nodes=0):
    """What a function returns on a thread whose graphs had some nodes before."""
    results = []

    def work():
        count_on(nodes)
        results.append(function())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results[0]


def recorded(model, x):
    with regard.record(model):
        return model(x)


def by_parts(block, x, use_reentrant):
    """A checkpoint without torch's function of that name."""
    return CheckpointFunction.apply(block, True, x)


@WAYS
@afresh
def test_calls_of_another_thread_are_refused_where_they_can_not_be_told_apart(reentrant):
    model, x = Checkpointed(reentrant=reentrant), start()
    nodes = now().number + MORE
    inside, outside = (on_a_thread(lambda: model(x), nodes).square().sum() for _ in range(2))
    with regard.intervene(model) as change:
        change.ablate(layers=1, heads=0)
        model(x)
        with pytest.raises(RecordError, match=r"cannot be known.* put the backward pass outside"):
            inside.backward()
    compare(gradient(model, x, outside), [])


def test_parts_of_a_checkpoint_are_refused_too():
    model, x = Checkpointed(reentrant=True, checkpoint=by_parts), start()
    with regard.intervene(model) as change:
        change.ablate(layers=1, heads=0)
        loss = model(x).square().sum()
        with pytest.raises(RecordError, match=r"cannot be known.* call checkpoint\(...\) inside"):
            loss.backward()


@WAYS
@pytest.mark.parametrize("block", ["none", "record"])
@afresh
def test_calls_of_another_thread_are_computed_as_they_were(block, reentrant):
    model, x = Checkpointed(reentrant=reentrant), start()
    if block == "none":  # then its numbers are smaller, which tells enough
        count_on(MORE)
        plain = on_a_thread(lambda: model(x)).square().sum()
    else:
        plain = on_a_thread(lambda: recorded(model, x), now().number + MORE).square().sum()
    with regard.intervene(model) as change:
        change.ablate(layers=1, heads=0)
        model(x)
        compare(gradient(model, x, plain), [])


@WAYS
@afresh
def test_where_no_change_is_made_they_may_come_from_anywhere(reentrant):
    model, other, x = Checkpointed(reentrant=reentrant), Stack(2), start()
    plain = on_a_thread(lambda: model(x), now().number + MORE).square().sum()
    with regard.intervene(other) as change, regard.record(model):
        change.ablate(heads=0)
        other(x)
        model(x)
        compare(gradient(model, x, plain), [])


def error_of(loss):
    with pytest.raises(RecordError) as caught:
        loss.backward()
    return str(caught.value)


@WAYS
def test_a_backward_pass_on_another_thread_is_told_that_it_is(reentrant):
    model, x = Checkpointed(reentrant=reentrant), start()
    with regard.intervene(model) as change:
        change.ablate(layers=1, heads=0)
        inside, after = (model(x).square().sum() for _ in range(2))
        assert re.search(ELSEWHERE, on_a_thread(lambda: error_of(inside)))
    assert re.search(ELSEWHERE, on_a_thread(lambda: error_of(after)))


# A function that does something else when it is called again


@pytest.mark.parametrize("first", [0, 1])
def test_other_calls_than_in_the_forward_pass_are_refused(first):
    model, x = Stack(2), start()
    blocks = iter([model.h[first], model.h[1 - first]])
    with regard.intervene(model) as change:
        EDITS["temper"].state(change)
        model(x)
        # The other way torch itself notices, by the shapes of what it keeps.
        out = checkpoint(lambda x: next(blocks)(x), x, use_reentrant=True)  # noqa: PLW0108 - anew
        with pytest.raises(RecordError, match="not as the block changed them in the forward"):
            out.sum().backward()


# On a thread of autograd's


class OnAnotherThread(torch.autograd.Function):
    """Runs a part of a backward pass as autograd runs that of a device.

    On a thread that Python did not start, under the function modes of the thread that waits.
    """

    @staticmethod
    def forward(ctx, x, hidden):
        (ctx.graph,) = hidden
        return ctx.graph.detach()

    @staticmethod
    def backward(ctx, gradient):
        modes, ended, errors = _get_current_function_mode_stack(), threading.Event(), []

        def work():
            with ExitStack() as stack:
                stack.callback(ended.set)
                for mode in modes:
                    stack.enter_context(mode)
                try:
                    _engine_run_backward(
                        (ctx.graph,), (gradient,), False, False, (), accumulate_grad=True
                    )
                except Exception as error:  # noqa: BLE001 - the test reports it
                    errors.append(error)

        _thread.start_new_thread(work, ())
        assert ended.wait(60)
        assert not errors
        return torch.zeros(SIZE), None


@WAYS
@pytest.mark.parametrize("name", EDITS)
def test_on_a_thread_of_autograds(name, reentrant):
    model, x, edits = Checkpointed(reentrant=reentrant), start(), [EDITS[name]]
    with regard.intervene(model) as change:
        edits[0].state(change)
        out = OnAnotherThread.apply(start(), [model(x)])
        compare(gradient(model, x, out.square().sum()), edits)


# Models of transformers, whose attention a block replaces


def training(reentrant):
    model = CASES["llama"].build("eager").train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    ids = torch.randint(3, 101, (2, 9))
    return model, lambda: model(ids, labels=ids, use_cache=False).loss


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters()]


def monitored(model):
    return regard.Monitor(model, every=1).update()


of_transformers = pytest.mark.filterwarnings(
    "ignore:`gradient_checkpointing_enable:FutureWarning",
    "ignore:None of the inputs have requires_grad:UserWarning",
)


@of_transformers
@WAYS
@pytest.mark.parametrize("block", [regard.record, monitored])
def test_a_replaced_attention(block, reentrant):
    model, run = training(reentrant)
    plain = gradients(model, run())
    with block(model):
        loss = run()
    with pytest.raises(RecordError, match=ENDED):
        loss.backward()
    with block(model):
        inside = gradients(model, run())
        loss = run()
    with regard.record(model), block(model):
        run()
        with pytest.raises(RecordError, match=ENDED):  # another block than it was made in
            loss.backward()
    with regard.record(model):
        with block(model):
            loss = run()
        outer = gradients(model, loss)
        run()
    for one, two, three in zip(plain, inside, outer, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-6)  # rounding of other kernels
        torch.testing.assert_close(three, one, rtol=1e-4, atol=1e-6)


@of_transformers
@WAYS
def test_an_attention_that_was_not_replaced_yet(reentrant):
    model, run = training(reentrant)
    plain = gradients(model, run())
    loss = run()
    with regard.record(model):
        run()
        actual = gradients(model, loss)
    for ours, theirs in zip(actual, plain, strict=True):
        assert torch.equal(ours, theirs)


class OwnCheckpoint(torch.autograd.Function):
    """Another library's checkpoint."""

    @staticmethod
    def forward(ctx, function, x):
        ctx.function = function
        ctx.save_for_backward(x)
        with torch.no_grad():
            return function(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.function(x).backward(gradient)
        return None, x.grad


def own_checkpoint(block, x, use_reentrant):
    return OwnCheckpoint.apply(block, x)


@pytest.mark.parametrize("name", EDITS)
def test_inside_the_block_another_librarys_checkpoint_is_seen(name):
    model, x, edits = (
        Checkpointed(reentrant=True, checkpoint=own_checkpoint),
        start(),
        [EDITS[name]],
    )
    with regard.intervene(model) as change:
        plain = model(x).square().sum()
        edits[0].state(change)
        compare(gradient(model, x, model(x).square().sum()), edits)
        compare(gradient(model, x, plain), [])


@of_transformers
def test_a_mask_that_another_checkpoint_kept():
    model, run = training(reentrant=False)
    for layer in model.modules():
        if hasattr(layer, "_gradient_checkpointing_func"):
            layer._gradient_checkpointing_func = OwnCheckpoint.apply
    with regard.record(model):
        loss = run()
    with pytest.raises(RecordError, match=ENDED):
        loss.backward()
