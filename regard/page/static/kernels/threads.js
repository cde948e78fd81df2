/**
 * The kernels on several threads: workers that share one memory, which only a page of its own process may have (its
 * host, or its service worker, sends Cross-Origin-Opener-Policy and Cross-Origin-Embedder-Policy).
 */
import { Kernels } from "./memory.js";

const PAGE = 2 ** 16; // bytes
const FIRST = 2 ** 24; // bytes that are there at first
const MOST = 2 ** 31; // as in tools/wasm.py

const ENOSYS = 52; // what the C library hears where it would write, were there a console
// What a helper runs: it never returns to its messages.
const HELPER = `onmessage = async ({ data: { module, memory, stack, local } }) => {
  try {
    const no = () => ${ENOSYS};
    const wasi_snapshot_preview1 = { fd_close: no, fd_seek: no, fd_write: no };
    const { exports } = await WebAssembly.instantiate(module, { env: { memory }, wasi_snapshot_preview1 });
    exports.__stack_pointer.value = stack;
    exports.__wasm_init_tls(local);
    const last = exports.join();
    postMessage(null);
    exports.help(last);
  } catch (error) {
    postMessage(String(error));
  }
};`;

/**
 * Compiles the module for shared memory, and starts its helpers.
 * @param {BufferSource} bytes @param {number} threads @returns {Promise<Kernels>}
 */
export async function threadedKernels(bytes, threads) {
  const memory = new WebAssembly.Memory({ initial: FIRST / PAGE, maximum: MOST / PAGE, shared: true });
  const module = await WebAssembly.compile(bytes);
  const no = () => ENOSYS;
  const wasi_snapshot_preview1 = { fd_close: no, fd_seek: no, fd_write: no };
  const { exports } = await WebAssembly.instantiate(module, { env: { memory }, wasi_snapshot_preview1 });
  const own = /** @type {import("./memory.js").Exports & Record<string, any>} */ (
    /** @type {unknown} */ ({ ...exports, memory })
  );
  const kernels = new Kernels(own, threads);
  const url = URL.createObjectURL(new Blob([HELPER], { type: "text/javascript" }));
  const start = () =>
    new Promise((resolve, reject) => {
      const helper = new Worker(url);
      helper.onmessage = ({ data: problem }) => (problem ? reject(new Error(problem)) : resolve(null));
      helper.onerror = reject;
      const local = kernels.allocate(own.__tls_size.value + own.__tls_align.value);
      helper.postMessage({ module, memory, stack: own.stack(), local: alignedTo(own.__tls_align.value, local) });
    });
  await Promise.all(Array.from({ length: threads - 1 }, start));
  return kernels;
}

const alignedTo = (/** @type {number} */ step, /** @type {number} */ address) =>
  step ? Math.ceil(address / step) * step : address;
