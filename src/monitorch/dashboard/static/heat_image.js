// Levels as pixels: one line of pixels for each row, as wide as the screen shows it.

import { ABSENT } from "./colours.js";
import { upperBound } from "./blocks.js";
import { chooser, pooled, rowLevels } from "./heat_model.js";

/** An image with a line for each row; a pixel that covers several columns shows the worst of them. */
export function heatImage(model, rows, { low, high }, width, colours, cell) {
  const image = new ImageData(width, Math.max(rows.length, 1));
  const pixels = new Uint32Array(image.data.buffer);
  const spans = pixelSpans(model.edges, low, high, width);
  const worse = chooser(model, cell);
  rows.forEach((row, line) => {
    if (!row.members.length) return;
    const levels = rowLevels(model, row.members, cell);
    const start = line * width;
    for (let x = 0; x < width; x++) {
      let level = ABSENT;
      for (let column = spans[2 * x]; column < spans[2 * x + 1]; column++) level = pooled(level, levels[column], worse);
      if (level !== ABSENT) pixels[start + x] = colours[level];
    }
  });
  return image;
}

/** Which columns each pixel covers: from one index to another. */
function pixelSpans(edges, low, high, width) {
  const columns = edges.length - 1;
  const spans = new Int32Array(2 * width);
  for (let x = 0; x < width; x++) {
    const [from, to] = [low + ((high - low) * x) / width, low + ((high - low) * (x + 1)) / width];
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
