"""Fixtures that tests of several folders use."""

import itertools
import re
import signal
from collections import defaultdict

import jaxtyping
import pytest
import torch
from support.browser import browser, pages  # noqa: F401 - fixtures
from support.cpu_paths import EACH_SET, SETS
from support.firefox import firefox  # noqa: F401 - a fixture
from support.pairwise import each_once, pairwise
from support.real import smollm2  # noqa: F401 - a fixture

from regard.backends.native import library

# Folders and files that `make check` leaves out: they measure memory, start processes or browsers,
# compile models or draw many examples.
SLOW = (
    "core/test_memory",
    "core/test_torch_samples",
    "experiments/distributed/",
    "experiments/test_flex",
    "experiments/triton/",
    "gpt/test_cuda_graphs",
    "gpt/test_ranks",
    "gpt/test_resume",
    "gpt/test_shipped",
    "intercept/test_compiled",
    "intervene/test_memory",
    "lens/test_effects_beside_outputs",
    "lens/test_effects_in_batches",
    "native/test_fences",
    "native/test_processes",
    "page/browser/",
    "page/file/test_live",
    "page/test_fuzz",
    "record/models/test_blocks",
    "record/models/test_long",
    "record/test_extras",
    "record/test_memory",
    "record/test_streaming_calls",
    "website/test_pages",
    "website/test_slides",
)


@pytest.fixture(scope="session", autouse=True)
def interrupts():
    """Let Ctrl-C interrupt the tests' processes where it was ignored, as under nohup."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture(params=EACH_SET or ["none"])
def instructions(request):
    """Compute with each set of instructions in turn."""
    loaded = library.load()
    if loaded is None:
        yield None
        return
    before = loaded.regard_instructions()
    assert loaded.regard_choose(request.param.encode()) == 0
    yield request.param
    loaded.regard_choose(before)


@pytest.fixture
def threads():
    """Set the number of threads, and set it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def unchecked():
    """Leave the shapes that annotations name unchecked: in a graph, sizes are not numbers."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.hookimpl(tryfirst=True)  # before those of a marker are left out
def pytest_collection_modifyitems(items):
    """Leave out repetitions, and to `make thorough` the combinations beyond those chosen."""
    _leave_out_repeated(items)
    for item in items:
        path = item.path.as_posix()
        if any(f"tests/{place}" in path for place in SLOW):
            item.add_marker(pytest.mark.slow)
    crossed = defaultdict(list)
    for item in items:
        if item.get_closest_marker("thorough") is not None:
            continue
        choose, values = pairwise, _values(item)
        if item.get_closest_marker("each_once") is not None:
            choose, values = each_once, [*itertools.chain(*values)]
        if choose is each_once or len(values) > 2:
            crossed[item.parent.nodeid, item.originalname, choose].append((item, values))
    for (*_, choose), combinations in crossed.items():
        chosen = choose([values for _, values in combinations])
        for one in {*range(len(combinations))}.difference(chosen):
            combinations[one][0].add_marker(pytest.mark.thorough)


def _values(item):
    """What a test has of each list of its parameters, told apart by identity."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    lists = [marker.args[0] for marker in item.iter_markers("parametrize")]
    lists = [re.findall(r"\w+", names) if isinstance(names, str) else names for names in lists]
    of_fixtures = [[name] for name in params.keys() - {*itertools.chain(*lists)}]
    return [tuple(id(params[name]) for name in names) for names in lists + sorted(of_fixtures)]


def _leave_out_repeated(items):
    """Leave out what no set of instructions makes a difference to: other backends, all but once."""

    def repeated(item):
        values = item.callspec.params if hasattr(item, "callspec") else {}
        other = values.get("backend") in {"torch_sdpa", "eager"}
        return other and values.get("instructions", "none") not in {"none", *SETS[:1]}

    items[:] = [item for item in items if not repeated(item)]
