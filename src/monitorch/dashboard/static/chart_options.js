// How a chart draws: its scales, axes, curves and bands.

import { cssColour } from "page/dom.js";
import { logTicks, number, position, symlogTicks, ticks } from "page/format.js";

const DISTRIBUTIONS = { linear: 1, log: 3, symlog: 4 };
const OWN_DISTRIBUTION = 100;
const LABEL_PIXELS = { x: 64, y: 30 };
const AXIS_PIXELS = { letter: 6.3, least: 28, usual: 50 };

/** Everything but sizes and what happens; `unit` is where a symlog scale begins to be linear. */
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

function axesOf(chart, unit) {
  const common = {
    stroke: cssColour("--muted"),
    grid: { stroke: cssColour("--grid"), width: 1 },
    ticks: { show: false },
    font: `11px ${cssColour("--sans")}`,
    filter: (_, places) => places,
  };
  const splits = {
    linear: ticks,
    log: logTicks,
    symlog: (low, high, wanted) => symlogTicks(low, high, wanted, unit),
  }[chart.kind];
  const x = {
    size: 22,
    gap: 3,
    values: (_, places) => places.map((place) => position(place, chart.ruler.kind)),
    splits: (plot) => chart.ruler.ticks(plot.width / LABEL_PIXELS.x),
  };
  const y = {
    size: (_, texts) => (chart.isAlone ? fitting(texts) : AXIS_PIXELS.usual),
    gap: 4,
    values: (_, places) => places.map((place) => (place === null ? "" : number(place))),
    splits: (plot, _, low, high) => splits(low, high, plot.height / LABEL_PIXELS.y),
  };
  return [
    { ...common, ...x },
    { ...common, ...y },
  ];
}

/** Charts below each other keep their axes in line; one that stands beside others need not. */
function fitting(texts) {
  const letters = Math.max(...(texts ?? []).map((text) => text.length), 0);
  return Math.max(Math.ceil(letters * AXIS_PIXELS.letter) + 8, AXIS_PIXELS.least);
}

function curveLooks(chart) {
  const isSmooth = chart.app.state.smooth > 0;
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
      points: { show: false },
    };
  });
  return { series, bands };
}

/** A colour that lets the background through. */
export function fade(colour, alpha) {
  const [red, green, blue] = [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
  return `rgba(${red}, ${green}, ${blue}, ${alpha})`;
}
