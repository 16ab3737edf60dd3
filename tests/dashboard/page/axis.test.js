import assert from "node:assert/strict";
import test from "node:test";
import { convert, edges, places, Ruler } from "page/axis.js";

const block = {
  step: Float64Array.of(0, 10, 20, 30),
  epoch: Float64Array.of(0, 0, 1, 1),
  time: Float64Array.of(100, 101, 103, 104),
};

test("a column is at its step, at its time since the run began, or within its epoch", () => {
  assert.deepEqual([...places(block, "step", 100)], [0, 10, 20, 30]);
  assert.deepEqual([...places(block, "time", 100)], [0, 1, 3, 4]);
  assert.deepEqual([...places(block, "time", 102)], [0, 0, 1, 2]); // nothing is before the run began
  assert.deepEqual([...places(block, "epoch", 100)], [0, 0.5, 1, 1.5]);
});

test("the last column ends where the next one would begin", () => {
  assert.deepEqual([...edges([0, 10, 20])], [0, 10, 20, 30]);
  assert.deepEqual([...edges([7])], [7, 8]);
  assert.deepEqual([...edges([])], [1]);
});

test("places are even, or where their logarithms are, and back", () => {
  const even = new Ruler([0, 50, 100], "step", false);
  assert.equal(even.share(25), 0.25);
  const logarithmic = new Ruler([1, 10, 100], "step", true);
  assert.ok(Math.abs(logarithmic.share(10) - 0.5) < 1e-12);
  for (const ruler of [even, logarithmic])
    for (const place of [1, 7, 42, 100]) assert.ok(Math.abs(ruler.place(ruler.share(place)) - place) < 1e-9);
});

test("zero stands half-way before the first place that has a logarithm", () => {
  const ruler = new Ruler([0, 2, 4], "step", true);
  assert.equal(ruler.low, 1);
  assert.equal(ruler.share(0), 0);
  assert.deepEqual(ruler.ticks(5), [0, 2, 3, 4]);
  assert.deepEqual(new Ruler([0, 1, 1000], "step", true).ticks(4), [0, 10, 100, 1000]); // 1 would touch the 0
});

test("from one axis to the other, between places and beyond them", () => {
  const [from, to] = [
    [0, 10, 20],
    [0, 100, 400],
  ];
  for (const [value, wanted] of [
    [5, 50],
    [15, 250],
    [-5, 0],
    [99, 400],
  ])
    assert.equal(convert(value, from, to), wanted);
  assert.equal(convert(3, [], []), 3);
});
