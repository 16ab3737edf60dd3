// The binary format of numbers: a header with names, then float64 axes, then float32 planes.

/**
 * The numbers of one statistic; planes are `[layer][column]`, one row after the other. `step`, `epoch` and `time` are
 * where a column begins, `last` is its last step. `nonfinite` is null if all is finite.
 * @typedef {{
 *   lens: string, statistic: string, layers: string[], columns: number, raw: boolean, planes: Plane[],
 *   step: Float64Array, epoch: Float64Array, time: Float64Array, last: Float64Array,
 *   mean: Float32Array, minimum: Float32Array, maximum: Float32Array, nonfinite: Float32Array | null,
 * }} Block
 */

/** @typedef {"mean" | "minimum" | "maximum" | "nonfinite"} Plane */

/** @type {("step" | "epoch" | "time" | "last")[]} */
export const AXES = ["step", "epoch", "time", "last"];

/**
 * The header of a buffer, and where its numbers begin.
 * @param {ArrayBuffer} buffer
 */
export function header(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  return { facts: JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length))), offset: 4 + length };
}

/**
 * Give all blocks their axes; returns where the planes begin.
 * @param {Block[]} blocks
 * @param {ArrayBuffer} buffer
 * @param {number} offset
 */
export function readAxes(blocks, buffer, offset) {
  let place = offset;
  for (const block of blocks) {
    for (const axis of AXES) {
      block[axis] = new Float64Array(buffer, place, block.columns);
      place += 8 * block.columns;
    }
  }
  return place;
}

/**
 * The blocks in a buffer.
 * @param {ArrayBuffer} buffer
 * @returns {Block[]}
 */
export function unpack(buffer) {
  const { facts, offset } = header(buffer);
  let place = readAxes(facts.blocks, buffer, offset);
  for (const block of facts.blocks) {
    const cells = block.layers.length * block.columns;
    for (const plane of block.planes) {
      block[plane] = new Float32Array(buffer, place, cells);
      place += 4 * cells;
    }
    complete(block);
  }
  return facts.blocks;
}

/**
 * Columns of one tick have one plane; if all is finite, there is no plane of counts.
 * @param {Block} block
 */
export function complete(block) {
  if (block.raw) block.minimum = block.maximum = block.mean;
  block.nonfinite ??= null;
  return block;
}

/**
 * One layer's part of a plane; null if the block has no such plane.
 * @param {Block} block
 * @param {Plane} plane
 * @param {number} row
 */
export function rowOf(block, plane, row) {
  return block[plane]?.subarray(row * block.columns, (row + 1) * block.columns) ?? null;
}

/**
 * The first index whose value is greater than `value`, in a sorted array.
 * @param {ArrayLike<number>} sorted
 * @param {number} value
 */
export function upperBound(sorted, value) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Some layers and steps of a block that is in memory.
 * @param {Block} block
 * @param {{ layers?: string[], first: number | null, last: number | null }} wanted
 */
export function cut(block, { layers, first, last }) {
  const rows = layers
    ? layers.map((name) => block.layers.indexOf(name)).filter((row) => row >= 0)
    : block.layers.map((_, row) => row);
  const begin = first === null ? 0 : Math.min(upperBound(block.last, first - 1), block.columns);
  const end = last === null ? block.columns : Math.max(upperBound(block.step, last), begin);
  const part = { ...block, layers: rows.map((row) => block.layers[row]), columns: end - begin };
  for (const axis of AXES) part[axis] = block[axis].subarray(begin, end);
  for (const plane of block.planes) {
    const numbers = new Float32Array(rows.length * part.columns);
    rows.forEach((row, place) => {
      const known = rowOf(block, plane, row);
      if (known) numbers.set(known.subarray(begin, end), place * part.columns);
    });
    part[plane] = numbers;
  }
  return complete(part);
}
