// A histogram as a profile: how much of it lies in each of some columns of equal width.

/**
 * Histograms of some layers at a step: `counts` has a list for each layer, with a number for each bin between `edges`.
 * @typedef {{ step: number, layers: string[], edges: number[], counts: number[][] }} Histogram
 */

/**
 * Shares of all elements: in each column, exactly zero, and outside of the columns.
 * @typedef {{ columns: Float64Array, zero: number, outside: number, elements: number }} Profile
 */

const FEWEST_COLUMNS = 12;

/**
 * How many columns show a shape rather than chance: few for few elements.
 * @param {number[]} counts
 * @param {number} most
 */
export function columnsFor(counts, most) {
  const elements = counts.reduce((sum, count) => sum + count, 0);
  return Math.max(Math.min(Math.round(2 * Math.cbrt(elements)), most), FEWEST_COLUMNS);
}

/**
 * The elements of a bin are evenly spread over it, as they are for quantiles. Zero has a bin so narrow that it would be
 * a needle higher than all the rest, so it is told apart.
 * @param {number[]} edges
 * @param {number[]} counts
 * @param {(value: number) => number} place  from a value to how far from left to right it is, from 0 to 1
 * @param {number} size  how many columns there are
 * @returns {Profile}
 */
export function profile(edges, counts, place, size) {
  const elements = counts.reduce((sum, count) => sum + count, 0);
  const columns = new Float64Array(size);
  let [zero, inside] = [0, 0];
  counts.forEach((count, bin) => {
    if (!count) return;
    const [low, high] = [size * place(edges[bin]), size * place(edges[bin + 1])];
    const share = count / elements;
    if (edges[bin] < 0 && edges[bin + 1] > 0 && high - low < 1) zero += share;
    else inside += spread(columns, low, high, share);
  });
  return { columns, zero, outside: Math.max(1 - zero - inside, 0), elements };
}

/**
 * Add a share to the columns between two places; returns how much of it is in one of them.
 * @param {Float64Array} columns
 * @param {number} low
 * @param {number} high
 * @param {number} share
 */
function spread(columns, low, high, share) {
  const width = high - low;
  if (!(width > 0)) {
    if (!(low >= 0 && low < columns.length)) return 0;
    columns[Math.floor(low)] += share;
    return share;
  }
  let added = 0;
  const end = Math.min(Math.ceil(high), columns.length);
  for (let column = Math.max(Math.floor(low), 0); column < end; column++) {
    const part = (share * (Math.min(column + 1, high) - Math.max(column, low))) / width;
    columns[column] += part;
    added += part;
  }
  return added;
}
