// Colour tables that stay readable with every kind of colour vision.

const VIRIDIS = [
  "440154",
  "482173",
  "433e85",
  "38588c",
  "2d708e",
  "25858e",
  "1e9b8a",
  "2ab07f",
  "52c569",
  "86d549",
  "c2df23",
  "fde725",
];
const CIVIDIS = [
  "00224e",
  "083370",
  "35456c",
  "4f576c",
  "666970",
  "7d7c78",
  "948f78",
  "aea371",
  "c8b866",
  "e5cf52",
  "fee838",
];
const ENDS = { low: "2b6cb0", lowMiddle: "7fb2e0", highMiddle: "f0a868", high: "c05621" };

export const LEVELS = 252;
export const ZERO = 253;
export const NONFINITE = 254;
export const ABSENT = 255;
export const CURVES = ["--curve-0", "--curve-1", "--curve-2", "--curve-3", "--curve-4"];

/** @param {string} hex */
function channels(hex) {
  return [0, 2, 4].map((start) => parseInt(hex.slice(start, start + 2), 16));
}

/**
 * @param {number[][]} stops
 * @param {number} place
 */
function blend(stops, place) {
  const scaled = place * (stops.length - 1);
  const index = Math.min(Math.floor(scaled), stops.length - 2);
  const rest = scaled - index;
  return stops[index].map((value, channel) => Math.round(value + (stops[index + 1][channel] - value) * rest));
}

/**
 * 256 colours as pixels: levels, non-finite, and not measured. Zero is transparent: it is hatched.
 * @param {"viridis" | "cividis" | "signed"} map
 * @param {{ neutral: string, nonfinite: string, absent: string }} colours
 */
export function table(map, colours) {
  const signed = [ENDS.low, ENDS.lowMiddle, colours.neutral, ENDS.highMiddle, ENDS.high];
  const stops = { viridis: VIRIDIS, cividis: CIVIDIS, signed }[map].map(channels);
  const pixels = new Uint32Array(256);
  for (let level = 0; level < LEVELS; level++) pixels[level] = pixel(blend(stops, level / (LEVELS - 1)));
  pixels[ZERO] = 0;
  pixels[NONFINITE] = pixel(channels(colours.nonfinite));
  pixels[ABSENT] = pixel(channels(colours.absent));
  return pixels;
}

/**
 * What an ImageData of this machine holds; browsers run on little-endian ones.
 * @param {number[]} channels
 */
function pixel([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** @param {number} value */
export function css(value) {
  return `rgb(${value & 255}, ${(value >> 8) & 255}, ${(value >> 16) & 255})`;
}

/**
 * A colour such as #19766f that lets the background through.
 * @param {string} colour
 * @param {number} alpha
 */
export function fade(colour, alpha) {
  const [red, green, blue] = channels(colour.slice(1));
  return `rgba(${red}, ${green}, ${blue}, ${alpha})`;
}
