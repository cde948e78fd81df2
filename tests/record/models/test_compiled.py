"""Models of transformers as one graph, with masks of padding."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from record.models.graphs import NAMES

pytestmark = pytest.mark.thorough

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results():
    path = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
    run = subprocess.run(
        [sys.executable, "-m", "record.models.graphs"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_padding_does_not_break_the_graph(results, name):
    assert results[name] < 2e-5  # as without a graph: activations near 1, rounded at 1e-7 a step


def test_one_graph_serves_all_lengths_and_paddings(results):
    error, graphs = results["lengths"]
    assert error < 2e-5
    assert graphs == 1


def test_gradients_through_a_graph(results):
    assert results["trained"] < 1e-4  # sums of hundreds of terms, of two implementations


def test_attention_that_a_class_computes_itself_is_not_computed_wrongly(results):
    assert len(results["own"]) == 2
    assert "nothing" not in results["own"]
