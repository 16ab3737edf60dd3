// From numbers to levels of colour: what the heat map shows, without any drawing.

import { edges, places } from "page/axis.js";
import { upperBound } from "page/blocks.js";
import { ABSENT, LEVELS, NONFINITE, ZERO } from "page/colours.js";

/** @import { Block, Plane } from "page/blocks.js" */
/** @import { StatisticFacts } from "page/data.js" */
/** @import { AxisKind } from "page/format.js" */

const SAMPLE = 8000;
const LOG_RATIO = 30;
const SYMLOG_RANGE = 1000;

/**
 * Where levels begin and end; `unit` is where a symlog scale becomes linear.
 * @typedef {{ low: number, high: number, isLog: boolean, isSigned: boolean, unit: number | null }} Scale
 */

/**
 * Levels and numbers are `[layer][column]`; `edges` are where columns begin, and where the last one ends.
 * @typedef {Scale & {
 *   block: Block, layers: string[], columns: number, numbers: Float32Array, isRatio: boolean, isDifference: boolean,
 *   xs: Float64Array, edges: Float64Array, levels: Uint8Array, hasZeros: boolean,
 * }} HeatModel
 */

/** @typedef {"auto" | "linear" | "log"} Colour */

/** @typedef {Exclude<Plane, "nonfinite">} Cell */

/**
 * The levels of a block, or of its difference to another run.
 * @param {Block} block
 * @param {{
 *   cell: Cell, colour: Colour, look?: StatisticFacts, x: AxisKind, started: number, other: Block | null,
 * }} options
 * @returns {HeatModel}
 */
export function heatModel(block, { cell, colour, look, x, started, other }) {
  const own = block[cell] ?? block.mean;
  const { numbers, isRatio } = other
    ? difference(block, own, other, other[cell] ?? other.mean, colour, look)
    : { numbers: own, isRatio: false };
  const isDifference = other !== null;
  const scale = scaleOf(numbers, isDifference ? null : (look ?? null), isDifference ? "linear" : colour, isDifference);
  const levels = levelsOf(numbers, flagged(block, other), scale, !isDifference);
  const xs = places(block, x, started);
  return {
    ...{ block, layers: block.layers, columns: block.columns, numbers, isRatio, isDifference, ...scale, levels },
    xs,
    edges: edges(xs),
    hasZeros: levels.includes(ZERO),
  };
}

/**
 * How many samples were non-finite in each cell, here or in the other run.
 * @param {Block} block
 * @param {Block | null} other
 */
function flagged(block, other) {
  return [block.nonfinite, other?.nonfinite ? aligned(block, other, other.nonfinite) : null].filter(
    (counts) => counts !== null,
  );
}

/**
 * The numbers of another run at the layers and steps of this one.
 * @param {Block} block
 * @param {Block} other
 * @param {Float32Array} plane
 */
function aligned(block, other, plane) {
  const result = new Float32Array(block.layers.length * block.columns).fill(NaN);
  const columns = Array.from(block.step, (step) =>
    step > other.last[other.columns - 1] ? -1 : upperBound(other.step, step) - 1,
  );
  const rows = new Map(other.layers.map((name, row) => [name, row]));
  block.layers.forEach((name, row) => {
    const source = rows.get(name);
    if (source === undefined) return;
    columns.forEach((column, place) => {
      if (column >= 0) result[row * block.columns + place] = plane[source * other.columns + column];
    });
  });
  return result;
}

/**
 * The difference of the other run from this one; as powers of two if numbers are positive and far apart.
 * @param {Block} block
 * @param {Float32Array} own
 * @param {Block} other
 * @param {Float32Array} theirs
 * @param {Colour} colour
 * @param {StatisticFacts | undefined} look
 */
function difference(block, own, other, theirs, colour, look) {
  const there = aligned(block, other, theirs);
  const isRatio =
    colour !== "linear" && !look?.limits && own.every((value) => !(value < 0)) && there.every((value) => !(value < 0));
  const numbers = there.map((value, index) => (isRatio ? Math.log2(value / own[index]) : value - own[index]));
  return { numbers, isRatio };
}

/**
 * Some thousand finite numbers, sorted; a prime stride meets all columns.
 * @param {Float32Array} values
 */
function sampled(values) {
  const stride = values.length > 2 * SAMPLE ? nextPrime(Math.floor(values.length / SAMPLE)) : 1;
  const found = new Float32Array(Math.ceil(values.length / stride));
  let count = 0;
  for (let index = 0; index < values.length; index += stride)
    if (Number.isFinite(values[index])) found[count++] = values[index];
  return found.subarray(0, count).sort();
}

/** @param {number} least */
function nextPrime(least) {
  const isPrime = (/** @type {number} */ candidate) => {
    for (let factor = 2; factor * factor <= candidate; factor++) if (candidate % factor === 0) return false;
    return candidate > 1;
  };
  let found = least;
  while (!isPrime(found)) found++;
  return found;
}

/**
 * @param {Float32Array} values
 * @param {StatisticFacts | null} look
 * @param {Colour} colour
 * @param {boolean} isDifference
 * @returns {Scale}
 */
function scaleOf(values, look, colour, isDifference) {
  const sample = sampled(values);
  const at = (/** @type {number} */ share) => sample[Math.round(share * (sample.length - 1))] ?? 0;
  let [low, high] = look?.limits ?? [at(0.005), at(0.995)];
  const smallest = sample.find((value) => value > 0) ?? 1e-12;
  const canLog = sample.length > 0 && sample[0] >= 0 && high > 0;
  const isSigned = isDifference || (low < 0 && high > 0);
  const isLog =
    canLog &&
    !isSigned &&
    (colour === "log" ||
      (colour === "auto" && (look?.scale === "log" || (!look?.limits && high / Math.max(low, smallest) > LOG_RATIO))));
  if (isSigned && !look?.limits) high = Math.max(Math.abs(low), Math.abs(high));
  if (isSigned && !look?.limits) low = -high;
  if (isLog) low = Math.max(low, smallest);
  if (!(high > low)) [low, high] = isLog ? [low / 2, low * 2] : [low - 0.5, low + 0.5];
  const unit = isSigned && colour === "log" ? Math.max(high, -low) / SYMLOG_RANGE : null;
  return { low, high, isLog, isSigned, unit };
}

/**
 * A number on the scale of the colours.
 * @param {number} value
 * @param {boolean} isLog
 * @param {number | null} unit
 */
function folded(value, isLog, unit) {
  if (isLog) return Math.log(Math.max(value, 1e-45));
  return unit ? Math.asinh(value / unit) : value;
}

/**
 * @param {Float32Array} values
 * @param {Float32Array[]} flags
 * @param {Scale} scale
 * @param {boolean} hasZero  whether zero is told from what is small
 */
function levelsOf(values, flags, { low, high, isLog, unit }, hasZero) {
  const levels = new Uint8Array(values.length);
  const [start, end] = [folded(low, isLog, unit), folded(high, isLog, unit)];
  const factor = (LEVELS - 1) / (end - start);
  const [nonfinite, others] = flags;
  for (let index = 0; index < values.length; index++) {
    const value = values[index];
    if (nonfinite?.[index] > 0 || others?.[index] > 0) levels[index] = NONFINITE;
    else if (Number.isNaN(value)) levels[index] = ABSENT;
    else if (value === 0 && hasZero) levels[index] = ZERO;
    else {
      const place = (folded(value, isLog, unit) - start) * factor;
      levels[index] = place <= 0 ? 0 : place >= LEVELS - 1 ? LEVELS - 1 : place + 0.5;
    }
  }
  return levels;
}

/** @typedef {(one: number, other: number) => number} Chooser */

/**
 * The levels of a row: those of its layer, or of the worst layer in its group.
 * @param {HeatModel} model
 * @param {number[]} members
 * @param {Cell} cell
 */
export function rowLevels(model, members, cell) {
  const { levels, columns } = model;
  if (members.length === 1) return levels.subarray(members[0] * columns, (members[0] + 1) * columns);
  const result = new Uint8Array(columns).fill(ABSENT);
  const worse = chooser(model, cell);
  for (const member of members) {
    for (let column = 0; column < columns; column++) {
      result[column] = pooled(result[column], levels[member * columns + column], worse);
    }
  }
  return result;
}

/**
 * Which of two levels to show in a cell that covers both.
 * @param {Scale} scale
 * @param {Cell} cell
 * @returns {Chooser}
 */
export function chooser({ low, high, isSigned }, cell) {
  const middle = LEVELS / 2;
  // zero lies beyond the end of a scale that begins or ends there
  const zero = isSigned ? middle : low >= 0 ? -1 : high <= 0 ? LEVELS : middle;
  const rank = (/** @type {number} */ level) => (level === ZERO ? zero : level);
  if (isSigned) return (one, other) => (Math.abs(rank(one) - middle) > Math.abs(rank(other) - middle) ? one : other);
  if (cell === "minimum") return (one, other) => (rank(one) < rank(other) ? one : other);
  return (one, other) => (rank(one) > rank(other) ? one : other);
}

/**
 * The same for all kinds of cells: non-finite always shows, and "not measured" never hides a number.
 * @param {number} one
 * @param {number} other
 * @param {Chooser} worse
 */
export function pooled(one, other, worse) {
  if (one === NONFINITE || other === NONFINITE) return NONFINITE;
  if (one === ABSENT) return other;
  return other === ABSENT ? one : worse(one, other);
}
