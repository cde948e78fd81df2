"""Every rank that fails raises the reason, and none waits for one that will not come."""

import re

import pytest

from regard.errors import Error
from regard_experiments import distributed

# The error of every rank; or that of rank 1, and that of the others.
EVERYONE = {
    "dtype": r"ValueError: the ranks disagree about dtype: rank 0 has torch.float32, rank 1 has "
    "torch.float64",
    "heads": r"ValueError: the ranks disagree about batch and heads",
    "scale": r"ValueError: the ranks disagree about scale: rank 0 has 0.2, rank 1 has 0.3",
    "gradient": r"ValueError: the ranks disagree about whether a gradient is wanted",
    "mask": r"ValueError: the ranks disagree about mask: rank 0 has causal\(\), rank 1 has None",
    "ids of one": r"ValueError: the ranks disagree about mask: rank 0 has documents\(\(13,\)\), ",
    "ids of all": r"ValueError: ids covers 12 keys, but there are 13",
    "lengths": r"ValueError: the ranks hold \[4, 5.*\] queries, .* of which the layout gives them "
    r".*shard\(x, dim\)",
    "dense": r"ValueError: mask is dense\(bool \(13, 13\)\): .* say it as intervals",
    "call": r"ValueError: the ranks disagree about the call: rank 0 has attention, rank 1 has "
    "ShardedPattern",
    "readouts": r"ValueError: the ranks disagree about readouts: .*TopK\(k=3\).*TopK\(k=2\)",
    "own readout": r"TypeError: .*Own.* can't be read over several ranks.*Own.merge.*not defined",
    "keys of a mass": r"ValueError: keys does not index 13 keys",
    "unshard": r"ValueError: the ranks hold \[.*\] positions, which are not shards of \d+",
    "dropout": r"ValueError: dropout=0.5 can't be honoured over several ranks: set it to 0",
    "bias": r"ValueError: bias can't be honoured over several ranks",
    "backend": r"ValueError: backend='eager' can't be honoured over several ranks",
    "recording": r"ValueError: a recording can't be honoured over several ranks: it sees one",
    "recording outside": r"ValueError: a recording can't be honoured over several ranks",
    "torch": r"ValueError: torch's scaled_dot_product_attention would see this rank's shard alone",
}
RANK_1 = {
    "keys": "ValueError: key and value must hold the same number S",
    "kind of mask": "TypeError: mask must be a regard.Mask or None, but is str",
}


@pytest.mark.parametrize("what", EVERYONE)
def test_every_rank_raises_the_error(world, what):
    for one in world.actual:
        assert re.match(EVERYONE[what], one["wrong"][what], re.DOTALL), one["wrong"][what]


@pytest.mark.parametrize("what", RANK_1)
def test_the_error_names_the_rank_that_can_not_take_part(world, what):
    message = [one["wrong"][what] for one in world.actual]
    assert message[1].startswith(RANK_1[what])
    for other in (message[0], *message[2:]):
        start = f"Error: rank 1 of {world.size} can't take part, and raises "
        assert other.startswith(start + RANK_1[what])


def test_a_rank_that_is_killed_ends_the_others_with_its_name(world):
    assert "lost" not in world.actual[1]
    for one in (world.actual[0], *world.actual[2:]):
        message = one["lost"]["in the ring"]
        assert re.match(r"Error: rank \d of \d lost rank 1: ", message), message
        assert "start all of them again from the last checkpoint" in message
        message = one["lost"]["before it"]
        assert re.match(r"Error: rank \d of \d lost ranks? .*1", message), message


def test_a_group_may_leave_ranks_out(world):
    message = [one["groups"]["left out"] for one in world.actual]
    assert message[1].startswith("Error: rank 1 is not in this group")
    assert {message[0], *message[2:]} == {"nothing"}, "they computed what one process does"


def test_a_rank_that_does_not_come_is_not_waited_for_beyond_the_timeout(world):
    for one in (world.actual[0], *world.actual[2:]):
        message = one["groups"]["waiting"]
        assert re.match(r"Error: rank \d of \d lost ranks? .*1.*: a process", message), message


def test_without_a_group_the_error_explains_how_to_start_one():
    with pytest.raises(Error, match=r"torchrun.*init_process_group\(\)"):
        distributed.positions(7)
