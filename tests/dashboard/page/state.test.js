import assert from "node:assert/strict";
import test from "node:test";
import { parse, written } from "page/state.js";

test("an address that says nothing means what is usual", () => {
  const usual = parse("");
  assert.deepEqual(
    [usual.sort, usual.tab, usual.x, usual.theme, usual.compare],
    ["model", "layer", "step", "system", []],
  );
  assert.equal(written(usual), "");
});

test("everything that is chosen is in the address, and comes back", () => {
  const chosen = {
    ...parse(""),
    ...{ run: "a b", compare: ["x", "y&z"], sort: "worst", difference: true, first: 3, last: 9, smooth: 0.5, at: 0 },
    ...{ scales: { "L/T": "log" }, search: "fc\\d+", runfilter: "lr=0.1", runsort: "-steps" },
  };
  assert.deepEqual(parse(written(chosen)), chosen);
});

for (const [text, field, wanted] of [
  ["sort=foo", "sort", "model"],
  ["tab=", "tab", "layer"],
  ["x=weeks", "x", "step"],
  ["theme=pink", "theme", "system"],
  ["cell=median", "cell", "maximum"],
  ["smooth=7", "smooth", 0.999],
  ["smooth=-1", "smooth", 0],
  ["smooth=much", "smooth", 0],
  ["first=abc", "first", null],
  ["first=1.5", "first", null],
  ["first=9&last=3", "first", null],
  ["difference=yes", "difference", false],
  ["scales=3", "scales", {}],
  ["scales={", "scales", {}],
  ['scales={"a":1,"b":"log"}', "scales", { b: "log" }],
  ["compare=a&compare=a", "compare", ["a"]],
]) {
  test(`what means nothing is as usual: ${text}`, () => {
    assert.deepEqual(parse(text)[field], wanted);
  });
}

test("what is usual is not shared by those who change it", () => {
  parse("").compare.push("other");
  parse("").scales.a = "log";
  assert.deepEqual([parse("").compare, parse("").scales], [[], {}]);
});

test("a part of the address can be written on its own", () => {
  assert.equal(written(parse("run=a&sort=worst&tab=runs"), ["run", "tab"]), "run=a&tab=runs");
});
