// What a chart draws: for each run and curve a band, the numbers, and the numbers smoothed.

import { places } from "page/axis.js";
import { rowOf } from "page/blocks.js";
import { statisticsOf, WHOLE_RUN } from "page/names.js";

/** @import { Block, Plane } from "page/blocks.js" */
/** @import { AxisKind } from "page/format.js" */
/** @import { ChartSpec, CurveSpec } from "page/names.js" */

/**
 * One number for each place of the axis: null where the curve is broken, undefined where nothing was measured and the
 * curve goes on.
 * @typedef {(number | null | undefined)[]} Column
 */

/**
 * What a column is.
 * @typedef {{
 *   run: number, number: number, name: string, source: string, kind: "low" | "high" | "raw" | "smooth",
 *   error: string, strength?: "weak" | "strong", isSparse?: boolean, endsBroken?: boolean,
 * }} Series
 */

/** @typedef {{ name: string, blocks: Block[], started: number }} Source */

/** @typedef {{ tables: [number[], ...Column[]][], series: Series[], broken: Broken[] }} Curves */

/** @typedef {{ edges: number[], counts: Float32Array | null }} Broken */

export const STRONGEST = 0.999;
const ROUNDING = 1e-12;
const HOLE = 4;
const FAR_ABOVE = 1000;

/**
 * Plain columns for the chart, and what each of them is.
 * @param {ChartSpec} spec
 * @param {Source[]} sources
 * @param {{ x: AxisKind, weight: number, isLog: boolean }} look
 * @returns {Curves}
 */
export function curvesOf(spec, sources, { x, weight, isLog }) {
  /** @type {Curves} */
  const found = { tables: [], series: [], broken: [] };
  sources.forEach((source, run) => {
    const blocks = new Map(
      source.blocks.filter((block) => block.lens === spec.lens).map((block) => [block.statistic, block]),
    );
    const main = mainBlock(spec, blocks);
    if (!main) return;
    const xs = Array.from(places(main, x, source.started));
    /** @type {[number[], ...Column[]]} */
    const columns = [xs];
    spec.curves.forEach((curve, number) => {
      const block = blocks.get(curve.line);
      const row = block?.layers.indexOf(curve.layer) ?? -1;
      if (!block || row < 0) return;
      const counts = rowOf(block, "nonfinite", row);
      const values = column(rowOf(block, "mean", row) ?? [], counts, curve.layer === WHOLE_RUN, isLog);
      // a layer need not have all numbers of its lens: those of parameters are not those of modules
      if (curve.layer !== WHOLE_RUN && values.every((value) => value === undefined)) return;
      const common = { run, number, name: curve.name, source: source.name, error: curve.error };
      const range = possible(spec, curve, blocks, row);
      for (const [strength, low, high, isGuess] of bands(curve)) {
        const edges = [edge(blocks.get(low), "minimum", curve.layer), edge(blocks.get(high), "maximum", curve.layer)];
        if (!edges[0] || !edges[1]) continue;
        columns.push(...clipped(edges[0], edges[1], values, isGuess ? range : ANYWHERE, isLog));
        found.series.push({ ...common, kind: "low", strength }, { ...common, kind: "high", strength });
      }
      const lastBroken = counts?.findLastIndex((count) => count > 0) ?? -1;
      const measured = values.filter(isNumber).length;
      const isSparse = 2 * measured < values.length;
      const endsBroken = lastBroken > values.findLastIndex(isNumber);
      columns.push(values, smooth(xs, values, weight));
      found.series.push({ ...common, kind: "raw", isSparse, endsBroken }, { ...common, kind: "smooth", isSparse });
      const last = xs[xs.length - 1] + (xs.length > 1 ? (xs[xs.length - 1] - xs[0]) / (xs.length - 1) : 1);
      found.broken.push({ edges: [...xs, last], counts });
    });
    if (columns.length > 1) found.tables.push(merged(columns));
  });
  return found;
}

/**
 * A place of the axis has one line: an evaluation after a step is a second tick at it, which has what the first one has
 * not. Where both have a number, the later one counts.
 * @param {[number[], ...Column[]]} table
 * @returns {[number[], ...Column[]]}
 */
function merged([xs, ...columns]) {
  const starts = xs.map((_, index) => index).filter((index) => index === 0 || xs[index] !== xs[index - 1]);
  if (starts.length === xs.length) return [xs, ...columns];
  const last = (/** @type {Column} */ values, /** @type {number} */ start, /** @type {number} */ end) =>
    values.slice(start, end).findLast((value) => value !== undefined);
  return [
    starts.map((start) => xs[start]),
    ...columns.map((values) => starts.map((start, place) => last(values, start, starts[place + 1] ?? xs.length))),
  ];
}

/**
 * @param {number | null | undefined} value
 * @returns {value is number}
 */
export function isNumber(value) {
  return value !== null && value !== undefined;
}

/**
 * Whether the numbers themselves, not only their bands, are on both sides of zero.
 * @param {ChartSpec} spec
 * @param {Source[]} sources
 */
export function isSigned(spec, sources) {
  return spec.limits ? spec.limits[0] < 0 : someNumber(spec, sources, (value) => value < 0);
}

/**
 * Whether there is a number that has a logarithm.
 * @param {ChartSpec} spec
 * @param {Source[]} sources
 */
export function hasPositive(spec, sources) {
  return someNumber(spec, sources, (value) => value > 0);
}

/**
 * @param {ChartSpec} spec
 * @param {Source[]} sources
 * @param {(value: number) => boolean} test
 */
function someNumber(spec, sources, test) {
  return sources.some(({ blocks }) =>
    spec.curves.some(({ line, layer }) => {
      const block = blocks.find((known) => known.lens === spec.lens && known.statistic === line);
      const row = block?.layers.indexOf(layer) ?? -1;
      return block !== undefined && row >= 0 && rowOf(block, "mean", row)?.some(test) === true;
    }),
  );
}

/**
 * Whether numbers, all positive, reach so far above most of them that those would look like zero on an even axis.
 * @param {ChartSpec} spec
 * @param {Source[]} sources
 */
export function reachesFar(spec, sources) {
  const all = sources.flatMap((source) => spec.curves.map((curve) => numbersOf(spec.lens, curve, source) ?? []));
  const finite = all.flatMap((numbers) => [...numbers]).filter(Number.isFinite);
  finite.sort((one, other) => one - other);
  const median = finite[Math.floor(finite.length / 2)];
  return finite[0] > 0 && finite[finite.length - 1] > FAR_ABOVE * median;
}

/**
 * Whether a chart has a single curve, whose numbers are exactly those of a curve of another chart, in all runs.
 * @param {ChartSpec} spec
 * @param {ChartSpec[]} others
 * @param {Source[]} sources
 */
export function isRepeated(spec, others, sources) {
  const [own] = spec.curves;
  if (spec.curves.length !== 1 || !sources.length) return false;
  const known = others.filter(({ lens }) => lens === spec.lens).flatMap(({ curves }) => curves);
  return known.some((curve) =>
    sources.every((source) => areSame(numbersOf(spec.lens, own, source), numbersOf(spec.lens, curve, source))),
  );
}

/**
 * @param {string} lens
 * @param {CurveSpec} curve
 * @param {Source} source
 */
function numbersOf(lens, { line, layer }, { blocks }) {
  const block = blocks.find((known) => known.lens === lens && known.statistic === line);
  const row = block?.layers.indexOf(layer) ?? -1;
  return block && row >= 0 ? rowOf(block, "mean", row) : null;
}

/**
 * One number alone may be the same by chance.
 * @param {Float32Array | null} one
 * @param {Float32Array | null} other
 */
function areSame(one, other) {
  if (!one || !other || one.length !== other.length) return false;
  return one.filter(Number.isFinite).length > 1 && one.every((value, place) => Object.is(value, other[place]));
}

/**
 * A block that has one of the curves; all of a lens have the same columns.
 * @param {ChartSpec} spec
 * @param {Map<string, Block>} blocks
 */
function mainBlock(spec, blocks) {
  for (const curve of spec.curves) {
    const found = statisticsOf(curve)
      .map((statistic) => blocks.get(statistic))
      .find((block) => block?.layers.includes(curve.layer));
    if (found) return found;
  }
  return null;
}

/**
 * The widest first, the one with all samples in it; without any, what lies between the numbers of a column.
 * @param {CurveSpec} curve
 * @returns {["weak" | "strong", string, string, boolean][]}
 */
function bands({ line, bands: known }) {
  const sorted = [...known].sort((one, other) => Number(other.isExtreme) - Number(one.isExtreme));
  const found = sorted.map(
    ({ low, high, isExtreme, isGuess }) => /** @type {const} */ ([isExtreme ? "weak" : "strong", low, high, isGuess]),
  );
  return found.length ? found.map((band) => [...band]) : [["strong", line, line, false]];
}

/**
 * A curve's numbers. What was not measured is skipped, unless it is a gap in regular measurements, such as of a layer
 * that was frozen for a while. Numbers that are logged only now and then have no gaps.
 * @param {ArrayLike<number>} numbers
 * @param {Float32Array | null} counts
 * @param {boolean} isWholeRun
 * @param {boolean} isLog
 * @returns {Column}
 */
function column(numbers, counts, isWholeRun, isLog) {
  /** @type {Column} */
  const values = Array.from(numbers, (value, index) => {
    if (Number.isFinite(value)) return isLog && value <= 0 ? null : value;
    return (counts?.[index] ?? 0) > 0 || !Number.isNaN(value) ? null : undefined;
  });
  const known = values.map((value, index) => (isNumber(value) ? index : -1)).filter((index) => index >= 0);
  if (isWholeRun) return values;
  for (let place = 1; place < known.length; place++) {
    const distance = known[place] - known[place - 1];
    const before = place > 1 ? known[place - 1] - known[place - 2] : 0;
    const after = place + 1 < known.length ? known[place + 1] - known[place] : 0;
    const usual = Math.max(before, after);
    if (usual && distance > HOLE * usual) values.fill(null, known[place - 1] + 1, known[place]);
  }
  return values;
}

/**
 * @param {Block | undefined} block
 * @param {Plane} plane
 * @param {string} layer
 */
function edge(block, plane, layer) {
  const row = block?.layers.indexOf(layer) ?? -1;
  return block && row >= 0 ? (rowOf(block, plane, row) ?? rowOf(block, "mean", row)) : null;
}

/** @typedef {(index: number) => [number, number]} Range */

/** @type {Range} */
const ANYWHERE = () => [-Infinity, Infinity];

/**
 * The possible range of samples: the known minimum and maximum, else the limits of the
 * statistic. If no mean is negative, samples are assumed not to be.
 * @param {ChartSpec} spec
 * @param {CurveSpec} curve
 * @param {Map<string, Block>} blocks
 * @param {number} row
 * @returns {Range}
 */
function possible(spec, curve, blocks, row) {
  const all = curve.bands.find(({ isExtreme }) => isExtreme);
  const low = all ? edge(blocks.get(all.low), "minimum", curve.layer) : null;
  const high = all ? edge(blocks.get(all.high), "maximum", curve.layer) : null;
  const main = blocks.get(curve.line);
  const isPositive = !spec.limits && main && !rowOf(main, "minimum", row)?.some((value) => value < 0);
  const [least, most] = spec.limits ?? [isPositive ? 0 : -Infinity, Infinity];
  return (index) => [finite(low?.[index]) ?? least, finite(high?.[index]) ?? most];
}

/** @param {number | undefined} value */
function finite(value) {
  return value !== undefined && Number.isFinite(value) ? value : null;
}

/**
 * The edges of a band where there is a number between them, limited to the possible range.
 * @param {Float32Array} low
 * @param {Float32Array} high
 * @param {Column} values
 * @param {Range} range
 * @param {boolean} isLog
 * @returns {[Column, Column]}
 */
function clipped(low, high, values, range, isLog) {
  // a logarithmic axis needs a positive lower end
  const floor = isLog ? smallestPositive(low, values) : -Infinity;
  const inside = (/** @type {number} */ value, /** @type {number} */ index) => {
    if (!isNumber(values[index]) || !Number.isFinite(value)) return values[index] === undefined ? undefined : null;
    const [least, most] = range(index);
    return Math.max(Math.min(Math.max(value, least), most), floor);
  };
  return [Array.from(low, inside), Array.from(high, inside)];
}

/** @param {...Iterable<number | null | undefined>} columns */
function smallestPositive(...columns) {
  let smallest = Infinity;
  for (const numbers of columns) {
    for (const value of numbers) if (isNumber(value) && value > 0 && value < smallest) smallest = value;
  }
  return smallest;
}

/**
 * The range of an axis: all numbers, or without the outermost 1 % on each side.
 * @param {Column[]} columns
 * @param {boolean} isRobust
 * @returns {[number, number] | null}
 */
export function rangeOf(columns, isRobust) {
  const all = columns.flat().filter(isNumber);
  if (!all.length) return null;
  if (!isRobust || all.length < 20) {
    let [low, high] = [Infinity, -Infinity];
    for (const value of all) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    return [low, high];
  }
  all.sort((one, other) => one - other);
  return [all[Math.floor(0.01 * (all.length - 1))], all[Math.ceil(0.99 * (all.length - 1))]];
}

/**
 * An exponential moving average, corrected for its start and for uneven distances; gaps stay gaps.
 * @param {number[]} xs
 * @param {Column} values
 * @param {number} weight
 * @returns {Column}
 */
export function smooth(xs, values, weight) {
  if (!(weight > 0)) return values;
  const typical = xs.length > 1 ? (xs[xs.length - 1] - xs[0]) / (xs.length - 1) : 1;
  let [sum, mass] = [0, 0];
  /** @type {number | null} */
  let before = null;
  return values.map((value, index) => {
    if (!isNumber(value)) return value;
    const keep = Math.min(weight, STRONGEST) ** (before === null || !typical ? 1 : (xs[index] - before) / typical);
    sum = sum * keep + value * (1 - keep);
    mass = mass * keep + (1 - keep);
    before = xs[index];
    const found = mass > 0 ? sum / mass : value;
    // a number that stays is a straight line: rounded to pixels, errors of its last digit would be steps
    return Math.abs(found - value) <= ROUNDING * Math.abs(value) ? value : found;
  });
}
