import assert from "node:assert/strict";
import test from "node:test";
import { outline } from "page/sparkline.js";

const curve = (values, threshold = null) =>
  outline({ series: "s", place: null, steps: values.map((_, index) => 10 * index), values, threshold });

test("a curve fills its box, large numbers above", () => {
  assert.deepEqual(curve([0, 5, 10]).lines, [
    [
      [0, 37],
      [50, 20],
      [100, 3],
    ],
  ]);
});

test("the threshold has a place on the same scale", () => {
  assert.equal(curve([0, 10], 5).threshold, 20);
  assert.equal(curve([0, 5], 10).threshold, 3);
  assert.equal(curve([1, 2]).threshold, null);
});

test("numbers over decades are on a logarithmic scale", () => {
  const [[, [, middle]]] = curve([1, 10, 100]).lines;
  assert.ok(Math.abs(middle - 20) < 1e-9);
  const [[, [, low]]] = curve([0, 10, 100]).lines; // zero has no logarithm
  assert.ok(Math.abs(low - 33.6) < 1e-9);
});

test("what is not finite, as JSON writes it, breaks the curve and has a mark", () => {
  const { lines, broken } = curve([1, "nan", 2, "Infinity", "NaN"]);
  assert.deepEqual([lines.length, broken], [2, [25, 75, 100]]);
  assert.deepEqual(curve(["nan", "-inf"], "nan"), { lines: [], broken: [0, 100], threshold: null });
});

test("a single number, and numbers that are all the same, are in the middle", () => {
  assert.deepEqual(curve([7]).lines, [[[50, 20]]]);
  assert.deepEqual(curve([3, 3]).lines, [
    [
      [0, 20],
      [100, 20],
    ],
  ]);
  assert.deepEqual(curve([]).lines, []);
});
