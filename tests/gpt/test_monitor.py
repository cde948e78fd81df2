"""A monitor among the callbacks of `train`."""

import json

import pytest
import torch
from support.small_runs import go, losses, resume, same, weights

import regard
from regard.lens.monitor import AlarmWarning, JSONLinesWriter


def test_every_so_many_updates_are_read_and_training_is_as_without(tmp_path, whole):
    monitor = regard.Monitor(every=4)
    go(tmp_path / "m", callbacks=[monitor])
    assert monitor.updates == (0, 4, 8)
    assert [(head.kind, head.layer, head.head) for head in monitor.heads] == [
        ("self", 0, 0),
        ("self", 0, 1),
    ]
    assert losses(tmp_path / "m") == losses(whole)
    assert same(weights(tmp_path / "m"), weights(whole))


def test_a_resumed_run_reads_what_it_would_have_read(tmp_path, cut):
    writer = JSONLinesWriter(tmp_path / "attention.jsonl")
    whole, rest = regard.Monitor(every=3), regard.Monitor(every=3, writers=[writer])
    go(tmp_path / "whole", callbacks=[whole])
    resume(cut, callbacks=[rest])  # after five updates
    assert rest.updates == (6,)
    assert torch.equal(rest.values("entropy")[0], whole.values("entropy")[2])
    (line,) = (tmp_path / "attention.jsonl").read_text().splitlines()
    assert json.loads(line)["update"] == 6


def test_an_alarm_may_stop_the_training_run_like_ctrl_c(tmp_path, whole):
    def stop(alert):
        raise KeyboardInterrupt

    alarm = regard.lens.Alarm("entropy", below=100)
    monitor = regard.Monitor(every=5, alarms=[alarm], on_alarm=stop)
    with pytest.warns(AlarmWarning, match="update 0: entropy of layer 0"):
        result = go(tmp_path / "m", callbacks=[monitor])
    assert result.interrupted
    assert losses(tmp_path / "m") == losses(whole)[:1]
    resume(tmp_path / "m")
    assert same(weights(tmp_path / "m"), weights(whole))
