// Numbers and times as people read them.

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/**
 * Three or four significant digits, with powers of ten if there are many zeros.
 * @param {number | null | undefined} value
 */
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return notFinite(value);
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (isAwkward(size)) return power(value, 2);
  const digits = size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
  return fixed(value, digits);
}

/** @param {number} value */
function notFinite(value) {
  return Number.isNaN(value) ? "NaN" : value > 0 ? "+Inf" : "−Inf";
}

/** @param {number} size */
function isAwkward(size) {
  return size >= 1e5 || size < 1e-3;
}

/**
 * @param {number} value
 * @param {number} digits
 */
function fixed(value, digits) {
  return trim(value.toFixed(digits)).replace("-", "−");
}

/**
 * @param {number} value
 * @param {number} digits
 */
function power(value, digits) {
  const [mantissa, exponent] = value.toExponential(digits).split("e");
  return `${trim(mantissa)}e${exponent.replace("+", "")}`.replaceAll("-", "−");
}

/** @param {string} text */
function trim(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

const MOST_DIGITS = 17;

/**
 * Labels of an axis: as few digits as tell neighbours apart and put each where it belongs.
 * @param {number[]} places
 */
export function tickLabels(places) {
  const sizes = places.map(Math.abs).filter(Boolean);
  const gaps = places.slice(1).map((place, index) => Math.abs(place - places[index]));
  const gap = Math.min(...gaps.filter(Boolean), ...sizes);
  const largest = Math.max(...sizes);
  const isEven = gaps.every((width) => width < 1.5 * gap);
  // neighbours on an even axis look alike; on others each number is written as it would be on its own
  const isPower = (/** @type {number} */ size) => (isEven ? isAwkward(largest) || gap < 1e-5 : isAwkward(size));
  for (let digits = 1; digits < MOST_DIGITS; digits++) {
    const isRight = places.every((place) => Math.abs(Number(place.toPrecision(digits)) - place) <= 0.01 * gap);
    if (isRight) return places.map((place) => label(place, digits, isPower(Math.abs(place))));
  }
  return places.map((place) => label(place, MOST_DIGITS, isPower(Math.abs(place))));
}

/**
 * @param {number} value
 * @param {number} digits
 * @param {boolean} isPower
 */
function label(value, digits, isPower) {
  if (value === 0) return "0";
  if (isPower) return power(value, digits - 1);
  const decimals = digits - 1 - Math.floor(Math.log10(Math.abs(value)));
  return fixed(value, Math.min(Math.max(decimals, 0), 20));
}

/** @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? "–" : GROUPED.format(value);
}

/**
 * Short, such as 1.2k or 3.4M.
 * @param {number} value
 */
export function compact(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim((value / 1e9).toFixed(1))}G`;
  if (size >= 1e6) return `${trim((value / 1e6).toFixed(1))}M`;
  if (size >= 1e4) return `${trim((value / 1e3).toFixed(1))}k`;
  return trim(value.toFixed(size < 10 && size % 1 ? 2 : 0));
}

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** @param {number} size */
export function bytes(size) {
  if (size < 1e6) return `${Math.round(size / 1e3)} kB`;
  return size < 1e9 ? `${trim((size / 1e6).toFixed(1))} MB` : `${trim((size / 1e9).toFixed(1))} GB`;
}

/** @typedef {"step" | "epoch" | "time"} AxisKind */

/**
 * A position of a run on its axis.
 * @param {number} value
 * @param {AxisKind} kind
 */
export function position(value, kind) {
  if (kind === "time") return clock(value);
  return kind === "epoch" ? trim(value.toFixed(2)) : count(value);
}

/**
 * The same for all labels of an axis, no two of which are equal.
 * @param {number[]} places
 * @param {AxisKind} kind
 */
export function positionLabels(places, kind) {
  if (kind === "step") return places.map(count);
  if (kind === "epoch") return tickLabels(places);
  const isWhole = places.every((place) => Math.abs(place - Math.round(place)) < 1e-6);
  // a clock has no parts of a second
  return isWhole ? places.map(clock) : tickLabels(places).map((text) => `${text} s`);
}

/** @param {number} seconds */
function clock(seconds) {
  const whole = Math.max(Math.round(seconds), 0);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (/** @type {number} */ part) => String(part).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

const DAY = 86400;
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, DAY];
const LOG_SECONDS = [1, 10, 60, 600, 3600, 36000, 360000];
const SHORTEST_CLOCK = 20;

/**
 * The next number of the form 1, 2 or 5 times a power of ten.
 * @param {number} least
 */
function round(least) {
  const unit = 10 ** Math.floor(Math.log10(least));
  return unit * ([1, 2, 5].find((factor) => factor * unit >= least) ?? 10);
}

/**
 * @param {number} least
 * @param {AxisKind | undefined} kind
 */
function tickWidth(least, kind) {
  if (kind === "step") return Math.max(round(least), 1);
  if (kind !== "time" || least < 1) return round(least);
  return SECONDS.find((unit) => unit >= least) ?? DAY * round(least / DAY);
}

/**
 * Round positions for this many labels between two ends.
 * @param {number} low
 * @param {number} high
 * @param {number} wanted
 * @param {AxisKind} [kind]
 */
export function ticks(low, high, wanted, kind) {
  const span = high - low;
  if (!(span > 0 && span < Infinity)) return [low];
  const places = (/** @type {number} */ width) => {
    const [first, end] = [Math.ceil(low / width), Math.floor(high / width + 1e-9)];
    return Array.from({ length: end - first + 1 }, (_, index) => (first + index) * width);
  };
  const width = tickWidth(span / Math.max(wanted, 1), kind);
  const found = places(width);
  // a single label shows a position, but no distance
  return found.length > 1 || wanted < 2 ? found : places(tickWidth(width / 2.5, kind));
}

/**
 * The same for a logarithmic axis: the finest round positions that are not too many.
 * @param {number} low
 * @param {number} high
 * @param {number} wanted
 * @param {AxisKind} [kind]
 */
export function logTicks(low, high, wanted, kind) {
  if (!(low > 0 && high > 10 * low)) return ticks(low, high, wanted, kind); // from 0 it is infinitely many decades
  /** @type {number[]} */
  const powers = [];
  for (let exponent = Math.floor(Math.log10(low)); exponent <= Math.log10(high); exponent++) powers.push(exponent);
  const decades = (/** @type {number[]} */ factors) =>
    powers.flatMap((exponent) => factors.map((factor) => factor * 10 ** exponent));
  const stride = Math.ceil(powers.length / Math.max(wanted, 1));
  const coarsest = decades([1]).filter((_, index) => index % stride === 0);
  const isClock = kind === "time" && high >= SHORTEST_CLOCK;
  const sets = isClock ? [SECONDS, LOG_SECONDS] : [decades([1, 2, 5]), decades([1, 3]), decades([1]), coarsest];
  const inside = sets.map((set) =>
    set.filter((place) => place >= low && place <= high && (kind !== "step" || place >= 1)),
  );
  return inside.find((set) => set.length <= wanted + 1) ?? inside[inside.length - 1];
}

/**
 * The same on both sides of zero; `unit` is where the scale becomes linear.
 * @param {number} low
 * @param {number} high
 * @param {number} wanted
 * @param {number} unit
 */
export function symlogTicks(low, high, wanted, unit) {
  const innermost = 3 * unit; // labels nearer to that of zero would touch it
  const side = (/** @type {number} */ end) =>
    end > innermost ? logTicks(innermost, end, wanted / (low < 0 && high > 0 ? 2 : 1)) : [];
  const negative = side(-low).map((place) => -place);
  return [...negative.reverse(), ...(low <= 0 && high >= 0 ? [0] : []), ...side(high)];
}
