import assert from "node:assert/strict";
import test from "node:test";
import { brackets, build, isFolded, WORST_ROWS } from "page/rows.js";

const LAYERS = ["conv", "block.0.fc", "block.0.norm", "block.1.fc", "head"];

function rows(options = {}) {
  const worst = ["block.0.fc", "block.1.fc", "block.0.norm"];
  const place = (name) => (worst.includes(name) ? worst.indexOf(name) : Infinity);
  const usual = { layers: LAYERS, matches: () => true, pins: [], closed: [], opened: [], sort: "model", place };
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
  assert.deepEqual(names(rows({ sort: "name", layers: ["l.10", "l.9"] })), ["l.9", "l.10"]);
  assert.deepEqual(names(rows({ pins: ["head"], matches: (name) => name === "conv" })), ["head", "conv"]);
});

test("rows too thin for names share a bracket with their neighbours", () => {
  const layers = Array.from({ length: 100 }, (_, index) => `blocks.${Math.floor(index / 10)}.part${index % 10}`);
  const found = rows({ layers, withGroups: false });
  const marked = brackets(found, 4, 5);
  assert.deepEqual(
    marked.map(({ label }) => label),
    Array.from({ length: 10 }, (_, index) => `blocks.${index}`),
  );
  assert.deepEqual([marked[3].start, marked[3].end], [30, 40]);
});

const MANY = Array.from({ length: 1000 }, (_, index) => `blocks.${Math.floor(index / 20)}.part${index % 20}`);

test("of many layers only the worst have rows of their own; the others are in closed groups, each in one", () => {
  assert.deepEqual([isFolded(100), isFolded(101)], [false, true]);
  const place = (name) => (name === "blocks.38.part17" ? 0 : 1);
  const found = rows({ layers: MANY, sort: "worst", place });
  const [worst, groups] = [found.slice(0, WORST_ROWS), found.slice(WORST_ROWS)];
  assert.equal(worst[0].name, "blocks.38.part17");
  assert.ok(worst.every(({ isGroup, members }) => !isGroup && members.length === 1));
  assert.deepEqual([groups[0].name, groups[0].isClosed], ["blocks", false]);
  assert.ok(groups.slice(1).every(({ isGroup, isClosed }) => isClosed || !isGroup));
  assert.ok(groups.length <= 60);
  const covered = found.flatMap(({ members }) => members).sort((one, other) => one - other);
  assert.deepEqual(covered, [...MANY.keys()]);
});

test("groups are closed, the deepest first, until the rows fit; those that somebody opened stay open", () => {
  const few = rows({ layers: MANY, most: 60 });
  assert.deepEqual(names(few), ["blocks", ...Array.from({ length: 50 }, (_, index) => `blocks.${index}`)]);
  assert.deepEqual(few[1].members, [...Array(20).keys()]);
  assert.deepEqual(names(rows({ layers: MANY, most: 20 })), ["blocks"]);
  const opened = rows({ layers: MANY, most: 60, opened: ["blocks.3"] });
  assert.deepEqual(names(opened).slice(4, 7), ["blocks.3", "blocks.3.part0", "blocks.3.part1"]);
  assert.deepEqual(names(rows({ layers: MANY, most: 60, opened: ["blocks"], closed: ["blocks"] })), ["blocks"]);
});
