// Numbers as they travel: a header with names, then float64 axes, then float32 planes.

export const AXES = ["step", "epoch", "time", "last"];

/** The blocks in a buffer; planes are `[layer][column]`, one after the other. */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let offset = 4 + length;
  for (const block of header.blocks) {
    for (const axis of AXES) {
      block[axis] = new Float64Array(buffer, offset, block.columns);
      offset += 8 * block.columns;
    }
  }
  for (const block of header.blocks) {
    const cells = block.layers.length * block.columns;
    for (const plane of block.planes) {
      block[plane] = new Float32Array(buffer, offset, cells);
      offset += 4 * cells;
    }
    complete(block);
  }
  return header.blocks;
}

/** Columns of one tick have one plane; where all is finite there is none that counts the rest. */
export function complete(block) {
  if (block.raw) block.minimum = block.maximum = block.mean;
  block.nonfinite ??= null;
  return block;
}

/** One layer's part of a plane. */
export function rowOf(block, plane, row) {
  return block[plane]?.subarray(row * block.columns, (row + 1) * block.columns) ?? null;
}

/** The first index whose value is greater than `value`, in a sorted array. */
export function upperBound(sorted, value) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Some layers and steps of a block that is in memory. */
export function cut(block, { layers, first, last }) {
  const rows = layers
    ? layers.map((name) => block.layers.indexOf(name)).filter((row) => row >= 0)
    : block.layers.map((_, row) => row);
  const begin = first === null ? 0 : Math.min(upperBound(block.last, first - 1), block.columns);
  const end = last === null ? block.columns : Math.max(upperBound(block.step, last), begin);
  const part = { ...block, layers: rows.map((row) => block.layers[row]), columns: end - begin };
  for (const axis of AXES) part[axis] = block[axis].subarray(begin, end);
  for (const plane of block.planes) {
    part[plane] = new Float32Array(rows.length * part.columns);
    rows.forEach((row, place) => part[plane].set(rowOf(block, plane, row).subarray(begin, end), place * part.columns));
  }
  return complete(part);
}
