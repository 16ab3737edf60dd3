// Where a column is: at its step, its epoch (which may be a tick) or its time.

import { upperBound } from "page/blocks.js";
import { logTicks, ticks } from "page/format.js";

/** @import { Block } from "page/blocks.js" */
/** @import { AxisKind } from "page/format.js" */

/** @type {Record<AxisKind, string>} */
export const KINDS = { step: "Step", epoch: "Epoch", time: "Time" };

/**
 * The place of each column of a block; `started` is when its run began.
 * @param {Block} block
 * @param {AxisKind} kind
 * @param {number} started
 */
export function places(block, kind, started) {
  if (kind === "time") return block.time.map((time) => Math.max(time - started, 0));
  return kind === "epoch" ? epochs(block.epoch) : block.step;
}

/**
 * Columns of one epoch are spread evenly over it.
 * @param {Float64Array} epoch
 */
function epochs(epoch) {
  const spread = new Float64Array(epoch.length);
  let width = 1;
  for (let start = 0; start < epoch.length; ) {
    let end = start;
    while (end < epoch.length && epoch[end] === epoch[start]) end++;
    width = end < epoch.length ? end - start : Math.max(width, end - start);
    for (let index = start; index < end; index++) spread[index] = epoch[index] + (index - start) / width;
    start = end;
  }
  return spread;
}

/**
 * Where columns begin, and where the last one ends: one more place than there are columns.
 * @param {ArrayLike<number>} xs
 */
export function edges(xs) {
  const all = new Float64Array(xs.length + 1);
  all.set(xs);
  const typical = xs.length > 1 ? (xs[xs.length - 1] - xs[0]) / (xs.length - 1) : 1;
  all[xs.length] = xs.length ? xs[xs.length - 1] + (typical || 1) : 1;
  return all;
}

/** The label of zero is not at its place, so others keep away from it: so far, of the room that a label has. */
const NEAREST_TO_ZERO = 0.6;

/** Where places are between both ends of a panel: evenly, or by their logarithms. */
export class Ruler {
  /**
   * @param {Float64Array | number[]} edges
   * @param {AxisKind} kind
   * @param {boolean} isLog
   */
  constructor(edges, kind, isLog) {
    this.kind = kind;
    this.isLog = isLog;
    this.high = edges[edges.length - 1];
    this.hasZero = isLog && edges[0] <= 0;
    // zero has no logarithm: it is put half-way before the first position that has one
    this.low = this.hasZero ? (edges.find((edge) => edge > 0) ?? 1) / 2 : edges[0];
  }

  /** @param {number} place */
  fold(place) {
    return this.isLog ? Math.log(Math.max(place, this.low)) : place;
  }

  /** @param {number} folded */
  unfold(folded) {
    return this.isLog ? Math.exp(folded) : folded;
  }

  /**
   * From a place to how far from left to right it is, between 0 and 1.
   * @param {number} place
   */
  share(place) {
    const low = this.fold(this.low);
    return (this.fold(place) - low) / (this.fold(this.high) - low);
  }

  /**
   * The inverse.
   * @param {number} share
   */
  place(share) {
    const low = this.fold(this.low);
    return this.unfold(low + share * (this.fold(this.high) - low));
  }

  /**
   * Round positions for this many labels.
   * @param {number} wanted
   */
  ticks(wanted) {
    if (!this.isLog) return ticks(this.low, this.high, wanted, this.kind);
    if (!this.hasZero) return logTicks(this.low, this.high, wanted, this.kind);
    const places = logTicks(2 * this.low, this.high, wanted, this.kind);
    return [0, ...places.filter((place) => this.share(place) * wanted > NEAREST_TO_ZERO)];
  }
}

/**
 * From one sorted axis to another, with interpolation.
 * @param {number} value
 * @param {ArrayLike<number>} from
 * @param {ArrayLike<number>} to
 */
export function convert(value, from, to) {
  if (!from.length) return value;
  const place = upperBound(from, value);
  if (place <= 0) return to[0];
  if (place >= from.length) return to[to.length - 1];
  const span = from[place] - from[place - 1];
  return to[place - 1] + (span ? (value - from[place - 1]) / span : 0) * (to[place] - to[place - 1]);
}
