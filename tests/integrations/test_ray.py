"""An atlas in parts that any process reads, and by the processes of a cluster of Ray."""

import os
import random
import signal
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.errors import Error
from regard.integrations.ray import BatchReader, atlas_on_ray
from regard.lens.head_atlas.state import State

TEXTS = [
    "Tom had a red kite. Tom ran.",
    "The cat sat. The cat ran.",
    "Lily ran to the park again.",
    "The cat sat. The cat ran.",  # left out
    "A frog, a fish and a fox met.",
]
OPTIONS = {"effects": 0.5, "length": 7, "probes": False}


@pytest.fixture(scope="module")
def local():
    """The atlas that this process reads by itself."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield regard.lens.atlas(regard.models.open(), TEXTS, **OPTIONS)
    torch.set_num_threads(before)


def same(found, expected):
    """Whether two atlases are equal to the last digit, with their examples."""
    assert found.about == expected.about
    assert found.rows == expected.rows
    assert found.state.next_document == expected.state.next_document
    for row in expected.rows:
        head = row["layer"], row["head"]
        assert found.details(*head) == expected.details(*head)
    tensors, others = (one.state.sums.tensors() for one in (found, expected))
    return tensors.keys() == others.keys() and all(
        torch.equal(one, others[name]) for name, one in tensors.items()
    )


def documents(model):
    """The documents that are read, as a worker takes them."""
    ids = [np.array(model.read(text).ids, dtype=np.int32) for text in TEXTS]
    return [(number, one) for number, one in enumerate(ids) if number != 3]


def test_states_of_batches_add_up_in_any_order(local):
    about = local.state.about
    reader = BatchReader(None, about)
    rest = documents(regard.models.open())
    random.Random(0).shuffle(rest)
    states, tokens = [], 0
    for size in (1, 2, 1):
        batch, rest = rest[:size], rest[size:]
        numbers, ids = zip(*batch, strict=True)
        row = reader({"number": np.array(numbers), "ids": ids})
        tokens += int(row["tokens"][0])
        states.append(State.unpacked(row["state"][0].tobytes(), "a worker's state"))
    whole = State(about, [], next_document=about["last_document"])
    for state in states:
        whole.merge(state)
    with pytest.raises(Error, match="would be counted twice"):
        whole.merge(states[1])
    assert tokens == about["tokens"]
    assert same(regard.lens.Atlas(whole, tokens=local._tokens, sources=local._sources), local)


def test_a_worker_with_another_model_is_refused(local):
    about = {**local.state.about, "model_fingerprint": "0" * 32}
    row = BatchReader(None, about)({"number": np.array([0]), "ids": [np.array([3, 5])]})
    assert "would read something else: its model_fingerprint is" in row["error"][0]


@pytest.mark.parametrize("name", ["workers", "batch"])
def test_numbers_out_of_range_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} is 0; expected at least 1"):
        atlas_on_ray(None, TEXTS, **{name: 0})


@pytest.fixture
def ray(monkeypatch):
    """Ray, whose processes have this one's priority, stopped in the end."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not here: make thorough installs it")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    import ray

    yield ray
    ray.shutdown()


STORE = 200 * 2**20
QUIET = {"include_dashboard": False, "log_to_driver": False}


def changed(monkeypatch, before_reading):
    """Let workers call a function with a document's number before they read it."""

    class Changed(BatchReader):
        def _opened(self):
            reader = super()._opened()
            read = reader.read

            def changed_read(document, **rest):
                before_reading(document.number)
                return read(document, **rest)

            reader.read = changed_read
            return reader

    monkeypatch.setattr("regard.integrations.ray.BatchReader", Changed)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
def test_a_cluster_reads_the_same_although_a_process_is_killed(
    ray, local, monkeypatch, tmp_path, threads
):
    ray.init(num_cpus=2, object_store_memory=STORE, **QUIET)
    killed = tmp_path / "killed"

    def die_once(number):
        if number == 2 and not killed.exists():  # in the middle of its batch
            killed.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)

    changed(monkeypatch, die_once)
    found = atlas_on_ray(None, TEXTS, **OPTIONS, workers=2, batch=30)
    assert killed.exists()
    assert same(found, local)
    threads(3)
    with pytest.raises(Error, match="no machine of the cluster has 3 processors"):
        atlas_on_ray(None, TEXTS, **OPTIONS)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
def test_a_cluster_reads_the_same_although_a_machine_is_lost(ray, local, monkeypatch, tmp_path):
    from ray.cluster_utils import Cluster

    own = {"num_cpus": 1, "object_store_memory": STORE}
    cluster = Cluster(initialize_head=True, head_node_args={**own, "include_dashboard": False})
    lost = cluster.add_node(**own)
    ray.init(address=cluster.address, log_to_driver=False)
    reading, name = tmp_path / "reading", lost.node_id

    def wait_to_be_lost(number):
        import ray

        if ray.get_runtime_context().get_node_id() == name:
            Path(reading).touch()
            time.sleep(600)

    def lose():
        while not reading.exists():
            time.sleep(0.1)
        cluster.remove_node(lost, allow_graceful=False)

    changed(monkeypatch, wait_to_be_lost)
    threading.Thread(target=lose, daemon=True).start()
    try:
        found = atlas_on_ray(None, TEXTS, **OPTIONS, workers=2, batch=5)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert reading.exists()
    assert same(found, local)
