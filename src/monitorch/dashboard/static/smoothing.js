// A running average that forgets, corrected for its start and for uneven distances.

export const STRONGEST = 0.999;

/** Smooth values over places; gaps stay gaps. */
export function smooth(xs, values, weight) {
  if (!(weight > 0)) return values;
  const typical = xs.length > 1 ? (xs[xs.length - 1] - xs[0]) / (xs.length - 1) : 1;
  const result = new Array(values.length).fill(null);
  let [sum, mass, before] = [0, 0, null];
  for (let index = 0; index < values.length; index++) {
    const value = values[index];
    if (value === null || value === undefined) continue;
    const keep = Math.min(weight, STRONGEST) ** (before === null || !typical ? 1 : (xs[index] - before) / typical);
    sum = sum * keep + value * (1 - keep);
    mass = mass * keep + (1 - keep);
    before = xs[index];
    result[index] = mass > 0 ? sum / mass : value;
  }
  return result;
}
