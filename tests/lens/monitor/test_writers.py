"""Where a monitor's numbers go, and what becomes of a writer that fails."""

import json

import pytest
import torch

import regard
from regard.lens.monitor import JSONLinesWriter, WriterWarning
from regard.lens.monitor.history import LayerPlace, UpdateReading
from regard.lens.monitor.writers import scalars_of
from regard.nn import MultiHeadAttention


def train(numbers, *writers, layer=None, x=None):
    layer = layer or MultiHeadAttention(6, 2, mask=regard.causal())
    monitor = regard.Monitor(layer, every=10, writers=writers)
    for number in numbers:
        with monitor.update(number):
            layer(torch.randn(1, 5, 6) if x is None else x).sum().backward()
    return monitor


def test_a_line_of_json_for_each_reading(tmp_path):
    path = tmp_path / "run" / "attention.jsonl"
    monitor = train(range(21), JSONLinesWriter(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["update"] for line in lines] == [0, 10, 20]
    for quantity in monitor.quantities:
        values = monitor.values(quantity)
        for line, row in zip(lines, values, strict=True):
            assert [line[f"attention/{quantity}/0.{head}"] for head in range(2)] == row.tolist()
            assert line[f"attention/{quantity}/max"] == row.max()
            assert line[f"attention/{quantity}/min"] == row.min()


def test_a_resumed_run_replaces_the_lines_that_it_makes_anew(tmp_path):
    path = tmp_path / "attention.jsonl"
    train([0, 10, 20], JSONLinesWriter(path))
    with path.open("a") as file:
        file.write('{"update": 30, "atten')  # a power cut
    train([10, 20], JSONLinesWriter(path))
    lines = path.read_text().splitlines()
    assert [json.loads(line)["update"] for line in lines] == [0, 10, 20]


def test_numbers_that_json_has_none_for_are_null(tmp_path):
    path = tmp_path / "attention.jsonl"
    train([0], JSONLinesWriter(path), x=torch.full((1, 5, 6), torch.nan))
    line = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert line["attention/max_logit/0.0"] is None


def test_a_writer_that_fails_is_left_out_and_training_goes_on(tmp_path):
    (tmp_path / "file").touch()
    updates = []
    killed = JSONLinesWriter(tmp_path / "file" / "attention.jsonl")
    with pytest.warns(WriterWarning, match="JSONLinesWriter failed at update 0 and gets no more"):
        train([0, 10], killed, lambda update, scalars: updates.append(update))
    assert updates == [0, 10]


def test_scalars_sum_up_each_quantity():
    place = LayerPlace("cross", 3, "attn", heads=3, groups=1)
    reading = UpdateReading(7, (place,), {"entropy": torch.tensor([1.0, 5.0, 3.0]).double()})
    assert scalars_of(reading) == {
        **{f"attention/entropy/{name}": x for name, x in (("min", 1), ("mean", 3), ("max", 5))},
        **{f"attention/entropy/cross.3.{head}": x for head, x in enumerate((1, 5, 3))},
    }


def test_a_line_that_was_cut_off_is_dropped(tmp_path):
    path = tmp_path / "numbers.jsonl"
    path.write_text('{"update": 1}\n{"update": 2}')
    JSONLinesWriter(path)(5, {})
    assert path.read_text() == '{"update": 1}\n{"update": 5}\n'


def test_a_line_that_is_nested_too_deep_is_dropped(tmp_path):
    path = tmp_path / "attention.jsonl"
    path.write_text('{"update": 1}\n' + "[" * 5000 + "\n")
    JSONLinesWriter(path)(5, {})
    assert path.read_text() == '{"update": 1}\n{"update": 5}\n'
