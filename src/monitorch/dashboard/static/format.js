// Numbers and times as people read them.

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Three or four significant digits, powers of ten where there are many zeros. */
export function number(value) {
  if (Number.isNaN(value)) return "NaN";
  if (value === Infinity) return "+Inf";
  if (value === -Infinity) return "−Inf";
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e5 || size < 1e-3) return power(value);
  const digits = size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
  return trim(value.toFixed(digits)).replace("-", "−");
}

function power(value) {
  const [digits, exponent] = value.toExponential(2).split("e");
  return `${trim(digits)}e${exponent.replace("+", "")}`.replaceAll("-", "−");
}

function trim(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

export function count(value) {
  return value === null || value === undefined ? "–" : GROUPED.format(value);
}

/** Short, such as 1.2k or 3.4M. */
export function compact(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return trim((value / 1e9).toFixed(1)) + "G";
  if (size >= 1e6) return trim((value / 1e6).toFixed(1)) + "M";
  if (size >= 1e4) return trim((value / 1e3).toFixed(1)) + "k";
  return trim(value.toFixed(size < 10 && size % 1 ? 2 : 0));
}

export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function bytes(size) {
  if (size < 1e6) return `${Math.round(size / 1e3)} kB`;
  return size < 1e9 ? `${trim((size / 1e6).toFixed(1))} MB` : `${trim((size / 1e9).toFixed(1))} GB`;
}

/** A moment of a run on its axis. */
export function position(value, kind) {
  if (kind === "time") return clock(value);
  return kind === "epoch" ? trim(value.toFixed(2)) : count(value);
}

function clock(seconds) {
  const whole = Math.max(Math.round(seconds), 0);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (part) => String(part).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
const LOG_SECONDS = [1, 10, 60, 600, 3600, 36000, 360000];

/** Round places for so many labels between two ends. */
export function ticks(low, high, wanted, kind) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / Math.max(wanted, 1);
  let width = kind === "time" ? SECONDS.find((unit) => unit >= raw) : null;
  if (!width) {
    const power = 10 ** Math.floor(Math.log10(raw));
    width = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
    if (kind === "step") width = Math.max(width, 1);
  }
  const [first, end] = [Math.ceil(low / width), Math.floor(high / width + 1e-9)];
  return Array.from({ length: end - first + 1 }, (_, index) => (first + index) * width);
}

/** The same for a logarithmic axis: the finest round places of which there are not too many. */
export function logTicks(low, high, wanted, kind) {
  if (!(high > 10 * low)) return ticks(low, high, wanted, kind);
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) powers.push(power);
  const decades = (factors) => powers.flatMap((power) => factors.map((factor) => factor * 10 ** power));
  const stride = Math.ceil(powers.length / Math.max(wanted, 1));
  const coarsest = decades([1]).filter((_, index) => index % stride === 0);
  const sets = kind === "time" ? [SECONDS, LOG_SECONDS] : [decades([1, 2, 5]), decades([1, 3]), decades([1]), coarsest];
  const inside = sets.map((set) =>
    set.filter((place) => place >= low && place <= high && (kind !== "step" || place >= 1)),
  );
  return inside.find((set) => set.length <= wanted + 1) ?? inside[inside.length - 1];
}

/** The same on both sides of zero; `unit` is where the scale begins to be linear. */
export function symlogTicks(low, high, wanted, unit) {
  const innermost = 3 * unit; // labels nearer to that of zero would touch it
  const side = (end) => (end > innermost ? logTicks(innermost, end, wanted / (low < 0 && high > 0 ? 2 : 1)) : []);
  const negative = side(-low).map((place) => -place);
  return [...negative.reverse(), ...(low <= 0 && high >= 0 ? [0] : []), ...side(high)];
}
