// How a chart draws: its scales, axes, curves and bands.

import { fade } from "page/colours.js";
import { isNumber } from "page/curves.js";
import { cssColour } from "page/dom.js";
import { logTicks, positionLabels, symlogTicks, tickLabels, ticks } from "page/format.js";
import { lastWords } from "page/text.js";

/** @import { Chart } from "page/chart.js" */

/** @typedef {"linear" | "log" | "symlog"} ScaleKind */

/** @type {Record<ScaleKind, 1 | 3 | 4>} */
const DISTRIBUTIONS = { linear: 1, log: 3, symlog: 4 };
const OWN_DISTRIBUTION = 100;
const LABEL_PIXELS = { x: 64, apart: 8, y: 24 };
const FEWEST_LABELS = 2;
const AXIS_PIXELS = { letter: 6.3, least: 32, usual: 50, name: 15 };
const BELOW_AND_ABOVE = 28;
const HALF_LABEL = 7;
const MARKER_PIXELS = 4;
const ROOM_PER_MARKER = 9;
/** uPlot takes smaller distances from a table of its own only. */
const LEAST_INCREMENT = 5;

/**
 * All options but sizes and events; `unit` is where a symlog scale becomes linear.
 * @param {Chart} chart
 * @param {number} unit
 * @returns {Pick<uPlot.Options, "legend" | "padding" | "scales" | "axes" | "series" | "bands">}
 */
export function lookOf(chart, unit) {
  const { series, bands } = curveLooks(chart);
  return {
    legend: { show: false },
    padding: [6, 20, 0, 0],
    scales: {
      x: {
        time: false,
        distr: chart.ruler.isLog ? OWN_DISTRIBUTION : DISTRIBUTIONS.linear,
        fwd: (place) => chart.ruler.fold(place),
        bwd: (folded) => chart.ruler.unfold(folded),
        range: (_, low, high) => [low, high],
      },
      y: { distr: DISTRIBUTIONS[chart.kind], asinh: unit, range: (_, low, high) => [low, high] },
    },
    axes: axesOf(chart, unit),
    series: [{}, ...series],
    bands,
  };
}

/**
 * @param {Chart} chart
 * @param {number} unit
 * @returns {uPlot.Axis[]}
 */
function axesOf(chart, unit) {
  const common = {
    stroke: cssColour("--muted"),
    grid: { stroke: cssColour("--grid"), width: 1 },
    ticks: { show: false },
    font: `11px ${cssColour("--sans")}`,
    filter: (/** @type {uPlot} */ _, /** @type {number[]} */ places) => places,
    // places of labels are chosen here; uPlot knows no distances above 1e17, and would draw no axis
    incrs: (
      /** @type {uPlot} */ _,
      /** @type {number} */ __,
      /** @type {number} */ low,
      /** @type {number} */ high,
    ) => [Math.max(high - low, LEAST_INCREMENT)],
  };
  const splits = splitsOf(chart.kind, unit);
  return [
    {
      ...common,
      size: 20,
      gap: 3,
      values: (_, places) => positionLabels(places, chart.ruler.kind),
      splits: (plot) => {
        const { ruler } = chart;
        const room = plot.bbox.width / devicePixelRatio || plot.width;
        const places = ruler.ticks(Math.max(room / LABEL_PIXELS.x, FEWEST_LABELS));
        const widths = positionLabels(places, ruler.kind).map((text) => widthOf(plot, text) + LABEL_PIXELS.apart);
        const middles = places.map((place) => ruler.share(place) * room);
        const stride = clearStride(middles, widths);
        return places.filter((_, index) => index % stride === 0);
      },
    },
    {
      ...common,
      size: (_, texts) => labelRoom(chart, texts),
      gap: 4,
      label: (plot) => fittingName(plot, chart.name.title),
      labelFont: `11px ${cssColour("--sans")}`,
      labelSize: AXIS_PIXELS.name,
      labelGap: 0,
      values: (plot, places) => {
        const labels = tickLabels(places);
        return labels.map((label, index) => (touchesName(chart, plot, label, places[index], labels) ? null : label));
      },
      splits: (plot, _, low, high) => splits(low, high, plot.height / LABEL_PIXELS.y),
    },
  ];
}

/**
 * The least stride with which labels do not touch: every one, every second, every third …
 * @param {number[]} middles
 * @param {number[]} widths
 */
export function clearStride(middles, widths) {
  const areApart = (/** @type {number} */ stride) => {
    for (let next = stride; next < middles.length; next += stride) {
      const before = next - stride;
      if (middles[next] - middles[before] < (widths[before] + widths[next]) / 2) return false;
    }
    return true;
  };
  let stride = 1;
  while (!areApart(stride)) stride++;
  return stride;
}

/**
 * Where the labels of an axis of numbers are.
 * @param {ScaleKind} kind
 * @param {number} unit
 * @returns {(low: number, high: number, wanted: number) => number[]}
 */
export function splitsOf(kind, unit) {
  if (kind === "symlog") return (low, high, wanted) => symlogTicks(low, high, wanted, unit);
  return kind === "log" ? logTicks : ticks;
}

/**
 * The room that labels take. Charts below each other align their axes where that is enough; a chart beside others need
 * not.
 * @param {Chart} chart
 * @param {(string | null)[] | null} texts
 */
function labelRoom(chart, texts) {
  const letters = Math.max(...(texts ?? []).map((text) => text?.length ?? 0), 0);
  const least = chart.isAlone ? AXIS_PIXELS.least : AXIS_PIXELS.usual;
  return Math.max(Math.ceil(letters * AXIS_PIXELS.letter) + 8, least);
}

/**
 * Whether a label runs into the name of the x axis, which is in the corner below it.
 * @param {Chart} chart
 * @param {uPlot} plot
 * @param {string} label
 * @param {number} place
 * @param {string[]} labels
 */
function touchesName(chart, plot, label, place, labels) {
  const room = AXIS_PIXELS.name + labelRoom(chart, labels);
  const isWide = (label.length + chart.app.axisName.length + 1) * AXIS_PIXELS.letter > room;
  return isWide && plot.bbox.height / devicePixelRatio - plot.valToPos(place, "y") < HALF_LABEL;
}

/**
 * The name of the quantity, or as many of its last words as fit beside the axis.
 * It is also the heading of the chart, so nothing is lost if it does not fit.
 * @param {uPlot} plot
 * @param {string} name
 */
function fittingName(plot, name) {
  return lastWords(name, (text) => widthOf(plot, text) <= plot.height - BELOW_AND_ABOVE);
}

/**
 * The width of a text at an axis, in pixels of the page.
 * @param {uPlot} plot
 * @param {string} text
 */
function widthOf({ ctx }, text) {
  ctx.save();
  ctx.font = `${11 * devicePixelRatio}px ${cssColour("--sans")}`;
  const { width } = ctx.measureText(text);
  ctx.restore();
  return width / devicePixelRatio;
}

/** @param {Chart} chart */
function curveLooks(chart) {
  const isSmooth = chart.app.state.smooth > 0;
  /** @type {uPlot.Band[]} */
  const bands = [];
  const series = chart.curves.series.map((item, index) => {
    const colour = chart.colour(item);
    if (item.kind === "high")
      bands.push({ series: [index + 1, index], fill: fade(colour, item.strength === "weak" ? 0.1 : 0.18) });
    if (item.kind === "low" || item.kind === "high")
      return { stroke: "transparent", width: 0, points: { show: false } };
    const isFaint = item.kind === "raw" && isSmooth;
    return {
      show: item.kind === "raw" || isSmooth,
      stroke: isFaint ? fade(colour, 0.35) : colour,
      width: isFaint ? 1 : 1.5,
      dash: chart.sources.length > 1 && item.number ? [6, 3] : undefined,
      points: {
        show: item.kind === "raw",
        size: MARKER_PIXELS,
        width: 0,
        fill: isFaint ? fade(colour, 0.35) : colour,
        filter: (/** @type {uPlot} */ plot, /** @type {number} */ place) => marked(plot, place, item.isSparse ?? false),
      },
    };
  });
  return { series, bands };
}

/**
 * Numbers that a line would not show: isolated ones, and all of them if there are few.
 * @param {uPlot} plot
 * @param {number} place
 * @param {boolean} isSparse
 */
export function marked(plot, place, isSparse) {
  const column = plot.data[place];
  const [first, last] = plot.series[0].idxs ?? [0, column.length - 1];
  /** @type {number[]} */
  const all = [];
  /** @type {number[]} */
  const alone = [];
  let isJoined = false;
  for (let index = first; index <= last; index++) {
    const value = column[index];
    if (value === null) isJoined = false;
    if (!isNumber(value)) continue;
    if (isJoined && alone.at(-1) === all.at(-1)) alone.pop();
    if (!isJoined) alone.push(index);
    all.push(index);
    isJoined = true;
  }
  return isSparse && all.length * ROOM_PER_MARKER < plot.width ? all : alone;
}
