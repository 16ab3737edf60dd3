// Levels as pixels: one line of pixels for each row, as wide as the screen shows it.

import { upperBound } from "page/blocks.js";
import { ABSENT } from "page/colours.js";
import { chooser, pooled, rowLevels } from "page/heat_model.js";

/** @import { Ruler } from "page/axis.js" */
/** @import { Cell, Chooser, HeatModel } from "page/heat_model.js" */
/** @import { Row } from "page/rows.js" */

/**
 * An image with a line for each row; a pixel that covers several columns shows the worst of them.
 * @param {HeatModel} model
 * @param {Row[]} rows
 * @param {Ruler} ruler
 * @param {number} width
 * @param {Uint32Array} colours
 * @param {Cell} cell
 */
export function heatImage(model, rows, ruler, width, colours, cell) {
  const spans = pixelSpans(model.edges, ruler, width);
  const fill = spans.every((end, index) => index % 2 === 0 || end - spans[index - 1] === 1) ? copied : gathered;
  const worse = chooser(model, cell);
  const image = new ImageData(width, Math.max(rows.length, 1));
  const pixels = new Uint32Array(image.data.buffer);
  rows.forEach((row, line) => {
    if (!row.members.length) return;
    const levels = rowLevels(model, row.members, cell);
    fill(pixels.subarray(line * width, (line + 1) * width), levels, spans, colours, worse);
  });
  return image;
}

/**
 * Each pixel shows one column: the usual, fast case.
 * @param {Uint32Array} pixels
 * @param {Uint8Array} levels
 * @param {Int32Array} spans
 * @param {Uint32Array} shown
 */
function copied(pixels, levels, spans, shown) {
  for (let x = 0; x < pixels.length; x++) pixels[x] = shown[levels[spans[2 * x]]];
}

/**
 * @param {Uint32Array} pixels
 * @param {Uint8Array} levels
 * @param {Int32Array} spans
 * @param {Uint32Array} shown
 * @param {Chooser} worse
 */
function gathered(pixels, levels, spans, shown, worse) {
  for (let x = 0; x < pixels.length; x++) {
    let level = ABSENT;
    for (let column = spans[2 * x]; column < spans[2 * x + 1]; column++) level = pooled(level, levels[column], worse);
    pixels[x] = shown[level];
  }
}

/**
 * Which columns each pixel covers: from one index to another.
 * @param {Float64Array} edges
 * @param {Ruler} ruler
 * @param {number} width
 */
function pixelSpans(edges, ruler, width) {
  const columns = edges.length - 1;
  const spans = new Int32Array(2 * width);
  for (let x = 0; x < width; x++) {
    const [from, to] = [ruler.place(x / width), ruler.place((x + 1) / width)];
    if (to <= edges[0] || from >= edges[columns]) continue;
    const first = Math.max(upperBound(edges, from) - 1, 0);
    let end = first + 1;
    while (end < columns && edges[end] < to) end++;
    // a column belongs to the pixel in which it begins, unless it is wider than a pixel
    const begins = edges[first] < from && end - first > 1 ? first + 1 : first;
    spans[2 * x] = Math.min(begins, columns - 1);
    spans[2 * x + 1] = Math.min(end, columns);
  }
  return spans;
}
