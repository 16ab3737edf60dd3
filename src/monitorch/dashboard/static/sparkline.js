// The numbers of a finding as a small curve, with the threshold that they have passed.

import { element } from "page/dom.js";
import { count, number } from "page/format.js";

/** @import { Evidence } from "page/health.js" */

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, MARGIN] = [100, 40, 3];
const LOG_RATIO = 50;

/**
 * A curve in a box of 100 by 40, its y axis down: the lines that it consists of, where it is not finite, and where the
 * threshold is.
 * @typedef {{ lines: [number, number][][], broken: number[], threshold: number | null }} Outline
 */

/**
 * @param {Evidence} evidence
 * @returns {Outline}
 */
export function outline({ steps, values, threshold }) {
  const numbers = values.map(Number);
  const limit = threshold === null ? NaN : Number(threshold);
  const known = [...numbers, limit].filter(Number.isFinite);
  const isLog = known.length > 0 && Math.min(...known) > 0 && Math.max(...known) > LOG_RATIO * Math.min(...known);
  const folded = (/** @type {number} */ value) => (isLog ? Math.log(value) : value);
  const ends = [Math.min(...known), Math.max(...known)].map(folded);
  const [first, last] = [steps[0], steps[steps.length - 1]];
  const x = (/** @type {number} */ step) => (last > first ? (WIDTH * (step - first)) / (last - first) : WIDTH / 2);
  const y = (/** @type {number} */ value) =>
    ends[1] > ends[0] ? MARGIN + ((HEIGHT - 2 * MARGIN) * (ends[1] - folded(value))) / (ends[1] - ends[0]) : HEIGHT / 2;
  /** @type {Outline} */
  const found = { lines: [], broken: [], threshold: Number.isFinite(limit) ? y(limit) : null };
  let isBroken = true;
  steps.forEach((step, place) => {
    const value = numbers[place];
    if (Number.isFinite(value)) {
      if (isBroken) found.lines.push([]);
      found.lines[found.lines.length - 1].push([x(step), y(value)]);
    } else found.broken.push(x(step));
    isBroken = !Number.isFinite(value);
  });
  return found;
}

/**
 * The curve, what it is of, its last number and its threshold.
 * @param {Evidence} evidence
 */
export function sparkline(evidence) {
  const { series, place, steps, values, threshold } = evidence;
  const { lines, broken, threshold: limit } = outline(evidence);
  const drawing = shape("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  for (const x of broken) drawing.append(shape("line", { class: "broken", x1: x, x2: x, y1: 0, y2: HEIGHT }));
  if (limit !== null) drawing.append(shape("line", { class: "limit", x1: 0, x2: WIDTH, y1: limit, y2: limit }));
  for (const line of lines) {
    const points = line.length > 1 ? line : [line[0], [line[0][0] + 0.5, line[0][1]]]; // a single number is a dot
    drawing.append(
      shape("polyline", { points: points.map((point) => point.map((part) => part.toFixed(2)).join()).join(" ") }),
    );
  }
  const name = series.replaceAll("_", " ");
  const facts = [`last ${number(Number(values[values.length - 1]))}`];
  if (threshold !== null) facts.push(`threshold ${number(Number(threshold))}`);
  const span = `steps ${count(steps[0])} to ${count(steps[steps.length - 1])}`;
  return element(
    "figure",
    { class: "sparkline", title: [name, place, span].filter(Boolean).join(", ") },
    drawing,
    element(
      "figcaption",
      {},
      element("span", { class: "series", text: name }),
      element("span", { text: facts.join(" · ") }),
    ),
  );
}

/**
 * @param {string} name
 * @param {Record<string, string | number>} attributes
 */
function shape(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  return node;
}
