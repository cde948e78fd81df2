/** What a report holds: descriptions as JSON, and all numbers as one stream of bytes. */
import { inflated } from "./bytes.js";

const PLANES = 4; // bytes of a number; the lowest bytes of all come first

const text = (/** @type {string} */ name) => document.getElementById(name)?.textContent ?? "";

/** @type {{about: About, runs: PackedRun[]}} */
export const report = JSON.parse(text("report"));

/** @type {Promise<Uint8Array>|null} */
let planes = null;

/** Whole numbers with a sign, from so many places of all planes. */
function whole(/** @type {Uint8Array} */ bytes, /** @type {number} */ at, /** @type {number} */ count) {
  const many = bytes.length / PLANES;
  return Float64Array.from({ length: count }, (_, k) => {
    let folded = 0;
    for (let plane = PLANES - 1; plane >= 0; plane--) folded = 256 * folded + bytes[plane * many + at + k];
    return folded % 2 ? -(folded + 1) / 2 : folded / 2; // the sign is in the lowest bit
  });
}

/**
 * A matrix: its first row is what is added to all others, in steps.
 * @param {Uint8Array} bytes @param {PackedMatrix} packed @param {number} rows
 */
function matrix(bytes, { at, step, dim }, rows) {
  const first = whole(bytes, at, dim);
  return whole(bytes, at + dim, rows * dim).map((number, k) => (number + first[k % dim]) * step);
}

/** @type {Map<string, import("./attention.js").Head>} */
const read = new Map();

/** One head of a run, unpacked when it is first asked for. */
export async function headOf(/** @type {string} */ name, /** @type {number} */ layer, /** @type {number} */ place) {
  planes ??= inflated(text("numbers"));
  const bytes = await planes;
  const key = `${name}/${layer}/${place}`;
  const run = /** @type {PackedRun} */ (runOf(name));
  const head = read.get(key) ?? unpack(bytes, run, run.layers[layer][place]);
  read.set(key, head);
  return head;
}

export const runOf = (/** @type {string} */ name) => report.runs.find(({ description }) => description.id === name);

/**
 * @returns {import("./attention.js").Head}
 * @param {Uint8Array} bytes @param {PackedRun} run @param {PackedHead} head
 */
function unpack(bytes, { description, rows }, head) {
  const { length } = description;
  const count = Array.from({ length }, (_, query) => query);
  return {
    length,
    dim: head.query.dim,
    scale: head.scale,
    softcap: head.softcap,
    alibi: head.alibi,
    sink: head.sink,
    positions: count,
    start: rows[head.rows]?.start ?? new Array(length).fill(0),
    stop: rows[head.rows]?.stop ?? count.map((query) => query + 1), // causal
    cuts: [],
    query: matrix(bytes, head.query, length),
    key: matrix(bytes, head.key, length),
    logsumexp: whole(bytes, head.logsumexp.at, length).map((number) => number * head.logsumexp.step),
    value: head.value && matrix(bytes, head.value, length),
    valueDim: head.value?.dim ?? 0,
  };
}
