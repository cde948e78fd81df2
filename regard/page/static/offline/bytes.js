/** Bytes that lie in the page as text: a zlib stream in base 85. */

/** The digits of RFC 1924 in their order, with a point in place of the sign that begins tags. */
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;.=>?@^_`{|}~";

/** Five digits for each four bytes; what is missing at the end is read as the highest digit. */
function bytesOf(/** @type {string} */ digits) {
  const value = new Uint8Array(128).fill(84);
  for (let k = 0; k < 85; k++) value[DIGITS.charCodeAt(k)] = k;
  const words = new DataView(new ArrayBuffer(4 * Math.ceil(digits.length / 5)));
  for (let at = 0, word = 0; at < digits.length; at += 5, word += 4) {
    let sum = 0;
    for (let k = at; k < at + 5; k++) sum = 85 * sum + (k < digits.length ? value[digits.charCodeAt(k)] : 84);
    words.setUint32(word, sum);
  }
  const missing = (5 - (digits.length % 5)) % 5;
  return new Uint8Array(words.buffer, 0, words.byteLength - missing);
}

/** @param {string} text @returns {Promise<Uint8Array<ArrayBuffer>>} */
export async function inflated(text) {
  const stream = new Blob([bytesOf(text.trim())]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
