/** A model's weights from the bytes that `regard/page/live.py` wrote: in half precision where that holds them exactly. */

/** @typedef {{name: string, dtype: "float16"|"bfloat16"|"float32", count: number}} PackedTensor */

/**
 * Widens all tensors once, to the float32 that is computed in.
 * @param {Uint8Array} bytes one tensor after the other, of each first the lowest bytes of all numbers
 * @param {PackedTensor[]} tensors
 */
export function unpack(bytes, tensors) {
  /** @type {Record<string, Float32Array>} */
  const weights = {};
  let at = 0;
  for (const { name, dtype, count } of tensors) {
    const planes = dtype === "float32" ? 4 : 2;
    const bits = joined(bytes.subarray(at, at + planes * count), count, planes);
    weights[name] = dtype === "float16" ? fromHalf(bits) : fromBits(bits, dtype === "bfloat16" ? 16 : 0);
    at += planes * count;
  }
  return weights;
}

/** The bits of each number, from planes of bytes. */
function joined(/** @type {Uint8Array} */ bytes, /** @type {number} */ count, /** @type {number} */ planes) {
  const bits = new Uint32Array(count);
  for (let plane = 0; plane < planes; plane++) {
    for (let k = 0; k < count; k++) bits[k] |= bytes[plane * count + k] << (8 * plane);
  }
  return bits;
}

/** float32 of its own bits, or of the upper ones that bfloat16 keeps. */
function fromBits(/** @type {Uint32Array} */ bits, /** @type {number} */ shift) {
  return new Float32Array(bits.map((one) => one << shift).buffer);
}

/** float32 of float16: a sign, five bits of exponent and ten of fraction (IEEE 754-2019, section 3.4). */
function fromHalf(/** @type {Uint32Array} */ bits) {
  const table = Float32Array.from({ length: 1 << 16 }, (_, half) => {
    const [sign, exponent, fraction] = [half >> 15 ? -1 : 1, (half >> 10) & 31, half & 1023];
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
  });
  return new Float32Array(bits.length).map((_, k) => table[bits[k]]);
}
