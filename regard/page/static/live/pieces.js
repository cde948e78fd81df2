/**
 * A model's weights and tokenizer, which lie beside the page: each file is fetched once, checked by its digest, and
 * kept by the browser, so that what was interrupted goes on and works without a network afterwards.
 */
import { ServerError } from "../errors.js";

/**
 * @typedef {{file: string, bytes: number, sha256: string}} Piece
 * @typedef {{offset: number, kind: number, rows: number}} Part rows of a matrix in blocks of a kind, as `regard_blocks` in src/native/abi.h
 * @typedef {{bytes: number, pieces: Piece[], tokenizer: Piece, threads: Piece, tensors: {name: string, offset: number}[], blocks: Record<string, Part[]>}} Stored
 * @typedef {(piece: Piece, report?: (bytes: number) => void) => Promise<Uint8Array<ArrayBuffer>>} Bring
 */

const CACHE = "regard model ";

/**
 * Brings the files of a folder, whose address is the base.
 * @param {Stored} stored @param {string} base @returns {Promise<Bring>}
 */
export async function folderOf({ pieces, tokenizer, threads }, base) {
  const kept = await cacheOf([...pieces, tokenizer, threads], base);
  return (piece, report = () => {}) => bring(piece, base, kept, report);
}

/**
 * Brings the weights into the kernels' memory.
 * @param {import("../kernels/memory.js").Kernels} kernels @param {Stored} stored @param {Bring} folder
 * @param {(bytes: number, total: number) => void} report
 * @returns {Promise<{weights: Record<string, number>, tokenizer: object}>} the address of each tensor, and of the table
 * of each matrix in blocks
 */
export async function broughtModel(kernels, { bytes, pieces, tokenizer, tensors, blocks }, folder, report) {
  const start = kernels.allocate(bytes);
  const total = bytes + tokenizer.bytes;
  let done = 0;
  const brought = async (/** @type {Piece} */ piece) => {
    const data = await folder(piece, (some) => report(done + some, total));
    done += piece.bytes;
    return data;
  };
  const json = JSON.parse(new TextDecoder().decode(await brought(tokenizer)));
  for (let at = 0, k = 0; k < pieces.length; at += pieces[k++].bytes)
    kernels.bytes(start + at, pieces[k].bytes).set(await brought(pieces[k]));
  const weights = Object.fromEntries(tensors.map(({ name, offset }) => [name, start + offset]));
  for (const [name, parts] of Object.entries(blocks)) {
    const fields = parts.flatMap(({ offset, kind, rows }) => [start + offset, kind, rows]);
    weights[`${name}.blocks`] = kernels.keepStruct("Pqq".repeat(parts.length), fields);
  }
  return { weights, tokenizer: json };
}

/**
 * What the browser keeps of this folder, without the files of earlier versions; null where it keeps nothing.
 * @param {Piece[]} files @param {string} base
 */
async function cacheOf(files, base) {
  if (!globalThis.caches) return null; // the address is neither https nor this machine's own
  try {
    const kept = await caches.open(`${CACHE}${new URL(".", base).href}`);
    const current = files.map(({ file }) => new URL(file, base).href);
    for (const { url } of await kept.keys()) if (!current.includes(url)) await kept.delete(url);
    return kept;
  } catch {
    return null; // a private window may refuse
  }
}

/**
 * @param {Piece} piece @param {string} base @param {Cache|null} kept @param {(bytes: number) => void} report
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
async function bring(piece, base, kept, report) {
  const url = new URL(piece.file, base).href;
  const before = await kept?.match(url);
  if (before) {
    const data = new Uint8Array(await before.arrayBuffer());
    if (await isWhole(data, piece)) return data;
    await kept?.delete(url);
  }
  const data = await fetched(url, piece, report);
  if (!(await isWhole(data, piece)))
    throw new ServerError(`${piece.file} is damaged: its content is not what its name says; reload the page.`);
  await kept?.put(url, new Response(data)).catch(() => {}); // no room left: it is fetched again next time
  return data;
}

/** @param {string} url @param {Piece} piece @param {(bytes: number) => void} report */
async function fetched(url, piece, report) {
  const data = new Uint8Array(piece.bytes);
  let done = 0;
  try {
    const answer = await fetch(url);
    if (!answer.ok || !answer.body) throw new Error(`the host answers ${answer.status}`);
    for (const reader = answer.body.getReader(); ;) {
      const { done: ended, value } = await reader.read();
      if (ended) return data.subarray(0, done);
      if (done + value.length > data.length) throw new Error("it is longer than it was");
      data.set(value, done);
      done += value.length;
      report(done);
    }
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    const cure = url.startsWith("file:")
      ? "A page from a file may fetch nothing: serve its folder, say by python -m http.server."
      : "Reload the page to go on; what came is kept.";
    throw new ServerError(`The model could not be fetched (${piece.file}: ${why}). ${cure}`);
  }
}

/** Whether these are the bytes of a piece; their digest is compared where the browser has one. */
async function isWhole(/** @type {Uint8Array<ArrayBuffer>} */ data, /** @type {Piece} */ { bytes, sha256 }) {
  if (data.length !== bytes) return false;
  if (!globalThis.crypto?.subtle) return true;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") === sha256;
}
