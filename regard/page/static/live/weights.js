/** A model's weights from the bytes that `regard/page/file/live.py` wrote: in half precision where that holds them exactly. */

/** @typedef {{name: string, dtype: "float16"|"bfloat16"|"float32", count: number}} PackedTensor */

/**
 * Widens all tensors once, to the float32 that is computed in.
 * @param {Uint8Array} bytes one tensor after the other, of each first the lowest bytes of all numbers
 * @param {PackedTensor[]} tensors
 */
export function unpack(bytes, tensors) {
  /** @type {Record<string, Float32Array>} */
  const weights = {};
  const table = halves();
  let at = 0;
  for (const { name, dtype, count } of tensors) {
    const planes = dtype === "float32" ? 4 : 2;
    weights[name] = widened(bytes.subarray(at, at + planes * count), count, dtype, table);
    at += planes * count;
  }
  return weights;
}

/** @param {Uint8Array} bytes @param {number} count @param {PackedTensor["dtype"]} dtype @param {Float32Array} table */
function widened(bytes, count, dtype, table) {
  const bits = new Uint32Array(count);
  const half = dtype === "float16";
  const [planes, shift] = dtype === "float32" ? [4, 0] : [2, half ? 0 : 16]; // bfloat16 has the upper bits of float32
  for (let plane = 0; plane < planes; plane++) {
    for (let k = 0; k < count; k++) bits[k] |= bytes[plane * count + k] << (8 * plane + shift);
  }
  if (!half) return new Float32Array(bits.buffer);
  const result = new Float32Array(count);
  for (let k = 0; k < count; k++) result[k] = table[bits[k]];
  return result;
}

/** Every number of float16, by its bits: a sign, five of exponent, ten of fraction (IEEE 754-2019, section 3.4). */
function halves() {
  const table = new Float32Array(1 << 16);
  for (let bits = 0; bits < table.length; bits++) {
    const sign = bits >> 15 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    if (exponent === 31) table[bits] = fraction ? NaN : sign * Infinity;
    else table[bits] = sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
  }
  return table;
}
