import assert from "node:assert/strict";
import test from "node:test";
import { ABSENT, LEVELS, NONFINITE, table, ZERO } from "page/colours.js";
import { chooser, heatModel, pooled, rowLevels } from "page/heat_model.js";

function block(rows, { nonfinite = null, step = null } = {}) {
  const columns = rows[0].length;
  const numbers = Float32Array.from(rows.flat());
  const axis = Float64Array.from(step ?? rows[0].map((_, index) => index));
  return {
    ...{ lens: "L", statistic: "S", layers: rows.map((_, row) => `layer${row}`), columns, raw: true, planes: ["mean"] },
    ...{ step: axis, epoch: axis, time: axis, last: axis, mean: numbers, minimum: numbers, maximum: numbers },
    nonfinite: nonfinite && Float32Array.from(nonfinite.flat()),
  };
}

function model(rows, options = {}) {
  const { nonfinite, other = null, ...rest } = options;
  const usual = { cell: "maximum", colour: "auto", x: "step", started: 0 };
  return heatModel(block(rows, { nonfinite }), { ...usual, other, ...rest });
}

const LIMITS = { name: "S", scale: "linear", limits: [0, 1] };

test("levels are where numbers are between both ends", () => {
  const { levels } = model([[0.25, 0.5, 1, 2, -1]], { look: LIMITS });
  const wanted = [0.25, 0.5, 1, 1, 0].map((share) => share * (LEVELS - 1));
  [...levels].forEach((level, index) => {
    assert.ok(Math.abs(level - wanted[index]) <= 0.5);
  });
});

for (const [name, options, rows] of [
  ["linear", { look: LIMITS }, [[0, 1e-3, 1]]],
  ["logarithmic", { colour: "log" }, [[0, 1e-3, 1]]],
  ["signed", { look: { ...LIMITS, limits: [-1, 1] } }, [[0, 1e-3, 1]]],
]) {
  test(`zero has a level of its own on a ${name} scale, and what is small has not`, () => {
    const { levels, hasZeros } = model(rows, options);
    assert.equal(levels[0], ZERO);
    assert.ok(levels[1] < LEVELS && levels[2] < LEVELS);
    assert.equal(hasZeros, true);
  });
}

test("no difference between two runs is the middle of the scale, not a zero", () => {
  const { levels, hasZeros, isDifference } = model([[1, 2]], { other: block([[1, 3]]), look: LIMITS });
  assert.equal(hasZeros, false);
  assert.equal(isDifference, true);
  assert.ok(Math.abs(levels[0] - LEVELS / 2) <= 1 && levels[1] === LEVELS - 1);
});

test("what is not finite and what was not measured have levels of their own", () => {
  const { levels } = model([[NaN, Infinity, NaN, 1]], { nonfinite: [[1, 1, 0, 0]], look: LIMITS });
  assert.deepEqual([...levels], [NONFINITE, NONFINITE, ABSENT, LEVELS - 1]);
});

test("numbers over decades have logarithmic levels, numbers on both sides of zero a scale with zero in its middle", () => {
  const decades = model([[0.001, 0.1, 10, 1000]]);
  assert.equal(decades.isLog, true);
  const [first, second, third] = decades.levels;
  assert.ok(Math.abs(second - first - (third - second)) <= 1);
  const { low, high, isSigned } = model([[-1, 0.5, 3]]);
  assert.deepEqual([low, high, isSigned], [-3, 3, true]);
});

test("a cell that stands for many shows the worst of them", () => {
  const positive = { low: 0, high: 1, isSigned: false };
  const signed = { low: -1, high: 1, isSigned: true };
  const [small, large, middle] = [3, 200, LEVELS / 2];
  for (const [scale, cell, one, other, wanted] of [
    [positive, "maximum", small, large, large],
    [positive, "minimum", small, large, small],
    [positive, "maximum", ZERO, 0, 0],
    [positive, "minimum", ZERO, 0, ZERO],
    [signed, "maximum", ZERO, middle + 2, middle + 2],
    [signed, "maximum", small, middle + 50, small],
  ]) {
    const worse = chooser(scale, cell);
    assert.equal(pooled(one, other, worse), wanted);
    assert.equal(pooled(other, one, worse), wanted);
  }
  const worse = chooser(positive, "maximum");
  assert.equal(pooled(NONFINITE, large, worse), NONFINITE);
  assert.equal(pooled(ABSENT, ZERO, worse), ZERO);
  assert.equal(pooled(ABSENT, ABSENT, worse), ABSENT);
});

test("a row for several layers is the worst of them at every moment", () => {
  const found = model(
    [
      [0, 0.25],
      [0.5, NaN],
    ],
    {
      look: LIMITS,
      nonfinite: [
        [0, 0],
        [0, 1],
      ],
    },
  );
  assert.deepEqual([...rowLevels(found, [0, 1], "maximum")], [found.levels[2], NONFINITE]);
  assert.deepEqual([...rowLevels(found, [0], "maximum")], [...found.levels.subarray(0, 2)]);
});

test("what is not finite and what was not measured look like nothing on any scale, zero is left for its hatching", () => {
  const special = { neutral: "f2f1ee", nonfinite: "f0245c", absent: "ffffff" };
  for (const map of ["viridis", "cividis", "signed"]) {
    const colours = table(map, special);
    const scale = new Set(colours.subarray(0, LEVELS));
    for (const level of [ZERO, NONFINITE, ABSENT]) assert.equal(scale.has(colours[level]), false);
    assert.equal(colours[ZERO], 0);
  }
});
