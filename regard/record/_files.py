"""A recording in a folder: `recording.json` and a file of tensors that it names.

The first line of the index is a checksum of the lines below it, which contain the checksum of the
tensors' file, so corrupted data is detected. Version 1 had no checksums.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._files import as_any_new_file, as_os_error, replace_file
from regard._tensors import flat
from regard.errors import RecordError
from regard.inputs import Problem, Scoring, check
from regard.masks import dense
from regard.masks.bounds import AffineBounds, IndexBounds
from regard.masks.spans import Spans, trimmed
from regard.pattern import Pattern
from regard.record.layer import CallPattern, CallSize, Labels, Layer, split_into_calls
from regard.record.sites import KINDS

_INDEX, _TENSORS = "recording.json", "recording-{}.safetensors"
_FORMAT = "regard recording"
# Version 2 added checksums; version 3, used only with spans, makes older readers refuse the file.
_VERSION, _VERSION_WITH_SPANS = 2, 3
_SEAL = '{{"sha256": "{}",'
_NUMBERS = {"position": "position", "first": "first_start", "behind": "first_stop"}
"""Fields of `AffineBounds` by their names in the file."""


def write(folder: Path, layers: Sequence[Layer], labels: Labels, *, overwrite: bool) -> None:
    """Write the layers and labels of a recording; see `Recording.save`.

    Tensors are written to a file with a new name; the index that names it is then moved into place
    atomically. So at any moment the folder holds the complete old or new recording.
    """
    import safetensors.torch

    if folder.exists():
        _require_ours(folder, overwrite=overwrite)
    tensors = _Tensors()
    mark = secrets.token_hex(16)
    entries = [_described(layer, tensors) for layer in layers]
    has_spans = any("spans" in entry for entry in entries)
    index = {
        "format": _FORMAT,
        "version": _VERSION_WITH_SPANS if has_spans else _VERSION,
        "mark": mark,
        "tensors": "",
        "tokens": labels.target,
        "source_tokens": labels.source,
        "layers": entries,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _TENSORS.format(mark)
    try:
        with as_os_error(folder):  # the file's own name is random
            safetensors.torch.save_file(tensors.named, path, metadata={"mark": mark})
        as_any_new_file(path)
        index["tensors"] = _checksum(path)
        replace_file(folder / _INDEX, _sealed(index))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    for old in folder.glob(_TENSORS.format("*")):
        if old != path:
            old.unlink()


def _require_ours(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder with other files, or with a recording that must not be replaced."""
    if not folder.is_dir() or any(not _is_ours(path.name) for path in folder.iterdir()):
        raise FileExistsError(f"{folder} holds something else; name a new or empty folder")
    if (folder / _INDEX).exists() and not overwrite:
        raise FileExistsError(f"{folder} holds a recording; pass overwrite=True to replace it")


def _is_ours(name: str) -> bool:
    """Return whether a file belongs to a recording, or to an interrupted save."""
    return fnmatch(name, _TENSORS.format("*")) or fnmatch(name, f"*{_INDEX}*")


def read(folder: Path, device: str | torch.device) -> tuple[list[Layer], Labels]:
    """Read the layers and labels of a recording; see `load`."""
    from safetensors import SafetensorError, safe_open

    try:
        index = _opened(folder / _INDEX)
        tensors = folder / _TENSORS.format(_mark(index["mark"]))
        if index["version"] > 1 and _checksum(tensors) != index["tensors"]:
            raise RecordError(
                f"{tensors} is damaged: its checksum is not that of the file that was written; "
                "take it from a copy, or record and save again"
            )
        with safe_open(tensors, framework="pt", device=str(device)) as file:
            if (file.metadata() or {}).get("mark") != index["mark"]:
                raise RecordError(f"{tensors} belongs to another recording; save again")
            layers = [_restored(entry, file.get_tensor) for entry in index["layers"]]
        labels = Labels(_tokens(index["tokens"]), _tokens(index["source_tokens"]))
    except FileNotFoundError as error:
        raise RecordError(
            f"{folder} holds no recording: {Path(error.filename or '').name} is not there"
        ) from error
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        SafetensorError,
    ) as error:
        raise RecordError(f"the recording in {folder} is damaged: {error}") from error
    return layers, labels


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _sealed(index: Mapping[str, Any]) -> bytes:
    """Serialize an index; its first line is the checksum of the rest."""
    rest = (json.dumps(index).removeprefix("{") + "\n").encode()
    return f"{_SEAL.format(sha256(rest).hexdigest())}\n".encode() + rest


def _opened(path: Path) -> dict[str, Any]:
    """Read an index, and verify its checksum."""
    data = path.read_bytes()
    index: dict[str, Any] = json.loads(data)
    if index["format"] != _FORMAT or index["version"] not in range(1, _VERSION_WITH_SPANS + 1):
        raise RecordError(
            f"{path} is {index['format']!r}, version {index['version']!r}, but this regard reads "
            f"{_FORMAT!r}, versions 1 to {_VERSION_WITH_SPANS}"
        )
    first, _, rest = data.partition(b"\n")
    if index["version"] > 1 and first.decode() != _SEAL.format(sha256(rest).hexdigest()):
        raise RecordError(
            f"{path} is damaged: its checksum is not that of the text that was written; take it "
            "from a copy, or record and save again"
        )
    return index


class _Tensors:
    """Tensors to write, deduplicated, since layers share masks and position biases."""

    def __init__(self) -> None:
        self.named: dict[str, Tensor] = {}
        self._known: dict[tuple[object, ...], str] = {}

    def add(self, tensor: Tensor | None) -> str | None:
        """Add a tensor and return its name, or None for None."""
        if tensor is None:
            return None
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if place not in self._known:
            name = str(len(self.named))
            self._known[place] = name
            self.named[name] = tensor.detach().cpu().contiguous().clone()
        return self._known[place]


def _described(layer: Layer, tensors: _Tensors) -> dict[str, Any]:
    pattern = layer.pattern
    problem = pattern.problem
    batch, heads = problem.heads
    bounds, spans = problem.rows.bounds, problem.rows.spans
    entry: dict[str, Any] = {
        "name": layer.name,
        "kind": layer.kind,
        "index": layer.index,
        "heads": layer.heads,
        "rows": _numbered(layer.rows),
        "leading": problem.leading,
        "scale": problem.scale,
        "softcap": problem.softcap,
        "query": tensors.add(problem.query),
        "key": tensors.add(problem.key),
        "alibi": tensors.add(problem.alibi),
        "sink": tensors.add(problem.sink),
        "allowed": tensors.add(problem.rows.allowed),
        "bias": tensors.add(problem.rows.bias),
        "logsumexp": tensors.add(pattern.logsumexp.reshape(batch * heads, problem.queries)),
    }
    if len(sizes := layer.call_sizes) > 1:
        entry["calls"] = sizes
    if layer.kept:
        entry["kept"] = {name: tensors.add(tensor) for name, tensor in layer.kept.items()}
    if spans is not None:
        numbers = [None if number == -math.inf else number for number in spans.added.tolist()]
        entry["spans"] = [tensors.add(spans.start), tensors.add(spans.stop), numbers]
    if isinstance(bounds, AffineBounds):
        return entry | {"line": {name: getattr(bounds, field) for name, field in _NUMBERS.items()}}
    table = (bounds.positions, bounds.start, bounds.stop)
    return entry | {"table": [tensors.add(tensor) for tensor in table]}


def _numbered(rows: Sequence[int]) -> int | tuple[int, ...]:
    """Return the number of rows if they are the first ones, otherwise their indices."""
    return len(rows) if rows == range(len(rows)) else tuple(rows)


def _restored(entry: Mapping[str, Any], read: Callable[[str], Tensor]) -> Layer:
    def tensor(name: str) -> Tensor | None:
        return None if entry[name] is None else read(entry[name])

    leading = tuple(_whole(size) for size in entry["leading"])
    query, key = read(entry["query"]), read(entry["key"])
    if query.ndim != 4 or min(leading, default=0) < 0 or flat(leading) != query.shape[:2]:
        raise ValueError(f"a query of shape {tuple(query.shape)} for heads of {leading}")
    allowed = tensor("allowed")
    scoring = Scoring(
        mask=None if allowed is None else dense(allowed),
        scale=entry["scale"],
        softcap=entry["softcap"],
        bias=tensor("bias"),
        alibi=tensor("alibi"),
        sink=tensor("sink"),
    )
    problem = check(query, key, scoring=scoring)
    bounds, spans = _bounds(entry, problem, read), _spans(entry, problem, read)
    if spans is not None:
        bounds, spans = trimmed(bounds, spans)
    problem = replace(
        problem, leading=leading, rows=replace(problem.rows, bounds=bounds, spans=spans)
    )
    logsumexp = tensor("logsumexp")
    if logsumexp is not None and logsumexp.numel() != query.shape[:-1].numel():
        raise ValueError(f"logsumexp has shape {tuple(logsumexp.shape)}")
    if entry["kind"] not in KINDS:
        raise ValueError(f"kind {entry['kind']!r}")
    pattern, rows = Pattern.of(problem, logsumexp), entry["rows"]
    rows = range(_whole(rows)) if isinstance(rows, int) else tuple(_whole(row) for row in rows)
    if len(rows) != problem.queries or len(entry["heads"]) != problem.heads[1]:
        raise ValueError("rows or heads are not as many as the query has")
    return Layer(
        name=str(entry["name"]),
        kind=entry["kind"],
        index=_whole(entry["index"]),
        heads=tuple(_whole(head) for head in entry["heads"]),
        rows=rows,
        kept=_kept(entry, problem, read),
        get_pattern=lambda: pattern,
        get_calls=_calls(entry, pattern),
    )


def _kept(
    entry: Mapping[str, Any], problem: Problem, read: Callable[[str], Tensor]
) -> dict[str, Tensor]:
    """Restore what was kept of the values, if anything was."""
    kept = {str(name): read(tensor) for name, tensor in entry.get("kept", {}).items()}
    lead, heads = problem.leading[:-1], (problem.heads[1], problem.key.shape[1])
    for name, tensor in kept.items():
        shape = tuple(tensor.shape)
        leads = [(*lead, count, problem.keys) for count in heads]
        fits = leads if problem.leading else [(problem.keys,)]
        if not any(shape in (one, (*one, *shape[-1:])) for one in fits):
            raise ValueError(f"kept {name!r} of shape {shape}")
    return kept


def _calls(entry: Mapping[str, Any], pattern: Pattern) -> Callable[[], list[CallPattern]] | None:
    """Restore the sizes of the calls, which files of single calls do not contain."""
    if "calls" not in entry:
        return None
    sizes = [CallSize(*(_whole(number) for number in call)) for call in entry["calls"]]
    return split_into_calls(pattern, sizes)


def _bounds(
    entry: Mapping[str, Any], problem: Problem, read: Callable[[str], Tensor]
) -> AffineBounds | IndexBounds:
    """Restore the bounds of the rows, clamped to the number of keys."""
    if "line" in entry:
        position, first, stop = (entry["line"][name] for name in _NUMBERS)
        return AffineBounds(
            problem.queries,
            problem.keys,
            problem.query.device,
            _whole(position),
            None if first is None else _whole(first),
            None if stop is None else _whole(stop),
        )
    positions, start, stop = (read(name) for name in entry["table"])
    for bound in (positions, start, stop):
        _check_table(bound, problem)
    return IndexBounds(positions.long(), *_cut(start, stop, problem.keys))


def _spans(
    entry: Mapping[str, Any], problem: Problem, read: Callable[[str], Tensor]
) -> Spans | None:
    """Restore the spans, if there are any."""
    if "spans" not in entry:
        return None
    *names, added = entry["spans"]
    start, stop = (read(name) for name in names)
    for table in (*start, *stop):
        _check_table(table, problem)
    if not len(added) == len(start) == len(stop) > 0:
        raise ValueError(f"{len(start)} and {len(stop)} spans, which add {added}")
    numbers = [-math.inf if number is None else float(number) for number in added]
    if not all(number < math.inf for number in numbers):
        raise ValueError(f"spans that add {numbers}")
    return Spans(
        *_cut(start, stop, problem.keys), torch.tensor(numbers, dtype=torch.float64, device="cpu")
    )


def _check_table(table: Tensor, problem: Problem) -> None:
    batch, heads = problem.heads
    fits = table.ndim == 3 and table.shape[-1] == problem.queries
    if not fits or table.shape[0] not in (1, batch) or table.shape[1] not in (1, heads):
        raise ValueError(f"a table of shape {tuple(table.shape)}")
    if table.is_floating_point():
        raise ValueError(f"a table of {table.dtype}")


def _cut(start: Tensor, stop: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """Clamp ranges to the number of keys."""
    start = start.long().clamp(0, keys)
    return start, start.maximum(stop.long().clamp(0, keys))


def _mark(mark: Any) -> str:
    """Validate the part of a file name."""
    if not isinstance(mark, str) or not re.fullmatch("[0-9a-f]{32}", mark):
        raise ValueError(f"mark {mark!r}")
    return mark


def _whole(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or abs(number) > 2**48:
        raise ValueError(f"{number!r} where an integer belongs")
    return number


def _tokens(rows: Any) -> tuple[tuple[str, ...], ...] | None:
    if rows is None:
        return None
    return tuple(tuple(str(name) for name in names) for names in rows)
