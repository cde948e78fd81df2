"""The ranks of a world: each goes through all problems, and leaves its results in a file.

``python worker.py SIZE FOLDER``, with tests/ on the path, forks them once all is imported, and
prints how each ended.
"""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from support.ring import CAUSAL, PROBLEMS, READ, readouts

import regard
from regard.nn import MultiHeadAttention
from regard_experiments import distributed
from regard_experiments.distributed.ring import Ring


def attended(problem):
    """Context, log-sum-exp and the gradients of a problem."""
    whole = problem.tensors()
    numbers = {name: whole.pop(name) for name in ("alibi", "sink") if name in whole}
    cut = {name: distributed.shard(tensor, -2) for name, tensor in whole.items()}
    gradient = cut.pop("gradient")
    leaves = {name: t.requires_grad_() for name, t in {**cut, **numbers}.items()}
    context, pattern = distributed.attention_with_pattern(
        **leaves, **problem.options, mask=problem.mask
    )
    context.backward(gradient)
    actual = {"context": context.detach(), "logsumexp": pattern.logsumexp}
    actual |= {name: leaf.grad for name, leaf in leaves.items()}
    for name in numbers:  # each rank has its part
        dist.all_reduce(actual[name])
    return actual


def read(problem):
    """Every readout of a problem, of a pattern made for itself."""
    whole = problem.tensors()
    query, key = (distributed.shard(whole[name], -2) for name in ("query", "key"))
    numbers = {name: whole[name] for name in ("alibi", "sink") if name in whole}
    pattern = distributed.ShardedPattern(
        query, key, mask=problem.mask, **numbers, **problem.options
    )
    wanted = readouts(pattern.shape[-1])
    actual = dict(zip(wanted, pattern.read(*wanted.values()), strict=True))
    top = actual.pop("TopK")
    lags = {name: actual.pop(name) for name in ("Lag", "Lag of evicted")}
    logs = {f"log {name}": lag.log_weights for name, lag in lags.items()}
    actual |= {name: lag.weights for name, lag in lags.items()} | logs
    return {**actual, "top weights": top.weights, "top positions": top.positions}


def trained():
    """Weights of two layers after one step, and a pattern of the second."""
    torch.manual_seed(1)
    layers = torch.nn.ModuleList(
        MultiHeadAttention(12, 6, groups=3, bias=True, mask=CAUSAL) for _ in range(2)
    )
    x, target = (distributed.shard(t, 1) for t in torch.randn(2, 2, 19, 12))
    with distributed.context_parallel():
        output, pattern = layers[1].with_pattern(layers[0](x))
    loss = ((output - target) ** 2).sum()
    loss.backward()
    with torch.no_grad():
        for weight in layers.parameters():
            dist.all_reduce(weight.grad)
            weight.sub_(0.01 * weight.grad)
    return {"output": output.detach(), "entropy": pattern.entropy(), **layers.state_dict()}


def monitored(rank, size):
    """What a monitor reads of a batch whose sequences lie on the ranks, and what it refuses."""
    torch.manual_seed(3)
    layers = torch.nn.ModuleList(MultiHeadAttention(12, 6, mask=CAUSAL) for _ in range(2))
    whole = torch.randn(2 * size, 19, 12)
    x = whole[size + rank].unsqueeze(0) if rank else whole[: size + 1]
    broken = x.clone()
    broken[0, 3] = torch.nan if rank == 1 else 0.0
    read, wrote = {"largest": regard.readouts.MaxScore(), "entropy": regard.readouts.Entropy()}, []

    def readings(x, count=2, wrote=wrote, group=None):
        writers = [lambda update, scalars: wrote.append(update)]
        monitor = regard.Monitor(layers, every=1, read=read, writers=writers, group=group)
        with monitor.update():
            for layer in layers[:count]:
                layer(x)
        return torch.stack([monitor.values(name)[0] for name in read])

    with regard.record(layers) as recording:
        for layer in layers:
            layer(whole)
    largest, entropy = (one.values for one in recording.read(*read.values()).values())
    others, wrote_in_group = dist.new_group(range(1, size)), []
    if rank:
        readings(x, wrote=wrote_in_group, group=others)
    return {
        "read": readings(x),
        "whole": torch.stack([largest.amax((1, 3)), entropy.mean((1, 3))]).flatten(1),
        "broken": readings(broken),
        "wrote": torch.tensor(wrote),
        "wrote_in_group": torch.tensor(wrote_in_group),
        "differing": outcome(lambda: readings(x, 1 if rank == 1 else 2)),
        "nothing": outcome(lambda: readings(x, 0)),
    }


def put_together(rank):
    """Shards of several dtypes and axes, cut and put together again."""
    given = {
        "bool": (torch.arange(7)[:, None] % 3 == torch.arange(3), 0),
        "int64": (torch.arange(2 * 7 * 3).reshape(2, 7, 3), 1),
        "bfloat16": (torch.arange(7.0).bfloat16(), -1),
    }
    for name, (whole, dim) in given.items():
        back = distributed.unshard(distributed.shard(whole, dim), dim)
        assert torch.equal(back, whole), f"rank {rank}, {name}"
    places = distributed.positions(7)
    assert torch.equal(distributed.shard(torch.arange(7), 0), places)
    assert torch.equal(distributed.layout(7).positions(rank), places)
    return {"done": torch.ones(1)}


class Own(regard.pattern.readouts.Readout):
    begin = add = finish = None


def wrong(rank):
    """The error of each rank when one or all of them go wrong; none hangs."""
    whole = torch.randn(3, 6, 13, 4)
    query, key, value = distributed.shard(whole, -2)
    odd = rank == 1
    attention = distributed.attention
    layer = MultiHeadAttention(12, 3, dropout=0.5)
    x = distributed.shard(torch.randn(13, 12), 0)
    of_all = regard.documents(torch.zeros(12, dtype=torch.int64))
    of_one = of_all if odd else regard.documents(torch.zeros(13, dtype=torch.int64))

    def pattern():
        return distributed.ShardedPattern(query, key)

    def within(call):
        with distributed.context_parallel():
            call()

    other = query.double(), key.double(), value.double()
    calls = {
        "dtype": lambda: attention(*(other if odd else (query, key, value))),
        "heads": lambda: attention(query[:2] if odd else query, key[:2], value[:2]),
        "scale": lambda: attention(query, key, value, scale=0.3 if odd else 0.2),
        "gradient": lambda: attention(query.clone().requires_grad_(not odd), key, value),
        "mask": lambda: attention(query, key, value, mask=None if odd else CAUSAL),
        "lengths": lambda: attention(*(whole[..., :5, :] if odd else whole[..., :4, :])),
        "keys": lambda: attention(query, key[..., :-1, :] if odd else key, value),
        "ids of one": lambda: attention(query, key, value, mask=of_one),
        "ids of all": lambda: attention(query, key, value, mask=of_all),
        "kind of mask": lambda: attention(query, key, value, mask="causal" if odd else None),
        "dense": lambda: attention(
            query, key, value, mask=regard.dense(torch.ones(13, 13, dtype=torch.bool))
        ),
        "call": lambda: pattern() if odd else attention(query, key, value),
        "readouts": lambda: pattern().read(regard.readouts.TopK(2 if odd else 3)),
        "own readout": lambda: pattern().read(Own()),
        "keys of a mass": lambda: pattern().read(regard.readouts.Mass(99)),
        "unshard": lambda: distributed.unshard(query[0][..., :1, :] if odd else query[0], -2),
        "dropout": lambda: within(lambda: layer(x)),
        "bias": lambda: within(lambda: regard.attention(query, key, value, bias=torch.ones(1))),
        "backend": lambda: within(lambda: regard.attention(query, key, value, backend="eager")),
        "recording": lambda: within(lambda: recorded(query, key, value)),
        "recording outside": lambda: recorded(query, key, value, within),
        "torch": lambda: within(lambda: F.scaled_dot_product_attention(query, key, value)),
    }
    return {name: outcome(call) for name, call in calls.items()}


def recorded(query, key, value, inside=lambda call: call()):
    """Record an attention; `context_parallel` is outside or inside."""
    layer = torch.nn.Identity()
    with regard.record(layer):
        inside(lambda: regard.attention(query, key, value))


def outcome(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, the test judges it
        return f"{type(error).__name__}: {error}"
    return "nothing"


def in_groups(rank, size):
    """A group that leaves rank 1 out, and one in which rank 1 does not come."""
    without = dist.new_group([one for one in range(size) if one != 1])
    query, key, value = torch.randn(3, 6, 13, 4, generator=torch.Generator().manual_seed(2))

    def attention():
        shards = (distributed.shard(x, -2, group=without) for x in (query, key, value))
        context = distributed.attention(*shards, mask=CAUSAL, group=without)
        wanted = regard.attention(query, key, value, mask=CAUSAL)
        got = distributed.unshard(context, -2, group=without)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)

    dist.barrier()  # to make a group takes all ranks within its timeout as well
    impatient = dist.new_group(timeout=timedelta(seconds=2))

    def waiting():
        distributed.attention(
            *(distributed.shard(x, -2) for x in (query, key, value)), group=impatient
        )

    return {
        "left out": outcome(attention),
        "waiting": "" if rank == 1 else outcome(waiting),
    }


def lost(rank):
    """Rank 1 is killed once the ranks have agreed to start; what do the others say?"""
    query, key, value = distributed.shard(torch.randn(3, 6, 13, 4), -2)

    def killed(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch.object(Ring, "pass_on", killed if rank == 1 else Ring.pass_on):
        in_the_ring = outcome(lambda: distributed.attention(query, key, value))
    return {
        "in the ring": in_the_ring,
        "before it": outcome(lambda: distributed.attention(query, key, value)),
    }


def main(rank, size, folder):
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    actual = {"put together": put_together(rank), "wrong": wrong(rank)}
    actual |= {f"attention {name}": attended(problem) for name, problem in PROBLEMS.items()}
    actual |= {f"readouts {name}": read(PROBLEMS[name]) for name in READ}
    actual["trained"] = trained()
    actual["monitored"] = monitored(rank, size)
    actual["groups"] = in_groups(rank, size)
    if rank == 1:
        torch.save(actual, Path(folder, "killed.pt"))
    actual["lost"] = lost(rank)
    torch.save(actual, Path(folder, f"rank{rank}.pt"))
    os._exit(0)  # there is no group left to take leave of


def fork(size, folder):
    """Start the ranks; their exit statuses."""
    ranks = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            main(rank, size, folder)
        ranks.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]


if __name__ == "__main__":
    print(*fork(int(sys.argv[1]), sys.argv[2]))  # noqa: T201 - the tests read it
