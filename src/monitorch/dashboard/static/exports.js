// Panels as files.

import { cssColour, download } from "page/dom.js";

function quoted(text) {
  // a spreadsheet takes a cell that begins like this for a formula
  const harmless = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}

function saveCsv(name, lines) {
  download(`${name}.csv`, new Blob([lines.map((line) => line.join(",")).join("\n") + "\n"], { type: "text/csv" }));
}

/** Curves, a line for each place on the axis. */
export function saveChartCsv(name, kind, data, series) {
  const shown = series.map((item, index) => [item, data[index + 1]]).filter(([item]) => item.kind !== "smooth");
  const head = [
    kind,
    ...shown.map(([item]) =>
      quoted([item.source, item.name, item.kind === "raw" ? "" : item.kind].filter(Boolean).join(" ")),
    ),
  ];
  saveCsv(name, [
    head,
    ...Array.from(data[0], (place, index) => [place, ...shown.map(([, column]) => column[index] ?? "")]),
  ]);
}

/** The heat map, a line for each layer. */
export function saveHeatCsv(name, { layers, columns, numbers, block }) {
  const lines = layers.map((layer, row) => [quoted(layer), ...numbers.subarray(row * columns, (row + 1) * columns)]);
  saveCsv(name, [["layer", ...block.step], ...lines]);
}

/** The heat map with names, axis and colours around it. */
export function saveHeatPng(name, heat, title) {
  const ratio = devicePixelRatio || 1;
  const gutter = heat.gutter.clientWidth;
  const [top, bottom] = [40, 28];
  const canvas = document.createElement("canvas");
  canvas.width = (gutter + heat.width + 12) * ratio;
  canvas.height = (top + heat.height + bottom) * ratio;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = cssColour("--panel");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = cssColour("--text");
  context.font = `600 14px ${cssColour("--sans")}`;
  context.fillText(title, 12, 25);
  context.drawImage(heat.canvas, gutter, top, heat.width, heat.height);
  context.drawImage(heat.scales.ticks, gutter, top + heat.height, heat.width, 24);
  context.font = `11px ${cssColour("--sans")}`;
  for (const label of heat.gutter.querySelectorAll(".label, .bracket")) {
    context.fillText(label.title, 12, top + label.offsetTop + label.offsetHeight / 2 + 4, gutter - 18);
  }
  canvas.toBlob((blob) => download(`${name}.png`, blob));
}
