/** What a report holds: descriptions as JSON, and all numbers as one stream of bytes. */
import { Kernels } from "../kernels/memory.js";
import { Pattern } from "../kernels/pattern.js";
import { inflated } from "./bytes.js";

const PLANES = 4; // bytes of a number; the lowest bytes of all come first

const text = (/** @type {string} */ name) => document.getElementById(name)?.textContent ?? "";

/** @type {{about: About, runs: PackedRun[]}} */
export const report = JSON.parse(text("report"));

/** The numbers, and the kernels, once they are asked for. @type {Promise<[Uint8Array, Kernels]>|null} */
let opening = null;

const unpackAll = async () => {
  const [bytes, module] = await Promise.all([inflated(text("numbers")), inflated(text("kernels"))]);
  return /** @type {[Uint8Array, Kernels]} */ ([bytes, await Kernels.of(module)]);
};

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

/** @type {Map<string, Pattern>} */
const read = new Map();

/** One head of a run, unpacked when it is first asked for. */
export async function headOf(/** @type {string} */ name, /** @type {number} */ layer, /** @type {number} */ place) {
  opening ??= unpackAll();
  const [bytes, kernels] = await opening;
  const key = `${name}/${layer}/${place}`;
  const run = /** @type {PackedRun} */ (runOf(name));
  const head = read.get(key) ?? unpack(kernels, bytes, run, run.layers[layer][place]);
  read.set(key, head);
  return head;
}

export const runOf = (/** @type {string} */ name) => report.runs.find(({ description }) => description.id === name);

/** @param {Kernels} kernels @param {Uint8Array} bytes @param {PackedRun} run @param {PackedHead} head */
function unpack(kernels, bytes, { description, rows }, head) {
  const { length } = description;
  const kept = (/** @type {PackedMatrix} */ packed) => ({
    address: kernels.keep(matrix(bytes, packed, length)),
    stride: packed.dim,
  });
  const { scale, softcap, alibi, sink } = head;
  const [query, key, value] = [kept(head.query), kept(head.key), head.value && kept(head.value)];
  const [dim, valueDim] = [head.query.dim, head.value?.dim ?? 0];
  const logsumexp = whole(bytes, head.logsumexp.at, length).map((number) => number * head.logsumexp.step);
  const own = { length, dim, valueDim, scale, softcap, alibi, sink, query, key, value };
  return new Pattern(kernels, { ...own, bounds: rows[head.rows], window: null, cuts: [] }, kernels.keep(logsumexp));
}
