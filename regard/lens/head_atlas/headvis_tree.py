"""Writes and reads the folder that HeadVis' frontend shows, as Neuronpedia writes it.

``config.json``, ``scatter_data.json``, ``heads/L{layer}H{head}.json``, and two empty objects that
say that there is no server: ``server_config.json`` and ``attributions/manifest.json``. The format
is that of `hijohnnylin/neuronpedia`, ``utils/neuronpedia-utils/neuronpedia_utils/headvis/``.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from regard._files import replace_file
from regard.lens.head_atlas.columns import COLUMNS
from regard.lens.head_atlas.headvis import METRICS

__all__ = ["MEANINGS", "export_headvis"]

MEANINGS = {column.name: column.meaning for column in COLUMNS if column.name in METRICS}
"""What each metric says, in words."""

_INTERVALS = 10
_TOP_TOKENS = 50
_DIGITS = 4  # of attention values, as they round them


class _Atlas(Protocol):
    @property
    def about(self) -> dict[str, Any]: ...
    @property
    def columns(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def rows(self) -> list[dict[str, Any]]: ...
    def details(self, layer: int, head: int) -> dict[str, Any]: ...


def export_headvis(
    atlas: _Atlas,
    folder: str | Path,
    *,
    name: str | None = None,
    dataset: str | None = None,
) -> Path:
    """Write an atlas as the tree that HeadVis' frontend and Neuronpedia's loaders read.

    It lies in ``folder/NAME/headvis/DATASET``, where their loaders look for it; the frontend takes
    that innermost folder as its ``data``. What differs from a tree that they compute:

    - a sequence is the window around one query of ``examples["deciles"]``, not a whole document,
      and holds the strongest keys of that query alone, those within the window. Its position in
      the document is lost; distances are kept. `interval` is our decile, of queries, not sequences;
    - the keys on which a head rests are left out, so that no entry is a sink's; their share is
      in our column ``resting``;
    - `qk_distance_histogram` is our profile, over all weight beside the sinks, not over the
      sequences that are kept, and `histogram` counts queries, by their largest weight beside the
      sinks, not sequences. `mean_max_activation` is not measured;
    - the scatter has all our columns as further metrics, in full precision.

    Args:
        atlas: an `Atlas`.
        folder: where; created if it is missing.
        name: the model's id at Neuronpedia; by default its own name.
        dataset: what the corpus is called; by default its names.

    Returns:
        The innermost folder.

    Raises:
        FileExistsError: if it holds a tree already.
        ValueError: for a name without a letter or digit.
        OSError: if it can't be written; ``config.json`` comes last, so that no loader takes what
            is there for a whole.

    Example:
        >>> import regard, tempfile
        >>> atlas = regard.lens.atlas(regard.models.open(), ["The cat sat on."], probes=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tree = regard.lens.export_headvis(atlas, folder, name="tiny", dataset="cats")
        ...     tree.name, len(regard.lens.load_headvis(tree).rows)
        ('cats', 20)
    """
    about = atlas.about
    name = _file_name(str(about["model"]) if name is None else name, "name")
    dataset = ", ".join(about["corpus"]) if dataset is None else dataset
    target = Path(folder) / name / "headvis" / _file_name(dataset, "dataset")
    if (target / "config.json").exists():
        raise FileExistsError(f"{target} holds a tree already; give another folder, or remove it")
    for part in ("heads", "attributions"):
        (target / part).mkdir(parents=True, exist_ok=True)
    extra = [c for c in atlas.columns if c["name"] not in METRICS and _is_numeric(c, atlas.rows)]
    names = [*METRICS, *(column["name"] for column in extra)]
    meanings = MEANINGS | {column["name"]: column["meaning"] for column in extra}
    scatter = [
        {"layer": row["layer"], "head": row["head"]}
        | {metric: _finite(row.get(metric)) for metric in names}
        for row in atlas.rows
    ]
    for row in atlas.rows:
        details = atlas.details(row["layer"], row["head"])
        _write(
            target / "heads" / f"L{row['layer']}H{row['head']}.json",
            _head(details, int(about["length"])),
        )
    _write(target / "scatter_data.json", scatter)
    _write(target / "server_config.json", {})
    _write(target / "attributions" / "manifest.json", {})
    _write(target / "config.json", _config(atlas, name, dataset, names, meanings))
    return target


def _config(
    atlas: _Atlas, name: str, dataset: str, metrics: Sequence[str], meanings: Mapping[str, str]
) -> dict[str, Any]:
    about = atlas.about
    heads = [[row["layer"], row["head"]] for row in atlas.rows]
    layers = sorted({layer for layer, _ in heads})
    sizes = {
        "num_hidden_layers": max(layers, default=-1) + 1,
        "num_attention_heads": max((head for _, head in heads), default=-1) + 1,
    }
    origin = {"model_name": about["model"], "np_model_id": name, "dataset_name": dataset}
    pipeline = origin | {
        "dataset_config_name": None,
        "dataset_split": "train",
        "dataset_text_field": "text",
        "n_sequences": about["documents"],
        "seq_len": about["length"],
        "batch_size": 1,
        "exports_dir": "",
        "output_run_dir": "",
        "device": about.get("device", "cpu"),
        "dtype": about.get("dtype", "float32"),
        "attn_implementation": "regard",
        "induction_attention_threshold": 0.01,
        "trust_remote_code": False,
        "min_free_vram_gb": 0.0,
        "streaming": True,
        "model_cache_dir": "",
        "delete_model_cache": False,
        "revision": None,
        "dataset_revision": None,
        "n_intervals": _INTERVALS,
        "samples_per_interval": 0,
        "samples_per_top_interval": 0,
        "sparse_topk_per_row": 0,
        "sparse_threshold": 0.0,
        "sample_seed": about["seed"],
        "warmup_size": 0,
        "created_at": datetime.now(UTC).isoformat(),
        "actual_sequences_processed": about["documents"],
        **sizes,
        "attention_layer_indices": layers,
        "made_with": about.get("made_with"),
        "model_fingerprint": about.get("model_fingerprint"),
    }
    return origin | {
        "heads": heads,
        "n_layers": sizes["num_hidden_layers"],
        "n_heads": sizes["num_attention_heads"],
        "n_intervals": _INTERVALS,
        "metrics": list(metrics),
        "metric_descriptions": {metric: meanings[metric] for metric in metrics},
        "head_data_pattern": "L{layer}H{head}.json",
        "has_umap": False,
        "umap_heads": [],
        "custom_plots": [
            {"key": "qk_distance_histogram", "label": "Distance beside the sinks"},
            {"key": "histogram", "label": "Largest weight of a query"},
        ],
        "custom_tables": [
            {"key": "top_query_tokens", "label": "Tokens that look"},
            {"key": "top_key_tokens", "label": "Tokens looked at"},
        ],
        "statistics_display": {
            "n_samples": {"label": "Windows kept", "format": "default"},
            "mean_max_activation": {"label": "Mean of largest weights", "format": "default"},
        },
        "pipeline_config": pipeline,
    }


def _head(details: Mapping[str, Any], length: int) -> dict[str, Any]:
    sequences = [
        sequence
        for number, example in enumerate(details["examples"].get("deciles") or ())
        if (sequence := _sequence(number, example)) is not None
    ]
    profile, histogram = details["profile"], details["histogram"]
    edges = list(profile["edges"])
    last = max(length, 2 * edges[-1], 1)  # their last bin is closed
    return {
        "sequences": sequences,
        "qk_distance_histogram": {
            "bin_edges": [*edges, last],
            "bin_values": [_finite(share) or 0 for share in profile["share"]],
        },
        "top_query_tokens": _top_tokens(sequences, query=True),
        "top_key_tokens": _top_tokens(sequences, query=False),
        "histogram": {
            "bin_edges": list(histogram["edges"]),
            "bin_values": list(histogram["counts"]),
        },
        "statistics": {"n_samples": len(sequences), "mean_max_activation": None},
    }


def _sequence(number: int, example: Mapping[str, Any]) -> dict[str, Any] | None:
    """Make a sequence of an example; None if none of its links lies within its window."""
    tokens, start = list(example["tokens"]), example["start"]
    size, query = len(tokens), example["position"] - start
    inside = sorted(
        (query * size + link["position"] - start, round(link["weight"], _DIGITS))
        for link in example["links"]
        if 0 <= link["position"] - start < size
    )
    if not inside:
        return None
    return {
        "sequence_id": number,
        "interval": example["decile"],
        "tokens": tokens,
        "attention_indices": [index for index, _ in inside],
        "attention_values": [value for _, value in inside],
        "seq_len": size,
        "max_activation": round(max(link["weight"] for link in example["links"]), _DIGITS),
    }


def _top_tokens(sequences: Iterable[Mapping[str, Any]], *, query: bool) -> list[dict[str, Any]]:
    """Rank tokens by the weight of their queries, or on them as keys."""
    weights: Counter[str] = Counter()
    for one in sequences:
        size = one["seq_len"]
        for index, value in zip(one["attention_indices"], one["attention_values"], strict=True):
            weights[one["tokens"][index // size if query else index % size]] += value
    return [
        {"token": token, "weight": round(weight, _DIGITS)}
        for token, weight in weights.most_common(_TOP_TOKENS)
    ]


def _is_numeric(column: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> bool:
    values = [row.get(column["name"]) for row in rows]
    return any(v is not None for v in values) and all(
        v is None or (isinstance(v, (int, float)) and not isinstance(v, bool)) for v in values
    )


def _finite(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _file_name(text: str, argument: str) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
    if not cleaned:
        raise ValueError(f"{argument}={text!r} has no letter or digit; give another")
    return cleaned


def _write(path: Path, content: object) -> None:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    replace_file(path, (text + "\n").encode(errors="replace"))
