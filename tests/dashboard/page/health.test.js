import assert from "node:assert/strict";
import test from "node:test";
import { cases, statisticOf, verdictTone, worstTone } from "page/health.js";
import { line } from "./facts.js";

const finding = (id, fields = {}) => ({ id, severity: "error", caused_by: null, resolved_at: null, ...fields });

const shown = (findings) =>
  cases(findings).map(({ cause, consequences }) => [cause.id, consequences.map(({ id }) => id)]);

test("consequences are under their first cause, in the order in which they came", () => {
  const found = [
    finding("rate"),
    finding("dead", { caused_by: "rate" }),
    finding("other"),
    finding("stuck", { caused_by: "dead" }),
    finding("late", { caused_by: "rate" }),
  ];
  assert.deepEqual(shown(found), [
    ["rate", ["dead", "stuck", "late"]],
    ["other", []],
  ]);
});

test("a cause that is not in the list, or goes round in a circle, hides nothing", () => {
  assert.deepEqual(shown([finding("a", { caused_by: "gone" })]), [["a", []]]);
  const ids = shown([finding("a", { caused_by: "b" }), finding("b", { caused_by: "a" })]).flat(2);
  assert.deepEqual(ids.sort(), ["a", "b"]);
  assert.deepEqual(shown([finding("a", { caused_by: "a" })]), [["a", []]]);
  assert.deepEqual(shown([]), []);
});

test("what lasts comes before what is over or does no harm", () => {
  const found = [
    finding("over", { resolved_at: 9 }),
    finding("note", { severity: "info" }),
    finding("gone", { resolved_at: 9 }),
    finding("left", { caused_by: "gone" }),
    finding("now"),
  ];
  assert.deepEqual(
    shown(found).map(([id]) => id),
    ["gone", "now", "over", "note"],
  );
});

test("the verdict looks like the worst problem that lasts", () => {
  const tone = (findings, status = "finished") => verdictTone({ findings }, status);
  assert.equal(tone(null), "unknown");
  assert.equal(tone([]), "healthy");
  assert.equal(tone([finding("a", { resolved_at: 3 }), finding("b", { severity: "info" })]), "healthy");
  assert.equal(tone([], "crashed"), "unknown");
  assert.equal(tone([finding("a", { severity: "warning" })]), "warning");
  assert.equal(tone([finding("a", { severity: "warning" })], "crashed"), "warning");
  assert.equal(tone([finding("a", { severity: "warning" }), finding("b")]), "error");
});

test("a group looks like the worst of its layers", () => {
  assert.equal(worstTone([]), "");
  assert.equal(worstTone(["jump", "", "warning", "info"]), "warning");
  assert.equal(worstTone(["nonfinite", "warning"]), "nonfinite");
  assert.equal(worstTone(["nonfinite", "error"]), "error");
});

test("the statistic of a series is found by any of its names, where the layer has a row", () => {
  const lenses = [
    {
      name: "Outputs",
      layers: ["fc"],
      statistics: [line("Output Activations", "death_rate"), line("Output Norm", "mean")],
    },
    { name: "Gradients", layers: ["fc.weight"], statistics: [line("Parameter Gradient Norm", "mean")] },
    { name: "Others", layers: ["conv"], statistics: [line("Death Rate", "mean")] },
  ];
  const found = (series, members = ["fc", "fc.weight"]) => statisticOf(lenses, series, members)?.statistic;
  assert.equal(found("Output Norm/mean"), "Output Norm/mean");
  assert.equal(found("output_norm"), "Output Norm/mean");
  assert.equal(found("death_rate"), "Output Activations/death_rate");
  assert.equal(found("gradient norm"), "Parameter Gradient Norm/mean");
  assert.equal(found("norm"), "Output Norm/mean");
  assert.equal(found("norm", ["fc.weight", "fc"]), "Parameter Gradient Norm/mean");
  assert.equal(found("loss"), undefined);
  assert.equal(found(""), undefined);
});
