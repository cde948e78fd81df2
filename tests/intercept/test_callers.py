"""Whose calls a recording sees, and what it calls them."""

import functools
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from support.interception import B, Block, D, H, L, Stack, check_nothing_left_behind, close, encoder
from torch import nn

import regard
from regard.intercept import is_observed
from regard.record import read_while_running


def test_only_the_model_passed_is_recorded():
    model, other, x = Stack(), Stack(), torch.randn(B, L, 12)
    with regard.record(model) as recording:
        other(x)
        model(x)
        F.scaled_dot_product_attention(*torch.randn(3, B, H, L, D))
    assert len(recording) == 2
    close(recording[0], model.h[0].exact(x))
    with regard.record(model.h[1]) as recording:
        model(x)
    assert len(recording) == 1
    close(recording[0], model.h[1].exact(model.h[0](x)))
    with regard.record() as recording:
        other(x)
        model(x)
    assert [layer.name for layer in recording.layers] == ["h.0", "h.1", "h.0", "h.1"]
    assert [layer.index for layer in recording.layers] == [0, 1, 2, 3]


def test_calls_outside_any_module_have_no_name():
    with regard.record() as recording:
        F.scaled_dot_product_attention(*torch.randn(3, B, H, L, D))
    assert recording.layers[0].name == ""
    assert recording.layers[0].kind == "self"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_query_written_to_the_same_memory_is_another_query(mode):
    """And the same query with other values is not: a layer may attend in two halves of them."""

    class Steps(nn.Module):
        def forward(self, queries, key):
            query = torch.empty_like(queries[0])
            for new in queries:
                torch.mul(new, 1, out=query)
                for value in (key, -key):
                    F.scaled_dot_product_attention(query, key, value)

    model = Steps()
    with mode():
        queries, key = torch.randn(3, B, H, L, D), torch.randn(B, H, L, D)
        with read_while_running(model, regard.readouts.Entropy()) as run:
            model(queries, key)
        entropies = [regard.Pattern(query, key).entropy() for query in queries]
    torch.testing.assert_close(run["entropy"].values, torch.stack(entropies))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("cross_attn", "cross"),
        ("crossattention", "cross"),
        ("encoder_attn", "cross"),
        ("EncDecAttention", "cross"),
        ("attn", "self"),
    ],
)
def test_kinds_by_name(path, kind):
    model, x = nn.Module(), torch.randn(B, L, 12)
    model.add_module(path, Block())
    model.forward = functools.partial(getattr(model, path))
    with regard.record(model) as recording:
        model(x)
    assert recording.layers[0].kind == kind


def test_an_encoder_without_a_decoder_attends_to_itself():
    model, x = nn.Module(), torch.randn(B, L, 12)
    model.encoder = Stack()
    model.forward = functools.partial(model.encoder)
    with regard.record(model) as recording:
        model(x)
    assert recording.kinds == ("self",)
    model.decoder = nn.Linear(12, 12)
    with regard.record(model) as recording:
        model(x)
    assert recording.kinds == ("encoder",)


class Interrupted(nn.Module):
    def forward(self, x):
        raise KeyboardInterrupt


def test_a_module_that_was_interrupted_is_no_caller_of_what_follows():
    code, x = nn.Module._call_impl.__code__, torch.randn(1, 2, 5, 4)
    with regard.record() as recording:
        with pytest.raises(KeyboardInterrupt):
            nn.Sequential(Interrupted())(x)
        F.scaled_dot_product_attention(x, x, x)
        assert nn.Module._call_impl.__code__ is not code
    assert recording.layers[0].name == ""
    assert nn.Module._call_impl.__code__ is code


def test_nested_recordings_each_see_their_own_time():
    model, x = Block(), torch.randn(B, L, 12)
    with regard.record() as outer:
        model(x)
        with regard.record() as inner:
            model(x + 1)
        model(x + 2)
        assert is_observed()
    with regard.record() as later:
        model(x + 3)
    assert [len(recording) for recording in (outer, inner, later)] == [3, 1, 1]
    for pattern, shift in zip((*outer, *inner, *later), (0, 1, 2, 1, 3), strict=True):
        close(pattern, model.exact(x + shift))


def test_a_recording_within_a_model_of_a_recording():
    model, x = Stack(), torch.randn(B, L, 12)
    inner = []

    def look(module, args):
        with regard.record() as recording:
            module.forward(*args)
        inner.append(recording)

    model.h[1].register_forward_pre_hook(look)
    with regard.record(model) as outer:
        model(x)
    assert len(inner[0]) == 1
    close(inner[0][0], model.h[1].exact(model.h[0](x)))
    close(outer[0], model.h[0].exact(x))


def test_another_thread_is_not_seen():
    model, x = Block(), torch.randn(B, L, 12)
    with regard.record() as recording:
        model(x)
        thread = threading.Thread(target=lambda: model(x))
        thread.start()
        thread.join()
    assert len(recording) == 1


@pytest.mark.parametrize("make", [Stack, lambda: encoder(nested=False).eval()])
def test_threads_record_at_once(make):
    model, count, rounds = make(), 4, 5
    inputs = [torch.randn(B, L, 12) for _ in range(count)]
    with torch.no_grad():
        plain = [model(x) for x in inputs]
        with regard.record(model) as alone:
            model(inputs[0])
    barrier, actual = threading.Barrier(count), [None] * count

    def work(place):
        with torch.no_grad():
            for _ in range(rounds):
                barrier.wait()
                with regard.record(model) as recording:
                    barrier.wait()
                    out = model(inputs[place])
                    barrier.wait()
                names = [layer.name for layer in recording.layers]
                actual[place] = (out, [pattern.dense() for pattern in recording], names)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_nothing_left_behind()
    for out, expected in zip(actual, plain, strict=True):
        assert torch.equal(out[0], expected)
        assert out[2] == [layer.name for layer in alone.layers]
    for weights, pattern in zip(actual[0][1], alone, strict=True):
        assert torch.equal(weights, pattern.dense())
    assert not torch.equal(actual[0][1][0], actual[1][1][0])


def test_the_first_blocks_of_a_process_may_begin_on_two_threads_at_once():
    source = """
import sys, threading, torch, regard
import torch.nn.functional as F

sys.setswitchinterval(1e-6)
start, seen = threading.Barrier(7), []

def call():
    start.wait()
    with regard.record() as recording:
        F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 5, 4))
    seen.append(len(recording))

threads = [threading.Thread(target=call) for _ in range(7)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert seen == 7 * [1], seen
"""
    run = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
