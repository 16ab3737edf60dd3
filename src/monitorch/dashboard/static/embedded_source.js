// A report as a source of runs: everything is in the page itself.

import { complete, cut, header, readAxes } from "page/blocks.js";

/** @import { Block, Plane } from "page/blocks.js" */
/** @import { Head, HistogramQuestion, Question, RunEvent, RunInfo, Summary } from "page/data.js" */
/** @import { Health } from "page/health.js" */
/** @import { Histogram } from "page/histogram.js" */

/** @typedef {{ kind: "log" | "asinh", low: number, step: number, unit: number }} Codes */

/**
 * A block whose counts have a second plane where they are larger than a code.
 * @typedef {Block & { codes: Codes, nonfinite_high?: Float32Array }} CarriedBlock
 */

/** @typedef {Histogram & { lens: string, tag: string }} CarriedHistogram  of all layers at a step */

/**
 * @typedef {{
 *   info: RunInfo, head: Head, health: Health, events: RunEvent[], summary: Summary, blocks: CarriedBlock[],
 *   histograms: CarriedHistogram[],
 * }} CarriedRun
 */

// codes of NaN, infinity, zero and missing numbers
const [ABSENT, NAN, PLUS, MINUS, ZERO, FIRST] = [0, 1, 2, 3, 4, 5];
const SPECIAL = { [ABSENT]: NaN, [NAN]: NaN, [PLUS]: Infinity, [MINUS]: -Infinity, [ZERO]: 0 };

export class EmbeddedSource {
  isLive = false;

  /** @param {CarriedRun[]} runs */
  constructor(runs) {
    this._runs = new Map(runs.map((run) => [run.head.name, run]));
  }

  /**
   * Read the text of the data: base64 of a gzip file.
   * @param {string} text
   */
  static async read(text) {
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new EmbeddedSource(unpackRuns(await new Response(stream).arrayBuffer()));
  }

  /** What the report is about, besides its first run. */
  get compared() {
    return [...this._runs.keys()].slice(1);
  }

  async runs() {
    return [...this._runs.values()].map((run) => run.info);
  }

  /** @param {string} run */
  async head(run) {
    return this._run(run).head;
  }

  /** @param {string} run */
  async health(run) {
    return this._run(run).health;
  }

  /** @param {string} run */
  async events(run) {
    return this._run(run).events;
  }

  /** @param {string[]} runs */
  async summaries(runs) {
    return Object.fromEntries(runs.map((run) => [run, this._run(run).summary]));
  }

  /** @param {Question} question */
  async windows({ run, series, layers, first, last, resolution }) {
    const { blocks } = this._run(run);
    const parts = series
      .flatMap(
        ([lens, statistic]) => blocks.find((block) => block.lens === lens && block.statistic === statistic) ?? [],
      )
      .map((block) => cut(block, { layers, first, last }))
      .filter((block) => block.layers.length);
    return resolution === 1 ? parts.map(summary) : parts;
  }

  /** @param {HistogramQuestion} question */
  async histogram({ run, lens, tag, layers, step }) {
    const found = this._run(run).histograms.findLast(
      (one) => one.lens === lens && one.tag === tag && (step === null || one.step <= step),
    );
    if (!found) return null;
    const rows = layers.map((layer) => found.layers.indexOf(layer)).filter((row) => row >= 0);
    return { ...found, layers: rows.map((row) => found.layers[row]), counts: rows.map((row) => found.counts[row]) };
  }

  /** @param {string} name */
  _run(name) {
    const run = this._runs.get(name);
    if (!run) throw new Error(`This report has no run "${name}".`);
    return run;
  }
}

/**
 * @param {ArrayBuffer} buffer
 * @returns {CarriedRun[]}
 */
function unpackRuns(buffer) {
  const { facts, offset } = header(buffer);
  /** @type {CarriedRun[]} */
  const runs = facts.runs;
  const blocks = runs.flatMap((run) => run.blocks);
  let place = readAxes(blocks, buffer, offset);
  for (const block of blocks) {
    const cells = block.layers.length * block.columns;
    /** @type {Uint16Array | null} */
    let mean = null;
    for (const plane of /** @type {(Plane | "nonfinite_high")[]} */ (block.planes)) {
      const isCount = plane.startsWith("nonfinite");
      const codes = unsqueeze(new Uint8Array(buffer, place, 2 * cells), block.columns, isCount ? null : mean);
      block[plane] = isCount ? Float32Array.from(codes) : numbers(codes, block.codes);
      if (!isCount) mean ??= codes;
      place += 2 * cells;
    }
    joinHalves(block);
    complete(block);
  }
  return runs;
}

/**
 * Counts that came as two planes are one.
 * @param {CarriedBlock} block
 */
function joinHalves(block) {
  const { nonfinite_high: high } = block;
  if (!high) return;
  block.planes = block.planes.filter((plane) => block[plane] !== high);
  block.nonfinite = block.nonfinite?.map((low, index) => low + 65536 * high[index]) ?? null;
}

/**
 * Codes from their differences to the column before, or to those of another plane.
 * @param {Uint8Array} bytes
 * @param {number} columns
 * @param {Uint16Array | null} beside
 */
function unsqueeze(bytes, columns, beside) {
  const cells = bytes.length / 2;
  const codes = new Uint16Array(cells);
  for (let index = 0; index < cells; index++) {
    const before = beside ? beside[index] : index % columns ? codes[index - 1] : 0;
    codes[index] = before + bytes[index] + 256 * bytes[cells + index];
  }
  return codes;
}

/**
 * @param {Uint16Array} codes
 * @param {Codes} plan
 */
function numbers(codes, { kind, low, step, unit }) {
  const result = new Float32Array(codes.length);
  for (let index = 0; index < codes.length; index++) {
    const code = codes[index];
    if (code < FIRST) result[index] = SPECIAL[code];
    else
      result[index] =
        kind === "log" ? Math.exp(low + (code - FIRST) * step) : Math.sinh(low + (code - FIRST) * step) * unit;
  }
  return result;
}

/**
 * All columns of a block as one.
 * @param {Block} block
 * @returns {Block}
 */
function summary(block) {
  const rows = block.layers.length;
  const plane = (/** @type {number} */ value) => new Float32Array(rows).fill(value);
  const [mean, minimum, maximum, nonfinite] = [plane(NaN), plane(NaN), plane(NaN), plane(0)];
  for (let row = 0; row < rows; row++) {
    let [sum, known] = [0, 0];
    for (let index = row * block.columns; index < (row + 1) * block.columns; index++) {
      nonfinite[row] += block.nonfinite?.[index] ?? 0;
      if (!Number.isFinite(block.mean[index])) continue;
      sum += block.mean[index];
      known++;
      minimum[row] = known === 1 ? block.minimum[index] : Math.min(minimum[row], block.minimum[index]);
      maximum[row] = known === 1 ? block.maximum[index] : Math.max(maximum[row], block.maximum[index]);
    }
    if (known) mean[row] = sum / known;
  }
  return {
    ...block,
    ...{ columns: 1, mean, minimum, maximum, nonfinite },
    step: block.step.slice(0, 1),
    last: block.last.slice(-1),
    epoch: block.epoch.slice(0, 1),
    time: block.time.slice(0, 1),
  };
}
