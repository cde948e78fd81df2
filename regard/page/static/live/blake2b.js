/** BLAKE2b without a key (RFC 7693), of which the random numbers of generation are made. */

const MASK = 0xffff_ffff_ffff_ffffn;

/** The initial values of SHA-512. */
const INITIAL = [
  0x6a09e667f3bcc908n,
  0xbb67ae8584caa73bn,
  0x3c6ef372fe94f82bn,
  0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n,
  0x9b05688c2b3e6c1fn,
  0x1f83d9abfb41bd6bn,
  0x5be0cd19137e2179n,
];

/** The order of the message's words in each of ten rounds; the last two of twelve are the first two again. */
const ORDER = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
  [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
  [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
  [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
  [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
  [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];

/** Columns, then diagonals, of the state as four rows of four. */
const MIXED = [
  [0, 4, 8, 12],
  [1, 5, 9, 13],
  [2, 6, 10, 14],
  [3, 7, 11, 15],
  [0, 5, 10, 15],
  [1, 6, 11, 12],
  [2, 7, 8, 13],
  [3, 4, 9, 14],
];

const rotated = (/** @type {bigint} */ word, /** @type {bigint} */ bits) =>
  ((word >> bits) | (word << (64n - bits))) & MASK;

/**
 * The lowest 64 bits of the digest of some 64-bit words, at most 16: one block.
 * @param {bigint[]} words @param {number} size bytes of the digest
 */
export function blake2b(words, size) {
  const message = Array.from({ length: 16 }, (_, k) => words[k] ?? 0n);
  const start = INITIAL.map((word, k) => (k ? word : word ^ 0x01010000n ^ BigInt(size)));
  const state = [...start, ...INITIAL];
  state[12] ^= BigInt(8 * words.length); // bytes so far
  state[14] ^= MASK; // this block is the last
  for (let round = 0; round < 12; round++) {
    const order = ORDER[round % 10];
    MIXED.forEach(([a, b, c, d], k) => {
      state[a] = (state[a] + state[b] + message[order[2 * k]]) & MASK;
      state[d] = rotated(state[d] ^ state[a], 32n);
      state[c] = (state[c] + state[d]) & MASK;
      state[b] = rotated(state[b] ^ state[c], 24n);
      state[a] = (state[a] + state[b] + message[order[2 * k + 1]]) & MASK;
      state[d] = rotated(state[d] ^ state[a], 16n);
      state[c] = (state[c] + state[d]) & MASK;
      state[b] = rotated(state[b] ^ state[c], 63n);
    });
  }
  return start[0] ^ state[0] ^ state[8];
}
