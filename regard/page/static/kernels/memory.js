/**
 * The kernels of src/native as WebAssembly, and the memory that they compute in.
 *
 * An address is where something lies in that memory. A view of it is of no use after the next allocation, for which
 * the memory may grow.
 */

/** How the structs of src/native/abi.h lie in memory: P a pointer, q a whole number, d a number, a space the begin of a struct. */
const SIZES = { P: 4, q: 8, d: 8 };

/**
 * @typedef {"forward"|"read"|"multiply"|"read_rows"|"gpt_step"|"name_head"} Call
 * @typedef {{memory: WebAssembly.Memory, _initialize: () => void, allocate: (bytes: number) => number, release: (address: number) => void} & Record<Call, (...structs: number[]) => number>} Exports
 */

export class Kernels {
  /** Compiles the module. @param {BufferSource} bytes @returns {Promise<Kernels>} */
  static async of(bytes) {
    const { instance } = await WebAssembly.instantiate(bytes);
    return new Kernels(/** @type {Exports} */ (/** @type {unknown} */ (instance.exports)));
  }

  /** @param {Exports} exports @param {number} [threads] that compute a model's step */
  constructor(exports, threads = 1) {
    this.exports = exports;
    this.threads = threads;
    exports._initialize();
    /** What the call that is being prepared has put into memory. @type {number[]} */
    this.borrowed = [];
  }

  /** The address of so many bytes, until they are released. */
  allocate(/** @type {number} */ bytes) {
    const address = this.exports.allocate(bytes);
    if (!address) throw new Error(`The page has no memory left for ${bytes.toLocaleString("en")} bytes.`);
    return address;
  }

  release(/** @type {number} */ address) {
    this.exports.release(address);
  }

  /** So many float32 at an address, as a view. */
  floats(/** @type {number} */ address, /** @type {number} */ count) {
    return new Float32Array(this.exports.memory.buffer, address, count);
  }

  /** So many bytes at an address, as a view. */
  bytes(/** @type {number} */ address, /** @type {number} */ count) {
    return new Uint8Array(this.exports.memory.buffer, address, count);
  }

  /** Copies float32 into memory, to stay there. @param {ArrayLike<number>} values */
  keep(values) {
    const address = this.allocate(4 * values.length);
    this.floats(address, values.length).set(values);
    return address;
  }

  /** Copies float32 from an address to another. */
  copy(/** @type {number} */ from, /** @type {number} */ to, /** @type {number} */ count) {
    this.floats(to, count).set(this.floats(from, count));
  }

  /** Runs calls; what they borrow is given back afterwards. @template T @param {() => T} calls @returns {T} */
  during(calls) {
    const before = this.borrowed.length;
    try {
      return calls();
    } finally {
      for (const address of this.borrowed.splice(before)) this.release(address);
    }
  }

  /** Memory for the calls that run. */
  borrow(/** @type {number} */ bytes) {
    const address = this.allocate(bytes);
    this.borrowed.push(address);
    return address;
  }

  /** Float32 for the calls that run. @param {ArrayLike<number>} values */
  lend(values) {
    const address = this.borrow(4 * values.length);
    this.floats(address, values.length).set(values);
    return address;
  }

  /** Whole numbers for the calls that run. @param {ArrayLike<number>} values */
  lendWhole(values) {
    const address = this.borrow(8 * values.length);
    new BigInt64Array(this.exports.memory.buffer, address, values.length).set(Array.from(values, BigInt));
    return address;
  }

  /**
   * A struct, or several in a row, for the calls that run.
   * @param {string} format of all of them @param {number[]} fields
   */
  struct(format, fields) {
    const address = this.keepStruct(format, fields);
    this.borrowed.push(address);
    return address;
  }

  /** The same, to stay there. @param {string} format @param {number[]} fields */
  keepStruct(format, fields) {
    const { places, bytes } = layoutOf(format);
    if (places.length !== fields.length) throw new Error(`${fields.length} fields for ${places.length} of ${format}`);
    const address = this.allocate(bytes);
    const view = new DataView(this.exports.memory.buffer, address);
    places.forEach(({ kind, at }, k) => {
      if (kind === "P") view.setUint32(at, fields[k], true);
      else if (kind === "q") view.setBigInt64(at, BigInt(fields[k]), true);
      else view.setFloat64(at, fields[k], true);
    });
    return address;
  }

  /** Calls a kernel. @param {Call} name @param {number[]} operands */
  call(name, ...operands) {
    if (this.exports[name](...operands)) throw new Error("The page has no memory left for this computation.");
  }
}

/** @typedef {{places: {kind: string, at: number}[], bytes: number}} Layout */

/** By format, since a model's step has thousands of fields. @type {Map<string, Layout>} */
const layouts = new Map();

/** Where the fields of a struct lie. @type {(format: string) => Layout} */
const layoutOf = (format) => {
  const known = layouts.get(format);
  if (known) return known;
  let end = 0;
  const places = [...format].flatMap((kind) => {
    const size = kind === " " ? 8 : SIZES[/** @type {"P"|"q"|"d"} */ (kind)];
    const at = Math.ceil(end / size) * size;
    end = at + (kind === " " ? 0 : size);
    return kind === " " ? [] : [{ kind, at }];
  });
  const layout = { places, bytes: Math.ceil(end / 8) * 8 };
  layouts.set(format, layout);
  return layout;
};
