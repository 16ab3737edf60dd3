import assert from "node:assert/strict";
import test from "node:test";
import { columnsOf, compared, filtered, orderOf, rowsOf, settingsOf, sorted } from "page/runs_table.js";
import { line } from "./facts.js";

const LOSS = line("Loss", "mean", { curve: "train_loss" });
const ACCURACY = line("Logged", "mean", { curve: "accuracy" });
const SUMMARIES = {
  first: {
    meta: { started: 100, ended: 160, heartbeat: 161, config: { lr: 0.1, model: { width: 8 } }, pid: 1, host: "vm" },
    statistics: [line("Warning X", "worst"), ACCURACY, LOSS],
    verdict: "2 problems since step 80",
    newest: { "Loss/train_loss mean": 0.5, "Logged/accuracy mean": 0.9, "Warning X/worst": 1 },
  },
  second: {
    meta: { started: 100, heartbeat: 130, config: { lr: 0.01, model: { width: 8 } }, pid: 2, host: "vm" },
    statistics: [LOSS, ACCURACY],
    newest: { "Loss/train_loss mean": "NaN", "Logged/accuracy mean": 0.95 },
  },
  third: {
    meta: { config: { lr: 0.0281838293126, model: { width: 8 } } },
    statistics: [LOSS],
    newest: { "Loss/train_loss mean": 0.25 },
  },
};
const INFOS = ["first", "second", "third", "broken"].map((name, place) => ({
  ...{ name, status: name === "broken" ? "damaged" : "finished", ticks: 3, age: place, size: 1000 },
  last_step: name === "broken" ? null : 10 * place,
}));

const rows = () => rowsOf(INFOS, (name) => SUMMARIES[name] ?? null);
const names = (found) => found.map(({ info }) => info.name);

test("columns are how a run is, then results, then settings that differ, then facts", () => {
  const three = rows().slice(0, 3);
  assert.deepEqual(
    columnsOf(three).map(({ title }) => title),
    ["run", "health", "status", "train loss", "accuracy", "lr", "host", "steps", "duration", "last update", "size"],
  );
  const cells = (name) => columnsOf(three).find(({ title }) => title === name);
  assert.deepEqual(three.map(cells("train loss").text), ["0.5", "NaN", "0.25"]);
  assert.deepEqual(three.map(cells("accuracy").text), ["0.9", "0.95", "–"]);
  assert.deepEqual(three.map(cells("health").text), ["2 problems since step 80", "–", "–"]);
  assert.deepEqual(three.map(cells("duration").text), ["60 s", "30 s", "–"]);
  assert.deepEqual(three.map(cells("lr").text), ["0.1", "0.01", "0.028184"]);
});

test("metrics of one name are told apart by their tags", () => {
  const statistics = ["Loss", "Logged"].map((tag) => line(tag, "mean", { curve: "a" }));
  const newest = { "Loss/a mean": 1, "Logged/a mean": 2 };
  const twice = rowsOf(INFOS.slice(0, 1), () => ({ meta: {}, statistics, newest }));
  assert.deepEqual(
    columnsOf(twice)
      .filter(({ kind }) => kind === "metric")
      .map(({ title }) => title),
    ["Loss · a", "Logged · a"],
  );
});

test("a setting that is called like another column says that it is one", () => {
  const metas = [400, 800].map((steps) => ({ config: { steps, accuracy: steps / 1000 } }));
  const two = rowsOf(INFOS.slice(0, 2), (name) => ({
    meta: metas[name === "first" ? 0 : 1],
    statistics: [ACCURACY],
    newest: { "Logged/accuracy mean": 0.5 },
  }));
  const titles = columnsOf(two).map(({ title }) => title);
  assert.equal(new Set(titles).size, titles.length, titles.join(", "));
  assert.ok(titles.includes("steps (setting)") && titles.includes("accuracy (setting)"), titles.join(", "));
});

test("what the store keeps for itself is no setting", () => {
  const kept = { id: "a", writer: "b", pid: 1, rank: 0, heartbeat: 3, dropped: 0, error: null, tick_unit: "tick" };
  const cost = { overhead: 0.1, overhead_at_least: true };
  assert.deepEqual([...settingsOf({ ...kept, ...cost, config: { lr: 0.1 } }).keys()], ["lr"]);
});

for (const [order, wanted] of [
  ["", ["first", "second", "third", "broken"]],
  ["nothing", ["first", "second", "third", "broken"]],
  ["run", ["broken", "first", "second", "third"]],
  ["-run", ["third", "second", "first", "broken"]],
  ["Loss/train_loss mean", ["third", "first", "second", "broken"]],
  ["-Loss/train_loss mean", ["first", "third", "second", "broken"]],
  ["setting lr", ["second", "third", "first", "broken"]],
  ["-steps", ["third", "second", "first", "broken"]],
]) {
  test(`sorted by "${order}", what is NaN or missing comes last`, () => {
    assert.deepEqual(names(sorted(rows(), columnsOf(rows()), order)), wanted);
  });
}

test("a column that does not exist sorts nothing", () => {
  assert.equal(orderOf(columnsOf(rows()), "-nothing").column, null);
});

for (const [filter, wanted] of [
  ["", ["first", "second", "third", "broken"]],
  ["  ", ["first", "second", "third", "broken"]],
  ["ir", ["first", "third"]],
  ["lr=0.1", ["first"]],
  ["lr=0.01 finished", ["second"]],
  ["model.width=8 ^t", ["third"]],
  ["damaged", ["broken"]],
  ["[", []],
]) {
  test(`the filter "${filter}" looks into names, status and settings`, () => {
    assert.deepEqual(names(filtered(rows(), filter)), wanted);
  });
}

test("settings inside of settings have their names joined; what a run knows of itself is none", () => {
  const meta = {
    ...{
      id: "x",
      name: "n",
      status: "crashed",
      started: 1,
      heartbeat: 2,
      error: { type: "E" },
      overhead: 0.1,
      rank: 0,
    },
    ...{ config: { lr: 0.1, betas: [0.9, 0.99], data: { path: "/a" }, none: null }, versions: { torch: "2" } },
    optimizers: [{ kind: "Adam" }],
  };
  assert.deepEqual(Object.fromEntries(settingsOf(meta)), {
    ...{ lr: "0.1", betas: "[0.9,0.99]", "data.path": "/a" },
    ...{ "optimizers.0.kind": "Adam", "versions.torch": "2" },
  });
  assert.deepEqual([...settingsOf({}), ...settingsOf({ config: null })], []);
});

test("settings differ where one run has another value, or none", () => {
  const [one, other] = [
    new Map([
      ["a", "1"],
      ["b", "2"],
    ]),
    new Map([["a", "1"]]),
  ];
  assert.deepEqual(compared([one, other]), { differ: ["b"], same: ["a"] });
  assert.deepEqual(compared([one]), { differ: [], same: ["a", "b"] });
  assert.deepEqual(compared([]), { differ: [], same: [] });
});
