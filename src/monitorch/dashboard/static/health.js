// How a run is: its findings, first cause first, and which layers are worst. The server judges; this only arranges.

import { title } from "page/names.js";

/** @import { LensFacts, StatisticFacts } from "page/data.js" */

/** @typedef {"info" | "warning" | "error"} Severity */

/** @typedef {Severity | "nonfinite" | "jump" | ""} Tone  what is wrong with a layer; empty if it is calm */

/**
 * The numbers that a finding rests on; one that is not finite is a text.
 * @typedef {{
 *   series: string, place: string | null, steps: number[], values: (number | string)[], threshold: number | string | null,
 * }} Evidence
 */

/**
 * One problem; `caused_by` is the id of the finding that explains it, and `resolved_at` the step since which it is over.
 * @typedef {{
 *   id: string, title: string, symptom: string, severity: Severity, layer: string | null, step: number,
 *   detected_at: number, explanation: string, remedy: { text: string }, evidence: Evidence[],
 *   caused_by: string | null, confidence: number, resolved_at: number | null,
 * }} Finding
 */

/** @typedef {{ tone: Tone, reason: string, lens: string, statistic: string, value: number | string }} LayerHealth */

/**
 * `findings` is null if the run was not diagnosed; `layers` are all of them, the worst first.
 * @typedef {{
 *   verdict: string, findings: Finding[] | null, notes: string[], layers: string[],
 *   described: Record<string, LayerHealth>,
 * }} Health
 */

/** @typedef {{ cause: Finding, consequences: Finding[] }} Case */

/** @type {Tone[]} */
const TONES = ["", "jump", "info", "warning", "nonfinite", "error"];

/**
 * Findings under the one that explains them: those with a problem that lasts come first.
 * @param {Finding[]} findings
 * @returns {Case[]}
 */
export function cases(findings) {
  const known = new Map(findings.map((finding) => [finding.id, finding]));
  /** @type {Map<Finding, Finding[]>} */
  const found = new Map();
  for (const finding of findings) {
    const cause = firstCause(finding, known);
    const others = found.get(cause) ?? [];
    found.set(cause, cause === finding ? others : [...others, finding]);
  }
  const order = (/** @type {Case} */ { cause, consequences }) =>
    [cause, ...consequences].some((one) => isOpen(one) && one.severity !== "info") ? 0 : 1;
  return [...found]
    .map(([cause, consequences]) => ({ cause, consequences }))
    .sort((one, other) => order(one) - order(other));
}

/**
 * The finding that nothing known explains; in a circle, each is its own.
 * @param {Finding} finding
 * @param {Map<string, Finding>} known
 */
function firstCause(finding, known) {
  const seen = new Set([finding]);
  let cause = finding;
  for (;;) {
    const next = known.get(cause.caused_by ?? "");
    if (!next) return cause;
    if (seen.has(next)) return finding;
    seen.add(next);
    cause = next;
  }
}

/** @param {Finding} finding */
export function isOpen({ resolved_at: end }) {
  return end === null;
}

/**
 * The look of the verdict: that of the worst problem that lasts. A run that crashed looks in no case as if all were well.
 * @param {Health} health
 * @param {string} status
 * @returns {"unknown" | "healthy" | Severity}
 */
export function verdictTone({ findings }, status) {
  if (!findings) return "unknown";
  const problems = findings.filter((finding) => isOpen(finding) && finding.severity !== "info");
  if (!problems.length) return status === "crashed" ? "unknown" : "healthy";
  return problems.some(({ severity }) => severity === "error") ? "error" : "warning";
}

/**
 * The worst of some tones.
 * @param {Iterable<Tone>} tones
 */
export function worstTone(tones) {
  /** @type {Tone} */
  let worst = "";
  for (const tone of tones) if (TONES.indexOf(tone) > TONES.indexOf(worst)) worst = tone;
  return worst;
}

/**
 * The statistic of the heat map that shows a series of this name at a place or its parameters, if there is one.
 * @param {LensFacts[]} lenses
 * @param {string} series
 * @param {string[]} members  the layer, which is preferred, and its parameters or its module
 */
export function statisticOf(lenses, series, members) {
  const wanted = plain(series);
  const hasLayer = (/** @type {LensFacts} */ lens) => Number(lens.layers.includes(members[0]));
  const shown = lenses
    .filter((lens) => lens.layers.some((layer) => members.includes(layer)))
    .sort((one, other) => hasLayer(other) - hasLayer(one))
    .flatMap((lens) => lens.statistics.map((statistic) => ({ lens: lens.name, statistic })));
  const names = (/** @type {StatisticFacts} */ statistic) =>
    [statistic.name, statistic.tag, statistic.line, title(statistic)].map(plain);
  if (!wanted) return null;
  const found =
    shown.find(({ statistic }) => names(statistic).includes(wanted)) ??
    shown.find(({ statistic }) => statistic.role === "line" && plain(statistic.tag).endsWith(wanted));
  return found ? { lens: found.lens, statistic: found.statistic.name } : null;
}

/** @param {string} name */
function plain(name) {
  return name
    .toLowerCase()
    .replaceAll(/[_\s]+/g, " ")
    .trim();
}
