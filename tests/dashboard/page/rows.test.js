import assert from "node:assert/strict";
import test from "node:test";
import { brackets, build } from "page/rows.js";

const LAYERS = ["conv", "block.0.fc", "block.0.norm", "block.1.fc", "head"];

function rows(options = {}) {
  const usual = { layers: LAYERS, matches: () => true, pins: [], closed: [], sort: "model", scores: [0, 3, 1, 2, 0] };
  return build({ ...usual, withGroups: true, ...options });
}

const names = (found) => found.map(({ name }) => name);

test("layers are in the order of the model, under groups that are large enough", () => {
  assert.deepEqual(names(rows()), ["conv", "block", "block.0.fc", "block.0.norm", "block.1.fc", "head"]);
  assert.deepEqual(names(rows({ withGroups: false })), LAYERS);
});

test("a closed group is one row that stands for all its layers", () => {
  const [, group] = rows({ closed: ["block"] });
  assert.deepEqual([group.name, group.members, group.size, group.isClosed], ["block", [1, 2, 3], 3, true]);
});

test("the worst, or the first by name, come first; pins before all, whether or not they match", () => {
  assert.deepEqual(names(rows({ sort: "worst" })), ["block.0.fc", "block.1.fc", "block.0.norm", "conv", "head"]);
  assert.deepEqual(names(rows({ sort: "name" }))[0], "block.0.fc");
  assert.deepEqual(names(rows({ sort: "name", layers: ["l.10", "l.9"], scores: [0, 0] })), ["l.9", "l.10"]);
  assert.deepEqual(names(rows({ pins: ["head"], matches: (name) => name === "conv" })), ["head", "conv"]);
});

test("rows too thin for names share a bracket with their neighbours", () => {
  const layers = Array.from({ length: 100 }, (_, index) => `blocks.${Math.floor(index / 10)}.part${index % 10}`);
  const found = build({
    ...{ layers, matches: () => true, pins: [], closed: [], sort: "model", scores: [] },
    withGroups: false,
  });
  const marked = brackets(found, 4, 5);
  assert.deepEqual(
    marked.map(({ label }) => label),
    Array.from({ length: 10 }, (_, index) => `blocks.${index}`),
  );
  assert.deepEqual([marked[3].start, marked[3].end], [30, 40]);
});
