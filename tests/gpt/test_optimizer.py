"""Which parameters decay, learn at which rate, and move by which optimizer."""

import pytest
import torch

from regard.gpt import GPT, GPTConfig, TrainConfig
from regard.gpt.training.optimizer import make_optimizer


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_only_matrices_decay(optimizer):
    model = GPT(GPTConfig(vocab_size=7, context=5, layers=1, heads=1, dim=4))
    groups = make_optimizer(model, TrainConfig(optimizer=optimizer, weight_decay=0.3)).param_groups
    decay = {p: group["weight_decay"] for group in groups for p in group["params"]}
    assert decay == {p: 0.3 if p.ndim == 2 else 0.0 for p in model.parameters()}
    assert sum(len(group["params"]) for group in groups) == len(decay)


@pytest.mark.parametrize(("rate", "count"), [(1.0, 2), (0.5, 3)])
def test_parameters_of_one_rate_and_decay_are_one_group(rate, count):
    model = GPT(GPTConfig(vocab_size=7, context=5, layers=1, heads=1, dim=4))
    groups = make_optimizer(model, TrainConfig(embedding_rate=rate)).param_groups
    assert len(groups) == count
    assert {group["share"] for group in groups} == {1.0, rate}
    assert {p for group in groups for p in group["params"]} == set(model.parameters())


def test_muon_moves_the_matrices_of_the_blocks_by_orthogonal_steps():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=7, context=5, layers=2, heads=1, dim=12))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    recipe = TrainConfig(optimizer="muon", learning_rate=0.01, weight_decay=0.0)
    optimizer = make_optimizer(model, recipe)
    model(torch.arange(5)).square().sum().backward()
    optimizer.step()
    for name, weight in model.state_dict().items():
        step = weight - before[name]
        if weight.ndim == 2 and name.startswith("h."):
            # Five Newton–Schulz steps bring singular values near 1, not onto it: 0.7 to 1.2, and
            # the scale is 0.2 √(longer side) (Liu et al. 2025, eq. 4).
            values = torch.linalg.svdvals(step) / (0.01 * 0.2 * max(weight.shape) ** 0.5)
            assert values[:4].min() > 0.5  # a gradient of five tokens has rank 5 at most
            assert values.max() < 1.3
        else:  # AdamW's first step is the learning rate, by the gradient's sign
            assert step.abs().max() == pytest.approx(0.01, rel=1e-3)
