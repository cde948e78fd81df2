"""Give readers of a user's files damaged ones: each is read, or refused by the project's errors.

``python tools/fuzz_readers.py [--reader NAME] [--seconds N]`` makes small files, changes bytes of
them and reads them. Whatever else is raised, takes longer than `LIMIT` or more memory than `MEMORY`
is a finding: it is printed, and the damaged file is kept in build/fuzz. Names and numbers decide
the damage: ``--reader NAME --number N`` makes one input again, but of a run, which has times in it,
and ``--first N`` goes on behind the N inputs of an earlier call.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import process_time
from types import FrameType

import torch

from fuzz_seeds import READERS, Reader

ROOT = Path(__file__).parents[1]
FOUND = ROOT / "build" / "fuzz"
LIMIT = 10.0  # seconds of the processor for one input
MEMORY = 4 << 30  # bytes that the process may take beyond those that it has at the beginning
LARGEST = 1 << 20  # bytes of a damaged file
_EDGES = (0, 1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
_WORDS = (
    *("-1", "0", "1e999", "-1e-9", "NaN", "null", "true", '""', "[]", "{}", "9" * 400, "0.5"),
    *("18446744073709551616", "[[[[", '"\\ud800"', '"\\u0000"', "[" * 5000),
)


class TooLongError(BaseException):
    """An input that is read for longer than `LIMIT`; no reader's `except Exception` catches it."""


@dataclass(frozen=True)
class Finding:
    """What a reader raised that it must not: the input's number, the error and where it is from."""

    reader: str
    number: int
    file: str
    what: str
    place: str


def damaged(data: bytes, dice: random.Random) -> bytes:
    """Change one to three places: bits, bytes, whole numbers, words of JSON, or the length."""
    for _ in range(dice.choice((1, 1, 2, 3))):
        at, span, new = dice.choice((_bytes, _text))(data, dice)
        data = (data[:at] + new + data[at + span :])[:LARGEST]
    return data


def _bytes(data: bytes, dice: random.Random) -> tuple[int, int, bytes]:
    """Where to replace how many bytes by which."""
    at = dice.randrange(len(data) + 1)
    # Headers decide most, and are small beside the numbers behind them.
    at = min(at, dice.randrange(200)) if dice.random() < 0.3 else at
    span = min(dice.choice((1, 2, 4, 8, 64, 1000)), len(data) - at)
    old, width = data[at : at + span], dice.choice((1, 2, 4, 8))
    number = (dice.choice(_EDGES) % 256**width).to_bytes(width, "little")
    return dice.choice(
        [
            (at, min(span, 1), bytes(one ^ 1 << dice.randrange(8) for one in old[:1])),
            (at, span, dice.randbytes(span)),
            (at, span, b""),
            (at, len(data) - at, b""),
            (at, 0, dice.randbytes(dice.choice((1, 8, 100)))),
            (at, span, old * dice.choice((2, 3, 50))),
            (at, min(width, span), number),
        ]
    )


def _text(data: bytes, dice: random.Random) -> tuple[int, int, bytes]:
    """Another word of JSON or TOML, or other digits, which leave the length of a header."""
    is_number = dice.random() < 0.5
    words = [*re.finditer(rb"\d+" if is_number else rb'"[^"]*"|-?\d[\d.e+-]*|\w+', data)]
    if not words:
        return 0, 0, b""
    one = dice.choice(words)
    size = len(one[0])
    new = "".join(dice.choices("0123456789", k=size)) if is_number else dice.choice(_WORDS)
    return one.start(), size, new.encode()


@contextmanager
def prepared(name: str) -> Iterator[Callable[[int], Finding | None]]:
    """Make the small files of a reader; in the block, give it the input of a number."""
    reader = READERS[name]
    with tempfile.TemporaryDirectory() as made:
        whole, work = Path(made, "whole"), Path(made, "work")
        whole.mkdir()
        torch.manual_seed(0)
        reader.make(whole)
        files = sorted(one.relative_to(whole) for one in whole.rglob("*") if one.is_file())
        shutil.copytree(whole, work)
        reader.read(work)  # what is whole is read

        def give(number: int) -> Finding | None:
            dice = random.Random(f"{name} {number}")
            file = dice.choice(files)
            bad = damaged((whole / file).read_bytes(), dice)
            (work / file).write_bytes(bad)
            kept = FOUND / f"{name}-{number}-{file.name}"  # there too if the process dies
            FOUND.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(bad)
            raised = _raised(reader, work)
            (work / file).write_bytes((whole / file).read_bytes())
            if raised is None:
                kept.unlink()
                return None
            frames = traceback.extract_tb(raised.__traceback__)
            own = [one for one in frames if "/regard/" in one.filename] or [*frames]
            where = f"{own[-1].filename.rpartition('/regard/')[2]}:{own[-1].lineno}"
            what = f"{type(raised).__name__}: {' '.join(str(raised).split())[:160]}"
            return Finding(name, number, str(file), what, where)

        yield give


def _raised(reader: Reader, folder: Path) -> BaseException | None:
    """What the reader raised, unless that is how it refuses a file."""

    def too_long(_number: int, _frame: FrameType | None) -> None:
        raise TooLongError(f"more than {LIMIT:g} s")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(folder)
    except reader.refuses:
        return None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of a library in Rust is no Exception
        return error
    else:
        return None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def fuzz(name: str, seconds: float, first: int = 0) -> int:
    """Read damaged files for so long, print each kind of finding once, and return their number."""
    kinds: dict[tuple[str, str], int] = {}
    with prepared(name) as give:
        end, number = process_time() + seconds, first
        for number in count(first):
            if process_time() > end:
                break
            if (found := give(number)) is not None:
                kind = (found.what.partition(":")[0], found.place)
                if kind not in kinds:
                    print(f"  {name} {number} ({found.file}): {found.what} at {found.place}")
                kinds[kind] = kinds.get(kind, 0) + 1
    total = f"{sum(kinds.values())} findings of {len(kinds)} kinds"
    print(f"{name}: {number - first} inputs from {first} on, {total}", flush=True)
    return len(kinds)


def _limit_memory() -> None:
    import resource

    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, most))


def main() -> int:
    """Fuzz the readers, or make one input again; the status is 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reader", choices=READERS, help="this one alone")
    parser.add_argument("--seconds", type=float, default=60, help="of the processor, for each")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--number", type=int, help="make this input of --reader again")
    given = parser.parse_args()
    if sys.platform == "linux":
        _limit_memory()
    if given.number is None or given.reader is None:
        names = [given.reader] if given.reader else [*READERS]
        return int(sum(fuzz(name, given.seconds, given.first) for name in names) > 0)
    with prepared(given.reader) as give:
        found = give(given.number)
    print(found or "read, or refused as it should be")
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main())
