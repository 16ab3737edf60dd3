import assert from "node:assert/strict";
import test from "node:test";
import { curvesOf, hasPositive, isRepeated, isSigned, rangeOf, reachesFar, smooth } from "page/curves.js";

/** A block of one layer with a column for each tick; null is what was not measured. */
function block(statistic, values, { lens = "run", layer = "run", nonfinite = null } = {}) {
  const numbers = Float32Array.from(values, (value) => value ?? NaN);
  const axis = Float64Array.from(values, (_, index) => index);
  return {
    ...{ lens, statistic, layers: [layer], columns: values.length, raw: true, planes: ["mean"] },
    ...{ step: axis, epoch: axis, time: axis, last: axis, mean: numbers, minimum: numbers, maximum: numbers },
    nonfinite: nonfinite && Float32Array.from(nonfinite),
  };
}

function chart(line, { bands = [], lens = "run", layer = "run", limits = null } = {}) {
  return { key: "k", lens, title: "T", scale: "linear", limits, curves: [{ name: "c", layer, line, bands }] };
}

const DEVIATIONS = { low: "l", high: "h", isExtreme: false, isGuess: true };
const EXTREMES = { low: "s", high: "b", isExtreme: true, isGuess: false };

/** The columns of a chart by what they are. */
function columnsOf(spec, blocks, look = {}) {
  const found = curvesOf(spec, [{ name: "first", blocks, started: 0 }], {
    x: "step",
    weight: 0,
    isLog: false,
    ...look,
  });
  const [, ...columns] = found.tables[0];
  const named = Object.fromEntries(
    found.series.map((item, index) => [item.kind, { ...item, values: columns[index] }]).reverse(),
  );
  return { ...named, found };
}

const rounded = (values) => values.map((value) => (typeof value === "number" ? Number(value.toFixed(4)) : value));

test("what is logged now and then is one curve, with every number marked", () => {
  const values = Array.from({ length: 40 }, (_, index) => (index % 10 === 9 ? index : null));
  const { raw } = columnsOf(chart("m"), [block("m", values)]);
  assert.deepEqual(
    raw.values,
    values.map((value) => value ?? undefined),
  );
  assert.equal(raw.isSparse, true);
});

test("a chart that repeats the numbers of another in all runs is known", () => {
  const run = (...blocks) => ({ name: "a", blocks, started: 0 });
  const [logged, loss] = [chart("logged"), chart("loss")];
  const same = run(block("loss", [3, null, 1]), block("logged", [3, null, 1]));
  const other = run(block("loss", [3, null, 1]), block("logged", [3, null, 2]));
  const short = run(block("loss", [null, null, 1]), block("logged", [null, null, 1]));
  assert.equal(isRepeated(logged, [loss], [same]), true);
  assert.equal(isRepeated(logged, [chart("loss", { lens: "another" })], [same]), false);
  assert.equal(isRepeated(logged, [], [same]), false);
  for (const sources of [[], [other], [same, other], [short], [run(block("loss", [3, null, 1]))]])
    assert.equal(isRepeated(logged, [loss], sources), false);
});

test("an evaluation after a step does not hide what the step itself has, beside other runs or alone", () => {
  const steps = Float64Array.from([5, 10, 10]);
  const at = (statistic, values) => ({ ...block(statistic, values), step: steps });
  const spec = chart("loss");
  spec.curves.push({ name: "v", layer: "run", line: "val", bands: [] });
  const [table] = curvesOf(spec, [{ name: "a", blocks: [at("loss", [3, 2, null]), at("val", [null, null, 7])] }], {
    ...{ x: "step", weight: 0, isLog: false },
  }).tables;
  const [xs, , , loss, , , , val] = table;
  assert.deepEqual(xs, [5, 10]);
  assert.deepEqual(loss, [3, 2]);
  assert.deepEqual(val, [undefined, 7]);
});

test("what is measured at most ticks is not marked", () => {
  const { raw } = columnsOf(chart("m"), [block("m", [1, 2, null, 4, 5])]);
  assert.deepEqual(raw.values, [1, 2, undefined, 4, 5]);
  assert.equal(raw.isSparse, false);
});

test("a curve is broken where a number was not finite, and says so at its end", () => {
  const spec = chart("m");
  const broken = columnsOf(spec, [block("m", [1, null, 3, null], { nonfinite: [0, 1, 0, 1] })]).raw;
  assert.deepEqual(broken.values, [1, null, 3, null]);
  assert.equal(broken.endsBroken, true);
  assert.deepEqual(columnsOf(spec, [block("m", [1, Infinity, 3])]).raw.values, [1, null, 3]);
  assert.equal(columnsOf(spec, [block("m", [1, null, 3])]).raw.endsBroken, false);
});

const LAYER = { lens: "Norms", layer: "fc" };

for (const [name, values, wanted] of [
  ["frozen for a while", [1, 1, 1, ...Array(9).fill(null), 2, 2, 2], [1, 1, 1, ...Array(9).fill(null), 2, 2, 2]],
  [
    "measured at every third tick",
    [1, null, null, 2, null, null, 3],
    [1, undefined, undefined, 2, undefined, undefined, 3],
  ],
  [
    "measured ever more seldom",
    [1, 2, null, 3, null, null, null, 4],
    [1, 2, undefined, 3, undefined, undefined, undefined, 4],
  ],
  ["measured twice", [1, null, null, null, null, null, 2], [1, ...Array(5).fill(undefined), 2]],
  ["measured once", [null, 1, null], [undefined, 1, undefined]],
]) {
  test(`a layer that was ${name} has a gap only where it was left out`, () => {
    assert.deepEqual(columnsOf(chart("m", LAYER), [block("m", values, LAYER)]).raw.values, wanted);
  });
}

test("a band of deviations stays inside of what samples were", () => {
  const blocks = [
    block("m", [1, 2]),
    block("l", [-3, 1]),
    block("h", [5, 3]),
    block("s", [0.5, 0]),
    block("b", [2, 9]),
  ];
  const { found } = columnsOf(chart("m", { bands: [DEVIATIONS, EXTREMES] }), blocks);
  const [, weakLow, weakHigh, low, high] = found.tables[0].map(rounded);
  assert.deepEqual(
    [weakLow, weakHigh],
    [
      [0.5, 0],
      [2, 9],
    ],
  );
  assert.deepEqual(
    [low, high],
    [
      [0.5, 1],
      [2, 3],
    ],
  );
});

test("a quantile is where it is, also below 0 with medians that are not", () => {
  const bands = [{ low: "l", high: "h", isExtreme: false, isGuess: false }];
  const { low, high } = columnsOf(chart("m", { bands }), [block("m", [0, 2]), block("l", [-3, 1]), block("h", [5, 3])]);
  assert.deepEqual(
    [low.values, high.values],
    [
      [-3, 1],
      [5, 3],
    ],
  );
});

for (const [name, limits, mean, lows, highs] of [
  ["a loss is not negative where its means are not", null, [1, 2], [0, 1], [3, 3]],
  ["a loss that has been negative may be", null, [-1, 2], [-1, 1], [3, 3]],
  ["a cosine is between -1 and 1", [-1, 1], [0.9, -0.9], [-1, -1], [1, 1]],
  ["a share is between 0 and 1", [0, 1], [0.9, 0.1], [0, 0], [1, 1]],
]) {
  test(`${name}: its band ends there`, () => {
    const below = limits ? [-1.4, -1.2] : [-1, 1];
    const above = limits ? [1.1, 1.3] : [3, 3];
    const blocks = [block("m", mean), block("l", below), block("h", above)];
    const { low, high } = columnsOf(chart("m", { bands: [DEVIATIONS], limits }), blocks);
    assert.deepEqual([rounded(low.values), rounded(high.values)], [lows, highs]);
  });
}

test("on a logarithmic scale a band ends at the smallest number that has a logarithm", () => {
  const blocks = [block("m", [1, 2]), block("l", [-1, 0.5]), block("h", [3, 4])];
  const { low, high } = columnsOf(chart("m", { bands: [DEVIATIONS] }), blocks, { isLog: true });
  assert.deepEqual(
    [low.values, high.values],
    [
      [0.5, 0.5],
      [3, 4],
    ],
  );
});

test("every band is drawn, the widest first and weaker than the others", () => {
  const blocks = [block("m", [2]), block("l", [1]), block("h", [4]), block("q1", [1.5]), block("q3", [3])];
  const bands = [DEVIATIONS, { low: "q1", high: "q3", isExtreme: false, isGuess: false }, EXTREMES];
  const { found } = columnsOf(chart("m", { bands }), [...blocks, block("s", [0]), block("b", [9])]);
  const lows = found.series.map((item, place) => [item.kind, item.strength, found.tables[0][place + 1][0]]);
  assert.deepEqual(
    lows.filter(([kind]) => kind === "low"),
    [
      ["low", "weak", 0],
      ["low", "strong", 1],
      ["low", "strong", 1.5],
    ],
  );
});

test("a band is nowhere that its curve is not", () => {
  const blocks = [block("m", [1, null, 3], { nonfinite: [0, 0, 0] }), block("l", [0, 0, 2]), block("h", [2, 5, 4])];
  const { low, high } = columnsOf(chart("m", { bands: [DEVIATIONS] }), blocks);
  assert.deepEqual(
    [low.values, high.values],
    [
      [0, undefined, 2],
      [2, undefined, 4],
    ],
  );
});

test("numbers with signs are told from numbers whose bands have some", () => {
  const source = (values) => [{ name: "first", blocks: [block("m", values)], started: 0 }];
  assert.equal(isSigned(chart("m"), source([1, 2])), false);
  assert.equal(isSigned(chart("m"), source([1, -2])), true);
  assert.equal(isSigned(chart("m", { limits: [-1, 1] }), source([1])), true);
});

test("numbers of which none is positive are told: there is no logarithm of them", () => {
  const source = (values) => [{ name: "first", blocks: [block("m", values)], started: 0 }];
  assert.equal(hasPositive(chart("m"), source([0, 0, null])), false);
  assert.equal(hasPositive(chart("m"), source([0, 1e-40])), true);
});

test("an axis has room for all numbers, or for all but the outermost", () => {
  const column = Array.from({ length: 101 }, (_, index) => index);
  assert.deepEqual(rangeOf([column, [null, undefined]], false), [0, 100]);
  assert.deepEqual(rangeOf([column], true), [1, 99]);
  assert.equal(rangeOf([[null, undefined]], false), null);
});

test("a number that stays is exactly the same smoothed", () => {
  const [xs, values] = [Array.from({ length: 50 }, (_, index) => 52 + 2 * index), Array(50).fill(0.3)];
  assert.deepEqual(smooth(xs, values, 0.059), values);
});

test("smoothing is an average that forgets, and leaves gaps as they are", () => {
  const values = [1, 3, null, undefined, 3, 3];
  assert.deepEqual(smooth([0, 1, 2, 3, 4, 5], values, 0), values);
  const [first, second, broken, absent, ...rest] = smooth([0, 1, 2, 3, 4, 5], values, 0.5);
  assert.equal(first, 1);
  assert.ok(Math.abs(second - (0.25 * 1 + 0.5 * 3) / 0.75) < 1e-12);
  assert.deepEqual([broken, absent], [null, undefined]);
  assert.ok(rest.every((value) => value > second && value < 3));
});

test("a curve that a layer does not have is left out, and so is a chart without any; broken numbers are no gap", () => {
  const look = { x: "step", weight: 0, isLog: false };
  const of = (statistic, values, fields = {}) => block(statistic, values, { layer: "fc", ...fields });
  const source = (...blocks) => [{ name: "first", blocks, started: 0 }];
  const spec = chart("a", { layer: "fc" });
  spec.curves.push({ name: "d", layer: "fc", line: "b", bands: [] });
  const found = curvesOf(spec, source(of("a", [null, null]), of("b", [1, 2])), look);
  assert.deepEqual(
    found.series.filter(({ kind }) => kind === "raw").map(({ name, number }) => [name, number]),
    [["d", 1]],
  );
  const alone = chart("a", { layer: "fc" });
  assert.deepEqual(curvesOf(alone, source(of("a", [null, null])), look).tables, []);
  assert.equal(curvesOf(alone, source(of("a", [null, null], { nonfinite: [3, 3] })), look).tables.length, 1);
  assert.equal(curvesOf(chart("a"), source(block("a", [null, null])), look).tables.length, 1); // of the whole run
});

for (const [name, values, wanted] of [
  ["an explosion", [2, 1, null, 0.5, 3e20], true],
  ["an explosion into infinity", [2, 1, 0.5, Infinity], false],
  ["a fall by a few decades", [200, 100, 50, 1], false],
  ["an explosion over a zero, which has no logarithm", [2, 0, 0.5, 3e20], false],
  ["nothing", [null], false],
]) {
  test(`numbers are told to reach far above most of them, or not: ${name}`, () => {
    assert.equal(reachesFar(chart("m"), [{ name: "a", blocks: [block("m", values)], started: 0 }]), wanted);
  });
}
