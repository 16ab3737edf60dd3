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
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e").replace("-", "−");
  const digits = size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
  return trim(value.toFixed(digits)).replace("-", "−");
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

/** Round places for so many labels between two ends. */
export function ticks(low, high, wanted, kind) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const units =
    kind === "time"
      ? [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400]
      : null;
  const raw = span / Math.max(wanted, 1);
  let width = units?.find((unit) => unit >= raw);
  if (!width) {
    const power = 10 ** Math.floor(Math.log10(raw));
    width = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
    if (kind === "step") width = Math.max(width, 1);
  }
  const places = [];
  for (let place = Math.ceil(low / width) * width; place <= high + width * 1e-9; place += width) places.push(place);
  return places;
}
