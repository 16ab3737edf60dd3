import assert from "node:assert/strict";
import test from "node:test";
import { clearStride, marked } from "page/chart_options.js";

function plot(column, width = 300) {
  return { data: [column.map((_, index) => index), column], series: [{ idxs: [0, column.length - 1] }], width };
}

const [gap, pass] = [null, undefined];

for (const [name, column, isSparse, wanted] of [
  ["stand alone between gaps", [gap, 1, gap, 2, 3, gap, 4], false, [1, 6]],
  ["are joined over what was not measured", [1, pass, pass, 2, pass, 3], false, []],
  ["are the only one", [pass, pass, 7, pass], false, [2]],
  ["are few", [pass, 1, pass, pass, 2, pass], true, [1, 4]],
  ["are none", [pass, gap], true, []],
]) {
  test(`numbers are marked that ${name}`, () => {
    assert.deepEqual(marked(plot(column), 1, isSparse), wanted);
  });
}

test("where marks would touch each other there are none", () => {
  const column = Array.from({ length: 300 }, (_, index) => (index % 3 ? pass : index));
  assert.deepEqual(marked(plot(column), 1, true), []);
});

for (const [name, middles, widths, wanted] of [
  ["all that are apart", [0, 40, 80], [30, 40, 40], 1],
  ["every second one where neighbours touch", [0, 30, 60, 90], [20, 35, 35, 35], 2],
  ["those between which all fit, not only most", [0, 40, 80, 100], [30, 30, 30, 30], 2],
  ["a single one where two would touch", [0, 30], [40, 40], 2],
  ["none where there is none", [], [], 1],
]) {
  test(`labels of an axis are ${name}`, () => {
    assert.equal(clearStride(middles, widths), wanted);
  });
}
