import assert from "node:assert/strict";
import test from "node:test";
import { charts, family, favourite, layerText, matcher, menu, shownName, statisticsOf, title } from "page/names.js";
import { band, count, line } from "./facts.js";

const lens = (name, layers, ...statistics) => ({ name, layers, statistics: statistics.flat(), histograms: [] });
const RUN = { module: "run", members: ["run"] };

test("a statistic has a title of its own", () => {
  assert.equal(title(line("Loss", "mean", { curve: "train_loss" })), "Loss · train loss");
  assert.equal(title(line("Weight Norm", "mean")), "Weight Norm");
  assert.equal(title(line("Weight Norm", "max")), "Weight Norm · max");
  assert.equal(title({ ...line("", "mean"), name: "mean" }), "mean");
  assert.equal(title(undefined), "");
});

test("a layer whose name is a number is called a layer", () => {
  assert.deepEqual(["", "0", "12.3", "fc1", "h.0", "0.weight"].map(layerText), [
    "the model",
    "layer 0",
    "layer 12.3",
    "fc1",
    "h.0",
    "0.weight",
  ]);
});

test("gradients are shown first, lines are offered first, the whole run is no row", () => {
  const norms = [count("Norm"), ...band("Norm", "min-max", ["min", "max"]), line("Norm", "mean")];
  const lenses = [lens("run", ["run"], line("Loss", "mean", { curve: "l" })), lens("N", ["a"], norms)];
  assert.deepEqual(favourite(lenses), ["N", "Norm/mean"]);
  const gradients = [band("Weight Gradient Norm", "std", ["-σ", "+σ"]), line("Weight Gradient Norm", "median")];
  assert.deepEqual(favourite([...lenses, lens("G", ["a"], ...gradients)]), ["G", "Weight Gradient Norm/median"]);
  assert.deepEqual(favourite([lens("N", ["a"], count("Norm"))]), ["N", "Norm/nonfinite"]);
  assert.deepEqual(favourite([]), ["", ""]);
  assert.deepEqual(
    menu(lenses).map(([name, options]) => [name, options.map(([, text]) => text)]),
    [["N", ["Norm", "Norm · min", "Norm · max", "Norm · nonfinite"]]],
  );
});

test("a module and its parameters are a family", () => {
  const layers = ["fc", "fc.weight", "fc.bias", "fcx"].map((name) => ({
    name,
    kind: name.includes(".") ? null : "Linear",
  }));
  assert.deepEqual(family(layers, "fc.bias"), { module: "fc", members: ["fc.bias", "fc", "fc.weight"] });
  assert.deepEqual(family(layers, "fcx"), { module: "fcx", members: ["fcx"] });
});

test("a model that is a single layer has no name, and is a family with its parameters", () => {
  const layers = ["", "weight", "bias", "input"].map((name) => ({ name, kind: name ? null : "Linear" }));
  const whole = { module: "", members: ["weight", "", "bias"] };
  assert.deepEqual(family(layers, "weight"), whole);
  assert.deepEqual(family(layers, ""), { module: "", members: ["", "weight", "bias"] });
  assert.deepEqual(family(layers, "input"), { module: "input", members: ["input"] });
  assert.equal(shownName(""), "the model");
  assert.equal(shownName("fc"), "fc");
});

test("statistics of one tag are one chart, what is logged is one chart each, speed and warnings come last", () => {
  const all = lens(
    "run",
    ["run"],
    line("Non-Finite Outputs", "max"),
    line("Warning X", "worst"),
    line("Loss", "mean", { curve: "a" }),
    band("Loss", "min-max", ["min", "max"], { curve: "a" }),
    count("Loss", { curve: "a" }),
    line("Loss", "mean", { curve: "b" }),
    line("Logged", "mean", { curve: "lr" }),
    line("Logged", "mean", { curve: "samples per second" }),
    line("Logged", "mean", { curve: "it" }),
  );
  const found = charts([all], RUN);
  assert.deepEqual(
    found.map((chart) => [chart.title, chart.curves.map((curve) => curve.name)]),
    [
      ["Loss", ["a", "b"]],
      ["lr", ["lr"]],
      ["it", ["it"]],
      ["samples per second", ["samples per second"]],
      ["Non-Finite Outputs", ["max"]],
      ["Warning X", ["worst"]],
    ],
  );
  const [curve] = found[0].curves;
  assert.deepEqual(curve.bands, [{ low: "Loss/a min", high: "Loss/a max", isExtreme: true, isGuess: false }]);
  assert.deepEqual(statisticsOf(curve), ["Loss/a mean", "Loss/a min", "Loss/a max"]);
});

test("a chart knows whether its tag has histograms, and a curve how far off it may be and which part it is about", () => {
  const known = lens("L", ["fc.weight", "fc.bias"], line("A", "q50", { error_text: "± 1 %" }), line("B", "mean"));
  const found = charts([{ ...known, histograms: ["A"] }], { module: "fc", members: ["fc.weight", "fc.bias"] });
  assert.deepEqual(
    found.map((chart) => [chart.histograms, chart.curves.map(({ part, error }) => [part, error])]),
    [
      [
        "A",
        [
          ["weight", "± 1 %"],
          ["bias", "± 1 %"],
        ],
      ],
      [
        null,
        [
          ["weight", ""],
          ["bias", ""],
        ],
      ],
    ],
  );
});

const QUARTILES = ["Q1-Q3", ["Q1", "Q3"]];
const DEVIATIONS = ["std", ["-σ", "+σ"]];
const EXTREMES = ["min-max", ["min", "max"]];

for (const [name, statistics, wanted] of [
  ["a mean with quartiles", [["mean"], [QUARTILES]], [["", "mean", ["Q1"]]]],
  ["a median with quartiles", [["median"], [QUARTILES]], [["median", "median", ["Q1"]]]],
  [
    "a median before a mean, with deviations",
    [["median", "mean"], [DEVIATIONS]],
    [
      ["median", "median", []],
      ["mean", "mean", ["-σ"]],
    ],
  ],
  ["a mean with three bands", [["mean"], [EXTREMES, DEVIATIONS, QUARTILES]], [["", "mean", ["min", "-σ", "Q1"]]]],
  [
    "lines called like edges",
    [["mean", "max"], []],
    [
      ["mean", "mean", []],
      ["max", "max", []],
    ],
  ],
  ["nothing but a band", [[], [EXTREMES]], [["min", "min", ["min"]]]],
]) {
  test(`${name}: each line is a curve, and bands are around the one that needs no label`, () => {
    const [lines, bands] = statistics;
    const known = [...lines.map((text) => line("T", text)), ...bands.flatMap(([own, edges]) => band("T", own, edges))];
    const [chart] = charts([lens("run", ["run"], known)], RUN);
    const shown = chart.curves.map((curve) => [curve.name, curve.line, curve.bands.map(({ low }) => low)]);
    const named = wanted.map(([text, own, lows]) => [text, `T/${own}`, lows.map((low) => `T/${low}`)]);
    assert.deepEqual(shown, named);
  });
}

test("an edge without its other side is a line", () => {
  const [low] = band("T", ...EXTREMES);
  const [chart] = charts([lens("run", ["run"], line("T", "mean"), low)], RUN);
  assert.deepEqual(
    chart.curves.map((curve) => [curve.line, curve.bands.length]),
    [
      ["T/mean", 0],
      ["T/min", 0],
    ],
  );
});

test("a filter is a regular expression, or letters where it is none", () => {
  assert.equal(matcher("").test("anything"), true);
  assert.equal(matcher("^fc\\d$").test("FC1"), true);
  assert.deepEqual(
    [matcher("fc[").isValid, matcher("fc[").test("fc[0]"), matcher("fc[").test("fc0")],
    [false, true, false],
  );
});
