// Where a column is: at its step, its epoch or its time.

import { upperBound } from "./blocks.js";

export const KINDS = { step: "Step", epoch: "Epoch", time: "Time" };

/** The place of each column of a block; `started` is when its run began. */
export function places(block, kind, started) {
  if (kind === "time") return block.time.map((time) => Math.max(time - started, 0));
  return kind === "epoch" ? epochs(block.epoch) : block.step;
}

/** Columns of one epoch are spread evenly over it. */
function epochs(epoch) {
  const spread = new Float64Array(epoch.length);
  let width = 1;
  for (let start = 0; start < epoch.length;) {
    let end = start;
    while (end < epoch.length && epoch[end] === epoch[start]) end++;
    width = end < epoch.length ? end - start : Math.max(width, end - start);
    for (let index = start; index < end; index++) spread[index] = epoch[index] + (index - start) / width;
    start = end;
  }
  return spread;
}

/** Where columns begin, and where the last one ends: one more place than there are columns. */
export function edges(xs) {
  const all = new Float64Array(xs.length + 1);
  all.set(xs);
  const typical = xs.length > 1 ? (xs[xs.length - 1] - xs[0]) / (xs.length - 1) : 1;
  all[xs.length] = xs.length ? xs[xs.length - 1] + (typical || 1) : 1;
  return all;
}

/** From one sorted axis to the other, in between as well. */
export function convert(value, from, to) {
  if (!from.length) return value;
  const place = upperBound(from, value);
  if (place <= 0) return to[0];
  if (place >= from.length) return to[to.length - 1];
  const span = from[place] - from[place - 1];
  return to[place - 1] + (span ? (value - from[place - 1]) / span : 0) * (to[place] - to[place - 1]);
}
