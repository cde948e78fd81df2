/** A run's heads as ../offline/attention.js reads them: what each query, key and value is, and which keys are seen. */
import { groupCount, headDim, startOf } from "./config.js";
import { isIn } from "./attend.js";

/**
 * One head of a layer.
 * @param {GPTConfig} config @param {import("./cache.js").Cache} cache @param {Intervention[]} changes
 * @param {number} layer @param {number} head
 * @returns {import("../offline/attention.js").Head}
 */
export function headOf(config, cache, changes, layer, head) {
  const { length } = cache;
  const [D, G] = [headDim(config), groupCount(config)];
  const group = Math.floor((head * G) / config.heads);
  const { query, key, value, logsumexp } = cache.layers[layer];
  const positions = Array.from({ length }, (_, place) => place);
  return {
    length,
    dim: D,
    scale: 1 / Math.sqrt(D),
    softcap: null,
    alibi: null,
    sink: false,
    positions,
    start: positions.map((place) => startOf(config, layer, place)),
    stop: positions.map((place) => place + 1),
    cuts: changes.flatMap((change) =>
      change.kind === "knock_out" && isIn(change, layer, head)
        ? [{ queries: change.queries ?? [0, length], keys: change.keys }]
        : [],
    ),
    query: columns(query, length, config.heads * D, head * D, D),
    key: columns(key, length, G * D, group * D, D),
    value: columns(value, length, G * D, group * D, D),
    valueDim: D,
    logsumexp: Float64Array.from(positions, (place) => logsumexp[place * config.heads + head]),
  };
}

/**
 * Some columns of a matrix, row after row.
 * @param {Float32Array} matrix @param {number} rows @param {number} width @param {number} first @param {number} count
 */
function columns(matrix, rows, width, first, count) {
  const result = new Float32Array(rows * count);
  for (let row = 0; row < rows; row++) {
    result.set(matrix.subarray(row * width + first, row * width + first + count), row * count);
  }
  return result;
}
