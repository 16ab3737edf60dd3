// Saves panels as files.

import { contextOf, cssColour, download } from "page/dom.js";
import { printable } from "page/text.js";

/** @import { Column, Series } from "page/curves.js" */
/** @import { HeatMap } from "page/heat_map.js" */
/** @import { HeatModel } from "page/heat_model.js" */

/** @param {string} text */
function quoted(text) {
  // a spreadsheet would read a cell that begins like this as a formula
  const harmless = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}

/**
 * @param {string} name
 * @param {(string | number)[][]} lines
 */
function saveCsv(name, lines) {
  const text = lines.map((line) => `${line.join(",")}\n`).join("");
  download(`${name}.csv`, new Blob([text], { type: "text/csv" }));
}

/**
 * Curves, a line for each position on the axis.
 * @param {string} name
 * @param {string} kind
 * @param {[number[], ...Column[]]} data
 * @param {Series[]} series
 */
export function saveChartCsv(name, kind, [places, ...columns], series) {
  const shown = series
    .map((item, index) => ({ item, column: columns[index] }))
    .filter(({ item }) => item.kind !== "smooth");
  const head = shown.map(({ item }) =>
    quoted([item.source, item.name, item.kind === "raw" ? "" : item.kind].filter(Boolean).join(" ")),
  );
  const lines = places.map((place, index) => [place, ...shown.map(({ column }) => column[index] ?? "")]);
  saveCsv(name, [[kind, ...head], ...lines]);
}

/**
 * The heat map, a line for each layer.
 * @param {string} name
 * @param {HeatModel} model
 */
export function saveHeatCsv(name, { layers, columns, numbers, block }) {
  const lines = layers.map((layer, row) => [quoted(layer), ...numbers.subarray(row * columns, (row + 1) * columns)]);
  saveCsv(name, [["layer", ...block.step], ...lines]);
}

/**
 * The heat map with names, axis and colours around it.
 * @param {string} name
 * @param {HeatMap} heat
 * @param {string} title
 */
export function saveHeatPng(name, heat, title) {
  const ratio = devicePixelRatio || 1;
  const gutter = heat.gutter.clientWidth;
  const [top, bottom] = [40, 28];
  const canvas = document.createElement("canvas");
  canvas.width = (gutter + heat.width + 12) * ratio;
  canvas.height = (top + heat.height + bottom) * ratio;
  const context = contextOf(canvas);
  context.scale(ratio, ratio);
  context.fillStyle = cssColour("--panel");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = cssColour("--text");
  context.font = `600 14px ${cssColour("--sans")}`;
  context.fillText(printable(title), 12, 25);
  context.drawImage(heat.canvas, gutter, top, heat.width, heat.height);
  context.drawImage(heat.scales.ticks, gutter, top + heat.height, heat.width, 24);
  context.font = `11px ${cssColour("--sans")}`;
  context.fillText(heat.app.axisName, 12, top + heat.height + 16, gutter - 18);
  for (const label of heat.gutter.querySelectorAll(".label, .bracket")) {
    if (!(label instanceof HTMLElement)) continue;
    context.fillText(label.title, 12, top + label.offsetTop + label.offsetHeight / 2 + 4, gutter - 18);
  }
  canvas.toBlob((blob) => download(`${name}.png`, blob));
}
