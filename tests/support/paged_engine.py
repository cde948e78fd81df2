"""A stand-in for vLLM's worker: requests, a paged cache, steps of many requests at once.

It has what the plugin reads of vLLM, under vLLM's names, so that the plugin's own code is tested
where vLLM is not installed. Keys lie in a block channel by channel, as on some processors.

Axes: H query heads, G key/value heads, T positions of a request, D head dimension.
"""

from types import SimpleNamespace

import torch

HEADS, GROUPS, SIZE, BLOCK = 6, 2, 5, 7
LAYERS = 3


class CPUAttentionBackendImpl:
    """Attention whose context nobody looks at."""

    scale, logits_soft_cap, alibi_slopes, sinks = 0.3, 0, None, None
    sliding_window = -1
    calls = 0

    def do_kv_cache_update(self, layer, key, value, cache, slots):
        for row, slot in zip(key, slots.tolist(), strict=True):
            place = cache[slot // BLOCK].view(GROUPS, 2, SIZE, BLOCK)
            place[:, 0, :, slot % BLOCK] = row

    def forward(self, layer, query, key, value, cache, metadata, output=None):
        self.calls += 1
        return output


class PagedEngine:
    """Serves requests with given queries ``(layers, H, T, D)`` and keys ``(layers, G, T, D)``."""

    def __init__(self, tmp_path=None, blocks=41, dtype=torch.float32, **limits):
        if tmp_path is not None:
            limits["recordings"] = str(tmp_path)
        self.layers = []
        for _ in range(LAYERS):
            cache = torch.full((blocks, GROUPS, BLOCK, 2 * SIZE), torch.nan, dtype=dtype)
            self.layers.append(
                SimpleNamespace(
                    impl=CPUAttentionBackendImpl(),
                    num_heads=HEADS,
                    num_kv_heads=GROUPS,
                    kv_cache=cache,
                )
            )
        self.vllm_config = SimpleNamespace(
            additional_config={"regard": limits},
            model_config=SimpleNamespace(skip_tokenizer_init=True),
        )
        self.model_runner = SimpleNamespace(
            execute_model=self.step,
            input_batch=SimpleNamespace(req_id_to_index={}),
            requests={},
        )
        self.free = list(range(blocks))
        self.tables, self.computed, self.tensors = {}, {}, {}

    def serve(self, name, query, key, extra_args=None, computed=0):
        """Describe a new request, of which the first keys are in the cache already."""
        self.tensors[name] = query, key
        self.tables[name] = []
        self.computed[name] = 0
        if computed:
            self._write(name, computed)
            self.computed[name] = computed
        return SimpleNamespace(
            req_id=name,
            prompt_token_ids=list(range(query.shape[2])),
            sampling_params=SimpleNamespace(extra_args=extra_args),
        )

    def run(self, rows, new=(), finished=()):
        """Compute rows of some requests in one step, ``{name: how many}``."""
        scheduled = SimpleNamespace(
            rows=rows, scheduled_new_reqs=list(new), finished_req_ids=set(finished)
        )
        return self.model_runner.execute_model(scheduled)

    def preempt(self, name):
        """Give a request's blocks back; it begins anew."""
        self.free += self.tables[name]
        self.tables[name], self.computed[name] = [], 0

    def step(self, scheduled):
        names = list(scheduled.rows)
        self.model_runner.input_batch.req_id_to_index = {n: i for i, n in enumerate(names)}
        if not names:
            return "no rows"
        queries = []
        for name in names:
            first = self.computed[name]
            self._write(name, scheduled.rows[name])
            self.computed[name] += scheduled.rows[name]
            queries.append(self.tensors[name][0][:, :, first : self.computed[name]])
        counts = torch.tensor([0, *scheduled.rows.values()])
        width = max(len(self.tables[name]) for name in names)
        table = torch.zeros(len(names), width, dtype=torch.int32)
        for place, name in enumerate(names):
            table[place, : len(self.tables[name])] = torch.tensor(self.tables[name])
        metadata = SimpleNamespace(
            causal=True,
            dynamic_causal=None,
            query_start_loc=counts.cumsum(0).int(),
            seq_lens=torch.tensor([self.computed[name] for name in names]),
            block_table=table,
        )
        for number, layer in enumerate(self.layers):
            query = torch.cat([rows[number] for rows in queries], dim=1).transpose(0, 1)
            layer.impl.forward(layer, query, None, None, layer.kv_cache, metadata, output=query)
        return "rows"

    def _write(self, name, count):
        first, table = self.computed[name], self.tables[name]
        stop = first + count
        while len(table) * BLOCK < stop:
            table.append(self.free.pop(len(self.free) // 2))
        slots = torch.tensor([table[p // BLOCK] * BLOCK + p % BLOCK for p in range(first, stop)])
        for number, layer in enumerate(self.layers):
            rows = self.tensors[name][1][number, :, first:stop].transpose(0, 1)
            layer.impl.do_kv_cache_update(layer, rows, None, layer.kv_cache, slots)
