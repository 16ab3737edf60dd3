import assert from "node:assert/strict";
import test from "node:test";
import { complete, cut, rowOf, unpack, upperBound } from "page/blocks.js";

/** Bytes as the server sends them, written by hand. */
function packed(blocks) {
  const facts = blocks.map(({ layers, columns, raw, planes }) => ({
    ...{ lens: "L", statistic: "S", layers, columns, raw, planes: Object.keys(planes) },
  }));
  let header = JSON.stringify({ blocks: facts });
  header += " ".repeat((8 - ((header.length + 4) % 8)) % 8);
  const axes = blocks.flatMap(({ axes: given }) => given.flat());
  const numbers = blocks.flatMap(({ planes }) => Object.values(planes).flat());
  const buffer = new ArrayBuffer(4 + header.length + 8 * axes.length + 4 * numbers.length);
  const view = new DataView(buffer);
  view.setUint32(0, header.length, true);
  new Uint8Array(buffer, 4).set(new TextEncoder().encode(header));
  axes.forEach((value, index) => {
    view.setFloat64(4 + header.length + 8 * index, value, true);
  });
  numbers.forEach((value, index) => {
    view.setFloat32(4 + header.length + 8 * axes.length + 4 * index, value, true);
  });
  return buffer;
}

const AXES = [
  [0, 10, 20],
  [0, 0, 1],
  [1, 2, 3],
  [9, 19, 29],
];

test("blocks come out as they went in, axes first, then planes", () => {
  const raw = { layers: ["a", "b"], columns: 3, raw: true, axes: AXES, planes: { mean: [1, 2, 3, 4, 5, 6] } };
  const pooled = {
    ...{ layers: ["c"], columns: 3, raw: false, axes: AXES },
    planes: { mean: [1, 2, 3], minimum: [0, 1, 2], maximum: [2, 3, 4], nonfinite: [0, 1, 0] },
  };
  const [first, second] = unpack(packed([raw, pooled]));
  assert.deepEqual([...first.step], AXES[0]);
  assert.deepEqual([...first.last], AXES[3]);
  assert.deepEqual([...(rowOf(first, "mean", 1) ?? [])], [4, 5, 6]);
  assert.equal(first.maximum, first.mean); // a column of one tick is its own maximum
  assert.equal(first.nonfinite, null);
  assert.deepEqual([...second.maximum], [2, 3, 4]);
  assert.deepEqual([...(second.nonfinite ?? [])], [0, 1, 0]);
});

test("a part of a block has the columns that touch the steps, and the layers that it has", () => {
  const [block] = unpack(
    packed([{ layers: ["a", "b"], columns: 3, raw: true, axes: AXES, planes: { mean: [1, 2, 3, 4, 5, 6] } }]),
  );
  const part = cut(block, { layers: ["b", "nothing"], first: 12, last: 25 });
  assert.deepEqual(part.layers, ["b"]);
  assert.deepEqual([...part.step], [10, 20]);
  assert.deepEqual([...part.mean], [5, 6]);
  const whole = cut(block, { first: null, last: null });
  assert.deepEqual([...whole.mean], [...block.mean]);
  assert.equal(cut(block, { first: 100, last: null }).columns, 0);
});

test("a plane that a block lacks is nothing", () => {
  const block = complete({ raw: false, columns: 1, mean: Float32Array.of(1) });
  assert.equal(rowOf(block, "nonfinite", 0), null);
});

test("the first index whose value is greater", () => {
  for (const [value, index] of [
    [-1, 0],
    [0, 1],
    [1, 3],
    [1.5, 3],
    [9, 4],
  ])
    assert.equal(upperBound([0, 1, 1, 2], value), index);
  assert.equal(upperBound([], 1), 0);
});
