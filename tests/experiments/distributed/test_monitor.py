"""What a monitor reads where each rank has some of a batch's sequences."""

import torch


def test_numbers_are_those_of_the_whole_batch_on_every_rank(world):
    largest, entropy = world.common("monitored", "read")
    expected_largest, expected_entropy = world.actual[0]["monitored"]["whole"]
    assert torch.equal(largest, expected_largest.double())
    # Means in float32 on one side: half a unit in the last place of numbers below 4.
    torch.testing.assert_close(entropy, expected_entropy.double(), rtol=0, atol=2**-22)


def test_nan_on_one_rank_is_nan_on_all(world):
    assert world.common("monitored", "broken").isnan().all()


def test_the_first_rank_alone_writes(world):
    wrote = [rank["monitored"]["wrote"].tolist() for rank in world.actual]
    assert wrote == [[0, 0], *[[]] * (world.size - 1)]


def test_the_first_rank_of_a_group_writes(world):
    wrote = [rank["monitored"]["wrote_in_group"].tolist() for rank in world.actual]
    assert wrote == [[], [0], *[[]] * (world.size - 2)]


def test_every_rank_refuses_layers_that_differ(world):
    for rank in world.actual:
        assert "RecordError: the ranks read different layers" in rank["monitored"]["differing"]
        assert "RecordError: no attention call of ModuleList" in rank["monitored"]["nothing"]
