"""The forward beside that of every library that is installed: it is slower than none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from benchmarks.cases import DTYPES, Case, name_of
from benchmarks.peers import PEERS, Ready, version
from benchmarks.report import Report, milliseconds
from regard.cli.timing import interleaved

# None so long that those which store the weights run out of memory.
CASES = (Case(8, 12, 256, 64), Case(1, 12, 1024, 64), Case(1, 12, 4096, 64))


def compared(report: Report, cases: Sequence[Case] = CASES) -> None:
    """Print the tables."""
    for dtype in DTYPES:
        for case in cases:
            report.table(
                f"peers {name_of(dtype)} {case}: forward, causal",
                *(("what", 30), ("version", 12), ("ms", 9), ("× ours", 15), ("off torch by", 12)),
            )
            with torch.no_grad():
                _rows(report, case, dtype)


def _rows(report: Report, case: Case, dtype: torch.dtype) -> None:
    tensors = case.tensors(dtype)
    ready = {"regard": Ready(lambda: case.ours(*tensors))}
    missing: dict[str, str] = {}
    for name, peer in PEERS.items():
        if dtype in peer.dtypes:
            try:
                ready[name] = peer.prepare(*tensors)
            except ImportError as error:
                missing[name] = str(error)
    tasks: dict[str, Callable[[], object]] = {name: one.call for name, one in ready.items()}
    seconds = interleaved(tasks).seconds
    wanted = ready["torch SDPA"].tensor(ready["torch SDPA"].call()).float()
    for name, taken in seconds.items():
        off = (ready[name].tensor(ready[name].call()).float() - wanted).abs().max().item()
        package = PEERS[name].package if name in PEERS else "regard"
        ratio = report.at_least(name, taken / seconds["regard"], 1.0 if name in PEERS else None)
        report.row(name, version(package), milliseconds(taken), ratio, f"{off:.0e}")
    for name, why in missing.items():
        report.row(name, f"missing: {why}")
