// What a chart draws: for each run and curve a band, the numbers, and the numbers smoothed.

import { places } from "page/axis.js";
import { rowOf } from "page/blocks.js";
import { smooth } from "page/smoothing.js";

/** Plain columns for the chart, and what each of them is. */
export function curvesOf(spec, sources, { x, weight, isLog }) {
  const tables = [];
  const series = [];
  const broken = [];
  sources.forEach((source, run) => {
    const blocks = new Map(
      source.blocks.filter((block) => block.lens === spec.lens).map((block) => [block.statistic, block]),
    );
    const main = mainBlock(spec, blocks);
    if (!main) return;
    const xs = Array.from(places(main, x, source.started));
    const columns = [xs];
    spec.curves.forEach((curve, number) => {
      const plane = (statistic, name) => column(blocks.get(statistic), name, curve.layer, isLog);
      const statistic = mainLine(curve.lines);
      const values = plane(statistic, "mean");
      if (!values) return;
      const common = { run, number, name: curve.name, source: source.name };
      for (const [strength, low, high] of bands(curve.lines, statistic)) {
        const edges = [plane(low, "minimum"), plane(high, "maximum")];
        if (!edges[0] || !edges[1]) continue;
        columns.push(...edges);
        series.push({ ...common, kind: "low", strength }, { ...common, kind: "high", strength });
      }
      const block = blocks.get(statistic);
      const counts = rowOf(block, "nonfinite", block.layers.indexOf(curve.layer));
      const lastBroken = counts?.findLastIndex((count) => count > 0) ?? -1;
      const endsBroken = lastBroken > values.findLastIndex((value) => value !== null);
      columns.push(values, smooth(xs, values, weight));
      series.push({ ...common, kind: "raw", statistic, endsBroken }, { ...common, kind: "smooth", statistic });
      broken.push({ xs, counts });
    });
    tables.push(columns);
  });
  return { tables, series, broken };
}

/** Whether the numbers themselves, not only their bands, are on both sides of zero. */
export function isSigned(spec, sources) {
  if (spec.limits) return spec.limits[0] < 0;
  return sources.some(({ blocks }) =>
    spec.curves.some(({ lines, layer }) => {
      const block = blocks.find((known) => known.lens === spec.lens && known.statistic === mainLine(lines));
      const row = block?.layers.indexOf(layer) ?? -1;
      return row >= 0 && rowOf(block, "mean", row).some((value) => value < 0);
    }),
  );
}

function mainLine(lines) {
  return lines.mean ?? lines.value ?? Object.values(lines)[0];
}

/** A block that has one of the curves; all of a lens have the same columns. */
function mainBlock(spec, blocks) {
  for (const { lines, layer } of spec.curves) {
    const found = Object.values(lines)
      .map((statistic) => blocks.get(statistic))
      .find((block) => block?.layers.includes(layer));
    if (found) return found;
  }
  return null;
}

/** The widest first: from the smallest to the largest, then a deviation to both sides. */
function bands(lines, statistic) {
  const found = [];
  if (lines.min && lines.max) found.push(["weak", lines.min, lines.max]);
  if (lines["-σ"] && lines["+σ"]) found.push(["strong", lines["-σ"], lines["+σ"]]);
  return found.length ? found : [["strong", statistic, statistic]];
}

function column(block, plane, layer, isLog) {
  const row = block?.layers.indexOf(layer) ?? -1;
  if (row < 0) return null;
  return Array.from(rowOf(block, plane, row) ?? rowOf(block, "mean", row), (value) =>
    Number.isFinite(value) && !(isLog && value <= 0) ? value : null,
  );
}

/** The range of an axis: all numbers, or without the outermost hundredth on each side. */
export function rangeOf(columns, isRobust) {
  const all = columns.flat().filter((value) => value !== null && value !== undefined);
  if (!all.length) return [null, null];
  if (!isRobust || all.length < 20)
    return all.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  all.sort((one, other) => one - other);
  return [all[Math.floor(0.01 * (all.length - 1))], all[Math.ceil(0.99 * (all.length - 1))]];
}
