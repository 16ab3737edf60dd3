import assert from "node:assert/strict";
import test from "node:test";
import { charts, family, favourite, matcher, menu, parts, title } from "page/names.js";

const named = (...names) => names.map((name) => ({ name, scale: "linear", limits: null }));
const lens = (name, layers, ...statistics) => ({ name, layers, statistics: named(...statistics) });

test("a name says tag, curve and line", () => {
  for (const [name, tag, curve, line] of [
    ["Loss/train_loss mean", "Loss", "train_loss", "mean"],
    ["Weight Norm/mean", "Weight Norm", "", "mean"],
    ["Weight Norm/−σ", "Weight Norm", "", "-σ"],
    ["Rate/value", "Rate", "", "value"],
    ["Loss/train_loss Q1", "Loss", "train_loss", "Q1"],
    ["Activations/death_rate", "Activations", "death_rate", "value"],
    ["mean", "mean", "", "mean"],
  ])
    assert.deepEqual(parts(name), { tag, curve, line });
});

test("a statistic has a title of its own", () => {
  assert.equal(title("Loss/train_loss mean"), "Loss · train loss");
  assert.equal(title("Weight Norm/mean"), "Weight Norm");
  assert.equal(title("Weight Norm/max"), "Weight Norm max");
});

test("gradients are shown first, means are offered first, the whole run is no row", () => {
  const lenses = [lens("run", ["run"], "Loss/l mean"), lens("N", ["a"], "Norm/nonfinite", "Norm/max", "Norm/mean")];
  assert.deepEqual(favourite(lenses), ["N", "Norm/nonfinite"]);
  assert.deepEqual(favourite([...lenses, lens("G", ["a"], "Weight Gradient Norm/mean")]), [
    "G",
    "Weight Gradient Norm/mean",
  ]);
  assert.deepEqual(favourite([]), ["", ""]);
  assert.deepEqual(
    menu(lenses).map(([name, options]) => [name, options.map(([, text]) => text)]),
    [["N", ["Norm", "Norm max", "Norm nonfinite"]]],
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

test("statistics of one tag are one chart, what is logged is one chart each, warnings come last", () => {
  const all = lens(
    "run",
    ["run"],
    "Warning X/worst",
    "Loss/a mean",
    "Loss/a max",
    "Loss/b mean",
    "Logged/lr mean",
    "Logged/it mean",
  );
  const found = charts([all], { module: "run", members: ["run"] });
  assert.deepEqual(
    found.map((chart) => [chart.title, chart.curves.map((curve) => curve.name)]),
    [
      ["Loss", ["a", "b"]],
      ["lr", ["lr"]],
      ["it", ["it"]],
      ["Warning X", ["worst"]],
    ],
  );
  assert.deepEqual(found[0].curves[0].lines, { mean: "Loss/a mean", max: "Loss/a max" });
});

test("a median beside a mean is a curve of its own, alone it is the curve", () => {
  const curves = (...statistics) =>
    charts([lens("run", ["run"], ...statistics)], { module: "run", members: ["run"] })[0].curves.map(
      ({ name, lines }) => [name, Object.keys(lines)],
    );
  assert.deepEqual(curves("Loss/a mean", "Loss/a median", "Loss/a Q1", "Loss/a Q3"), [
    ["a", ["mean", "Q1", "Q3"]],
    ["a median", ["median"]],
  ]);
  assert.deepEqual(curves("Loss/a median", "Loss/a Q1", "Loss/a Q3"), [["a", ["median", "Q1", "Q3"]]]);
});

test("a filter is a regular expression, or letters where it is none", () => {
  assert.equal(matcher("").test("anything"), true);
  assert.equal(matcher("^fc\\d$").test("FC1"), true);
  assert.deepEqual(
    [matcher("fc[").isValid, matcher("fc[").test("fc[0]"), matcher("fc[").test("fc0")],
    [false, true, false],
  );
});
