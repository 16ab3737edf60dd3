// A report as a source of runs: everything is in the page itself.

import { AXES, complete, cut } from "page/blocks.js";

// codes of what is no ordinary number
const [ABSENT, NAN, PLUS, MINUS, ZERO, FIRST] = [0, 1, 2, 3, 4, 5];
const SPECIAL = { [ABSENT]: NaN, [NAN]: NaN, [PLUS]: Infinity, [MINUS]: -Infinity, [ZERO]: 0 };

export class EmbeddedSource {
  isLive = false;

  constructor(runs) {
    this._runs = new Map(runs.map((run) => [run.head.name, run]));
  }

  /** Read the text of the data: base64 of a gzip file. */
  static async read(text) {
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new EmbeddedSource(unpackRuns(await new Response(stream).arrayBuffer()));
  }

  async runs() {
    return [...this._runs.values()].map((run) => run.info);
  }

  async head(run) {
    return this._runs.get(run).head;
  }

  async events(run) {
    return this._runs.get(run).events;
  }

  async windows({ run, series, layers, first, last, resolution }) {
    const { blocks } = this._runs.get(run);
    const found = series.map(([lens, statistic]) =>
      blocks.find((block) => block.lens === lens && block.statistic === statistic),
    );
    const parts = found
      .filter(Boolean)
      .map((block) => cut(block, { layers, first, last }))
      .filter((block) => block.layers.length);
    return resolution === 1 ? parts.map(summary) : parts;
  }
}

function unpackRuns(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const { runs } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const blocks = runs.flatMap((run) => run.blocks);
  let offset = 4 + length;
  for (const block of blocks) {
    for (const axis of AXES) {
      block[axis] = new Float64Array(buffer, offset, block.columns);
      offset += 8 * block.columns;
    }
  }
  for (const block of blocks) {
    const cells = block.layers.length * block.columns;
    let mean = null;
    for (const plane of block.planes) {
      const isCount = plane === "nonfinite";
      const codes = unsqueeze(new Uint8Array(buffer, offset, 2 * cells), block.columns, isCount ? null : mean);
      block[plane] = isCount ? Float32Array.from(codes) : numbers(codes, block.codes);
      if (!isCount) mean ??= codes;
      offset += 2 * cells;
    }
    complete(block);
  }
  return runs;
}

/** Codes from their differences to the column before, or to those of another plane. */
function unsqueeze(bytes, columns, beside) {
  const cells = bytes.length / 2;
  const codes = new Uint16Array(cells);
  for (let index = 0; index < cells; index++) {
    const before = beside ? beside[index] : index % columns ? codes[index - 1] : 0;
    codes[index] = before + bytes[index] + 256 * bytes[cells + index];
  }
  return codes;
}

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

/** All columns of a block as one. */
function summary(block) {
  const rows = block.layers.length;
  const total = {
    ...block,
    columns: 1,
    step: block.step.slice(0, 1),
    last: block.last.slice(-1),
    epoch: block.epoch.slice(0, 1),
    time: block.time.slice(0, 1),
  };
  for (const plane of ["mean", "minimum", "maximum", "nonfinite"])
    total[plane] = new Float32Array(rows).fill(plane === "nonfinite" ? 0 : NaN);
  for (let row = 0; row < rows; row++) {
    let [sum, known] = [0, 0];
    for (let index = row * block.columns; index < (row + 1) * block.columns; index++) {
      total.nonfinite[row] += block.nonfinite?.[index] ?? 0;
      if (!Number.isFinite(block.mean[index])) continue;
      sum += block.mean[index];
      known++;
      total.minimum[row] = known === 1 ? block.minimum[index] : Math.min(total.minimum[row], block.minimum[index]);
      total.maximum[row] = known === 1 ? block.maximum[index] : Math.max(total.maximum[row], block.maximum[index]);
    }
    if (known) total.mean[row] = sum / known;
  }
  return total;
}
