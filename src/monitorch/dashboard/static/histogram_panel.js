// The histogram below a chart: how the elements were distributed at the cursor.

import { splitsOf } from "page/chart_options.js";
import { fade } from "page/colours.js";
import { contextOf, cssColour, dot, element } from "page/dom.js";
import { count, number, tickLabels } from "page/format.js";
import { columnsFor, profile } from "page/histogram.js";
import { printable } from "page/text.js";

/** @import { App } from "page/app.js" */
/** @import { ScaleKind } from "page/chart_options.js" */
/** @import { Histogram, Profile } from "page/histogram.js" */

/**
 * What to show: the layers of a chart at a step (null: the newest), in some runs. `stamp` changes with what is newest.
 * @typedef {{ lens: string, tag: string, layers: string[], runs: string[], step: number | null, stamp: string }} Asked
 */

/**
 * How to draw it: the axis is that of the chart beside it, lying on its side.
 * @typedef {{
 *   kind: ScaleKind, unit: number, low: number, high: number, colour: (run: number, layer: string) => string,
 *   nameOf: (layer: string) => string,
 * }} Look
 */

const MOST_REMEMBERED = 300;
const COLUMN_PIXELS = 2;
const AXIS_PIXELS = 16;
const LABEL_PIXELS = 56;
const SMALLEST_SHARE = 0.005;

/** @type {Record<ScaleKind, (value: number, unit: number) => number>} */
const FOLDS = {
  linear: (value) => value,
  log: (value) => Math.log(Math.max(value, Number.MIN_VALUE)),
  symlog: (value, unit) => Math.asinh(value / unit),
};

export class HistogramPanel {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    /** @type {{ asked: Asked, look: Look } | null} */
    this.wanted = null;
    this.isAsking = false;
    /** @type {Map<string, (Histogram | null)[]>} */
    this.answers = new Map();
    this.canvas = element("canvas", { role: "img" });
    this.caption = element("figcaption", { class: "muted" });
    this.root = element("figure", { class: "histogram" }, this.canvas, this.caption);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  /**
   * @param {Asked} asked
   * @param {Look} look
   */
  show(asked, look) {
    this.wanted = { asked, look };
    if (this.answers.has(JSON.stringify(asked))) this.draw();
    else this.ask();
  }

  /** Ask for what is wanted now; if the cursor moves on meanwhile, only where it is then counts. */
  async ask() {
    if (this.isAsking) return;
    this.isAsking = true;
    const end = this.app.drawing.begin();
    try {
      while (this.wanted && !this.answers.has(JSON.stringify(this.wanted.asked))) {
        const { asked } = this.wanted;
        const { lens, tag, layers, step } = asked;
        const questions = asked.runs.map((run) => this.app.source.histogram({ run, lens, tag, layers, step }));
        this.answers.set(JSON.stringify(asked), await Promise.all(questions));
        const [oldest] = this.answers.keys();
        if (this.answers.size > MOST_REMEMBERED) this.answers.delete(oldest);
      }
      this.draw();
    } catch (error) {
      this.app.complain(error);
    } finally {
      this.isAsking = false;
      end();
    }
  }

  draw() {
    const { canvas } = this;
    const found = this.wanted && this.answers.get(JSON.stringify(this.wanted.asked));
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!this.wanted || !found || !width) return;
    const { look, asked } = this.wanted;
    canvas.width = width * devicePixelRatio;
    canvas.height = height * devicePixelRatio;
    const context = contextOf(canvas);
    context.scale(devicePixelRatio, devicePixelRatio);
    const [low, high] = [look.low, look.high].map((value) => FOLDS[look.kind](value, look.unit));
    const place = (/** @type {number} */ value) => (FOLDS[look.kind](value, look.unit) - low) / (high - low);
    const bottom = height - AXIS_PIXELS;
    this.drawAxis(context, width, bottom, place);
    const size = Math.floor(width / COLUMN_PIXELS);
    const shapes = found.flatMap((histogram, run) =>
      (histogram?.layers ?? []).map((layer, row) => {
        const counts = histogram?.counts[row] ?? [];
        return {
          name: [asked.runs.length > 1 ? asked.runs[run] : "", look.nameOf(layer)].filter(Boolean).join(" "),
          colour: look.colour(run, layer),
          profile: profile(histogram?.edges ?? [], counts, place, columnsFor(counts, size)),
        };
      }),
    );
    const most = Math.max(...shapes.map(({ profile: { columns } }) => columns.length * Math.max(...columns)), 0);
    for (const shape of shapes) {
      if (shape.profile.zero > SMALLEST_SHARE) {
        context.fillStyle = shape.colour;
        context.fillRect(width * place(0) - 1, bottom, 2, -shape.profile.zero * bottom); // as high as its share
      }
      drawShape(context, shape.profile.columns, shape.colour, width, bottom, most);
    }
    this.tell([...new Set(found.flatMap((histogram) => histogram?.step ?? []))], shapes);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} width
   * @param {number} height
   * @param {(value: number) => number} place
   */
  drawAxis(context, width, height, place) {
    const look = /** @type {Look} */ (this.wanted?.look);
    const values = splitsOf(look.kind, look.unit)(look.low, look.high, width / LABEL_PIXELS);
    const labels = tickLabels(values);
    context.font = `11px ${cssColour("--sans")}`;
    context.textBaseline = "bottom";
    values.forEach((value, index) => {
      const x = width * place(value);
      context.fillStyle = cssColour("--grid");
      context.fillRect(x, 0, 1, height);
      context.fillStyle = cssColour("--muted");
      const half = context.measureText(labels[index]).width / 2;
      context.fillText(labels[index], Math.min(Math.max(x - half, 0), width - 2 * half), height + AXIS_PIXELS);
    });
    context.fillStyle = cssColour("--line");
    context.fillRect(0, height, width, 1);
  }

  /**
   * When, how many elements, and what the picture leaves out.
   * @param {number[]} steps
   * @param {{ name: string, colour: string, profile: Profile }[]} shapes
   */
  tell(steps, shapes) {
    const notes = shapes.map(({ name, colour, profile: { zero, outside, elements } }) => {
      const parts = [
        `${count(elements)} elements`,
        zero > SMALLEST_SHARE ? `${percent(zero)} zero` : "",
        outside > SMALLEST_SHARE ? `${percent(outside)} outside` : "",
      ];
      const text = [name, parts.filter(Boolean).join(", ")].filter(Boolean).join(": ");
      return element("span", { class: "pair" }, shapes.length > 1 ? dot(colour) : null, text);
    });
    const when = steps.length ? `step ${steps.map(count).join(", ")}` : "No histogram was kept up to here.";
    this.caption.replaceChildren(element("span", { text: when }), ...notes);
    const told = [when, ...notes.map((note) => note.textContent)].join(", ");
    this.canvas.setAttribute("aria-label", printable(`Histogram, ${told}`));
  }
}

/** @param {number} share */
function percent(share) {
  return `${number(Number((100 * share).toPrecision(2)))} %`;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Float64Array} columns
 * @param {string} colour
 * @param {number} width
 * @param {number} height
 * @param {number} most
 */
function drawShape(context, columns, colour, width, height, most) {
  if (!most) return;
  const step = width / columns.length;
  context.beginPath();
  context.moveTo(0, height);
  columns.forEach((share, column) => {
    const top = height - ((share * columns.length) / most) * (height - 3);
    context.lineTo(column * step, top);
    context.lineTo((column + 1) * step, top);
  });
  context.lineTo(width, height);
  context.fillStyle = fade(colour, 0.25);
  context.fill();
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.stroke();
}
