/** Products with matrices: all that a model's layers do besides attention. Plain loops, which engines compile well. */

/**
 * `input @ weightᵀ + bias`, of `rows` vectors; mirrors `regard.gpt.layers.linear`.
 *
 * Two vectors meet four rows of the matrix at a time, so that a number that is read serves several sums.
 * @param {Float32Array} input (rows, I) @param {number} rows
 * @param {Float32Array} weight (O, I) @param {Float32Array|undefined} bias (O)
 * @returns {Float32Array} (rows, O)
 */
export function linear(input, rows, weight, bias) {
  const inputs = input.length / rows;
  const outputs = weight.length / inputs;
  const result = new Float32Array(rows * outputs);
  if (bias) for (let row = 0; row < rows; row++) result.set(bias, row * outputs);
  const [pairs, whole] = [rows - (rows % 2), outputs - (outputs % 4)];
  for (let output = 0; output < whole; output += 4) {
    for (let row = 0; row < pairs; row += 2) addTwo(input, row, weight, output, inputs, result, outputs);
  }
  for (let row = 0; row < pairs; row++) addRest(input, row, weight, whole, inputs, result, outputs);
  if (pairs < rows) {
    const sums = new Float64Array(outputs); // of the last vector: a step of generation has no other
    multiplyRows(input, pairs * inputs, { numbers: weight, first: 0, width: inputs, D: inputs }, 1, 0, outputs, sums);
    for (let output = 0; output < outputs; output++) result[pairs * outputs + output] += sums[output];
  }
  return result;
}

/**
 * Adds the products of two vectors and four rows of the matrix.
 * @param {Float32Array} input @param {number} row @param {Float32Array} weight @param {number} output
 * @param {number} inputs @param {Float32Array} result @param {number} outputs
 */
function addTwo(input, row, weight, output, inputs, result, outputs) {
  let a0 = 0;
  let a1 = 0;
  let a2 = 0;
  let a3 = 0;
  let b0 = 0;
  let b1 = 0;
  let b2 = 0;
  let b3 = 0;
  const upper = row * inputs;
  const lower = upper + inputs;
  const first = output * inputs;
  const second = first + inputs;
  const third = second + inputs;
  const fourth = third + inputs;
  for (let i = 0; i < inputs; i++) {
    const a = input[upper + i];
    const b = input[lower + i];
    const w0 = weight[first + i];
    const w1 = weight[second + i];
    const w2 = weight[third + i];
    const w3 = weight[fourth + i];
    a0 += a * w0;
    a1 += a * w1;
    a2 += a * w2;
    a3 += a * w3;
    b0 += b * w0;
    b1 += b * w1;
    b2 += b * w2;
    b3 += b * w3;
  }
  const at = row * outputs + output;
  result[at] += a0;
  result[at + 1] += a1;
  result[at + 2] += a2;
  result[at + 3] += a3;
  const below = at + outputs;
  result[below] += b0;
  result[below + 1] += b1;
  result[below + 2] += b2;
  result[below + 3] += b3;
}

/**
 * The same of one vector and the last rows, fewer than four.
 * @param {Float32Array} input @param {number} row @param {Float32Array} weight @param {number} output
 * @param {number} inputs @param {Float32Array} result @param {number} outputs
 */
function addRest(input, row, weight, output, inputs, result, outputs) {
  for (; output < outputs; output++) {
    result[row * outputs + output] += dot(input, row * inputs, weight, output * inputs, inputs);
  }
}

/**
 * The product of two vectors that lie somewhere in two arrays.
 * @param {Float32Array} left @param {number} l @param {Float32Array} right @param {number} r @param {number} count
 */
function dot(left, l, right, r, count) {
  let sum = 0;
  for (let i = 0; i < count; i++) sum += left[l + i] * right[r + i];
  return sum;
}

/**
 * Some columns of a matrix that lies row by row: D of them from `first` on, of rows that are `width` wide.
 * @typedef {{numbers: Float32Array, first: number, width: number, D: number}} Columns
 */

/**
 * The products of one vector with rows of a matrix from `start` to `stop`, times a number; four rows share its numbers.
 * @param {Float32Array} vector @param {number} at @param {Columns} keys
 * @param {number} scale @param {number} start @param {number} stop @param {Float64Array} result
 */
export function multiplyRows(vector, at, { numbers, first, width, D }, scale, start, stop, result) {
  let row = start;
  for (; row + 4 <= stop; row += 4) {
    let a0 = 0;
    let a1 = 0;
    let a2 = 0;
    let a3 = 0;
    const upper = row * width + first;
    const second = upper + width;
    const third = second + width;
    const fourth = third + width;
    for (let d = 0; d < D; d++) {
      const a = vector[at + d];
      a0 += a * numbers[upper + d];
      a1 += a * numbers[second + d];
      a2 += a * numbers[third + d];
      a3 += a * numbers[fourth + d];
    }
    result[row] = a0 * scale;
    result[row + 1] = a1 * scale;
    result[row + 2] = a2 * scale;
    result[row + 3] = a3 * scale;
  }
  for (; row < stop; row++) result[row] = scale * dot(vector, at, numbers, row * width + first, D);
}

/**
 * The sum of rows of a matrix from `start` to `stop`, each times its weight; four at a time.
 * @param {Float64Array} weights @param {Columns} values @param {number} start @param {number} stop
 * @param {Float64Array} sums (D), which is overwritten
 */
export function sumRows(weights, { numbers, first, width, D }, start, stop, sums) {
  sums.fill(0);
  let row = start;
  for (; row + 4 <= stop; row += 4) {
    const w0 = weights[row];
    const w1 = weights[row + 1];
    const w2 = weights[row + 2];
    const w3 = weights[row + 3];
    const upper = row * width + first;
    const second = upper + width;
    const third = second + width;
    const fourth = third + width;
    for (let d = 0; d < D; d++) {
      sums[d] +=
        w0 * numbers[upper + d] + w1 * numbers[second + d] + w2 * numbers[third + d] + w3 * numbers[fourth + d];
    }
  }
  for (; row < stop; row++) {
    for (let d = 0; d < D; d++) sums[d] += weights[row] * numbers[row * width + first + d];
  }
}
