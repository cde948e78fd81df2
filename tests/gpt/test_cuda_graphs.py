"""A model on CUDA is one graph for torch.compile: nothing in it waits for a number."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CUDNN = "aten._scaled_dot_product_cudnn_attention"


def graph(name):
    run = subprocess.run(
        [sys.executable, "-m", "support.cuda_graphs", name],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.thorough
def test_a_model_is_one_graph_with_the_gpu_s_own_attention_in_each_layer():
    assert graph("plain")[CUDNN] == 2


@pytest.mark.thorough
def test_documents_are_one_graph_in_which_the_device_asserts_that_each_is_whole():
    asserts = [count for name, count in graph("documents").items() if "_assert_async" in name]
    assert asserts == [1]


@pytest.mark.thorough
def test_dropout_is_one_graph_of_written_out_attention():
    assert CUDNN not in graph("dropout")


@pytest.mark.thorough
def test_a_check_that_is_asked_for_reads_a_number_which_ends_the_graph():
    assert "ata-dependent" in graph("checked")
