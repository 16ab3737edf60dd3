import assert from "node:assert/strict";
import test from "node:test";
import { columnsFor, profile } from "page/histogram.js";

const near = (found, wanted) =>
  [...found].forEach((value, index) => {
    assert.ok(Math.abs(value - wanted[index]) < 1e-12, `${[...found]} instead of ${wanted}`);
  });
const between = (low, high) => (value) => (value - low) / (high - low);

test("the elements of a bin are evenly spread over the columns that it covers", () => {
  const { columns, zero, outside, elements } = profile([0, 1, 4], [6, 6], between(0, 4), 4);
  near(columns, [0.5, 1 / 6, 1 / 6, 1 / 6]);
  assert.deepEqual([zero, elements], [0, 12]);
  assert.ok(outside < 1e-12);
});

test("bins narrower than a column add up in it, others end inside of one", () => {
  near(profile([0, 0.1, 0.2, 3], [1, 2, 7], between(0, 3), 3).columns, [0.3 + (0.7 * 0.8) / 2.8, 0.25, 0.25]);
});

test("what is outside of the axis is told, not drawn", () => {
  const { columns, outside } = profile([-2, -1, 1, 3], [5, 10, 5], between(0, 2), 2);
  near(columns, [0.25, 0.125]);
  assert.ok(Math.abs(outside - 0.625) < 1e-12);
});

test("zero is told apart where its bin is a needle, and is part of the rest where it is not", () => {
  const edges = [-1, -1e-13, 1e-13, 1];
  const needle = profile(edges, [1, 2, 1], between(-1, 1), 10);
  assert.equal(needle.zero, 0.5);
  near(needle.columns, Array(10).fill(0.05));
  assert.equal(profile([-1, 1], [4], between(-1, 1), 2).zero, 0);
});

test("a logarithmic axis, on which what is not positive has no place", () => {
  const place = (value) => Math.log10(Math.max(value, Number.MIN_VALUE)) / 2;
  const { columns, outside } = profile([-10, -1, 1, 10, 100], [2, 0, 1, 1], place, 2);
  near(columns, [0.25, 0.25]);
  assert.equal(outside, 0.5);
});

test("no elements are an empty profile", () => {
  const { columns, zero, outside, elements } = profile([0, 1], [0], between(0, 1), 3);
  assert.deepEqual([[...columns], zero, elements], [[0, 0, 0], 0, 0]);
  assert.equal(outside, 1);
});

test("few elements have few columns, and there are never more than fit", () => {
  assert.equal(columnsFor([128], 180), 12);
  assert.equal(columnsFor([8000, 8000], 180), 50);
  assert.equal(columnsFor([10 ** 9], 180), 180);
  assert.equal(columnsFor([], 180), 12);
});
