// From numbers to levels of colour: what the heat map shows, without any drawing.

import { edges, places } from "page/axis.js";
import { upperBound } from "page/blocks.js";
import { ABSENT, LEVELS, NONFINITE } from "page/colours.js";

const SAMPLE = 8000;
const LOG_RATIO = 30;
const SYMLOG_RANGE = 1000;

/** Levels `[layer][column]` of a block, or of what another run differs by. */
export function heatModel(block, { cell, colour, look, x, started, other, alerts }) {
  const own = block[cell] ?? block.mean;
  const values = other
    ? difference(block, own, other, other[cell] ?? other.mean, colour, look)
    : { numbers: own, isRatio: false };
  const flags = flagged(block, other);
  const scale = scaleOf(
    values.numbers,
    flags,
    other ? { ...look, limits: null } : look,
    other ? "linear" : colour,
    Boolean(other),
  );
  const xs = places(block, x, started);
  const model = {
    block,
    layers: block.layers,
    columns: block.columns,
    numbers: values.numbers,
    isRatio: values.isRatio,
    ...scale,
    xs,
    edges: edges(xs),
  };
  model.levels = levelsOf(values.numbers, flags, scale);
  model.scores = scores(model, alerts);
  return model;
}

/** 1 where something was not finite, 2 where nothing was measured. */
function flagged(block, other) {
  return { nonfinite: block.nonfinite, others: other?.nonfinite ? aligned(block, other, other.nonfinite) : null };
}

/** The numbers of another run at the layers and steps of this one. */
function aligned(block, other, plane) {
  const result = new Float32Array(block.layers.length * block.columns).fill(NaN);
  const columns = Array.from(block.step, (step) =>
    step > other.last[other.columns - 1] ? -1 : upperBound(other.step, step) - 1,
  );
  block.layers.forEach((name, row) => {
    const source = other.layers.indexOf(name);
    if (source < 0) return;
    columns.forEach((column, place) => {
      if (column >= 0) result[row * block.columns + place] = plane[source * other.columns + column];
    });
  });
  return result;
}

/** How far the other run is from this one; as powers of two where numbers are positive and far apart. */
function difference(block, own, other, theirs, colour, look) {
  const there = aligned(block, other, theirs);
  const isRatio =
    colour !== "linear" && !look?.limits && own.every((value) => !(value < 0)) && there.every((value) => !(value < 0));
  const numbers = there.map((value, index) => (isRatio ? Math.log2(value / own[index]) : value - own[index]));
  return { numbers, isRatio };
}

/** Some thousand finite numbers, sorted; a prime stride meets all columns. */
function sampled(values) {
  const stride = values.length > 2 * SAMPLE ? nextPrime(Math.floor(values.length / SAMPLE)) : 1;
  const found = new Float32Array(Math.ceil(values.length / stride));
  let count = 0;
  for (let index = 0; index < values.length; index += stride)
    if (Number.isFinite(values[index])) found[count++] = values[index];
  return found.subarray(0, count).sort();
}

function nextPrime(number) {
  const isPrime = (candidate) => {
    for (let factor = 2; factor * factor <= candidate; factor++) if (candidate % factor === 0) return false;
    return candidate > 1;
  };
  while (!isPrime(number)) number++;
  return number;
}

function scaleOf(values, flags, look, colour, isDifference) {
  const sample = sampled(values);
  const at = (share) => sample[Math.round(share * (sample.length - 1))] ?? 0;
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

/** A number on the scale of the colours; `unit` is where a symlog scale begins to be linear. */
function folded(value, isLog, unit) {
  if (isLog) return Math.log(Math.max(value, 1e-45));
  return unit ? Math.asinh(value / unit) : value;
}

function levelsOf(values, flags, { low, high, isLog, unit }) {
  const levels = new Uint8Array(values.length);
  const [start, end] = [folded(low, isLog, unit), folded(high, isLog, unit)];
  const factor = (LEVELS - 1) / (end - start);
  for (let index = 0; index < values.length; index++) {
    const value = values[index];
    if (flags.nonfinite?.[index] > 0 || flags.others?.[index] > 0) levels[index] = NONFINITE;
    else if (value !== value) levels[index] = ABSENT;
    else {
      const place = (folded(value, isLog, unit) - start) * factor;
      levels[index] = place <= 0 ? 0 : place >= LEVELS - 1 ? LEVELS - 1 : place + 0.5;
    }
  }
  return levels;
}

/** How bad each layer is: not finite first, then alerts, then how far its newest number is from the median layer. */
function scores({ layers, columns, numbers, levels, isLog }, alerts) {
  const newest = layers.map((_, row) => {
    for (let index = (row + 1) * columns - 1; index >= row * columns; index--) {
      if (levels[index] < LEVELS) return folded(numbers[index], isLog, null);
    }
    return NaN;
  });
  const sorted = newest.filter((value) => !Number.isNaN(value)).sort((one, other) => one - other);
  const median = sorted[sorted.length >> 1] ?? 0;
  const widest = Math.max(...sorted.map((value) => Math.abs(value - median)), 1e-30);
  return layers.map((name, row) => {
    let broken = 0;
    for (let index = row * columns; index < (row + 1) * columns; index++) broken += levels[index] === NONFINITE;
    const distance = Number.isNaN(newest[row]) ? 0 : Math.abs(newest[row] - median) / widest;
    return 1e6 * broken + 10 * (alerts.get(name) ?? 0) + distance;
  });
}

/** The levels of a row: those of its layer, or of the worst layer it stands for. */
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

export function chooser(model, cell) {
  if (model.isSigned) return (one, other) => (Math.abs(one - LEVELS / 2) > Math.abs(other - LEVELS / 2) ? one : other);
  return cell === "minimum" ? Math.min : Math.max;
}

export function pooled(one, other, worse) {
  if (one === NONFINITE || other === NONFINITE) return NONFINITE;
  if (one === ABSENT) return other;
  return other === ABSENT ? one : worse(one, other);
}
