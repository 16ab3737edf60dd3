import assert from "node:assert/strict";
import test from "node:test";
import { lastWords, printable, shortNames } from "page/text.js";

const RUN = "baseline_learning_rate_0.001_batch_size_64_hidden_?_seed_0_dropout_0.1_warmup_1000";

for (const [text, safe] of [
  ["model.größe <b> 层 😀", "model.größe <b> 层 😀"],
  ["rtl\u202egnp.exe", "rtl\\u202egnp.exe"],
  ["\u2066isolate\u2069 \u200bzero \u00adsoft \u2028line", "\\u2066isolate\\u2069 \\u200bzero \\xadsoft \\u2028line"],
  ["\x1b[31mred\x00\x9b", "\\x1b[31mred\\x00\\x9b"],
  ["lone \udcff", "lone \\udcff"],
  ["tag \u{e0041}", "tag \\U000e0041"],
  ["two\n\tlines", "two\n\tlines"],
  ["", ""],
]) {
  test(`nothing in a name is obeyed: ${safe}`, () => assert.equal(printable(text), safe));
}

for (const [names, most, shown] of [
  [["encoder.attention.output"], 12, ["enc…n.output"]],
  [["encoder.attention.output", "head"], 12, ["enc…n.output", "head"]],
  [["net.0.fc.weight", "net.1.fc.weight"], 14, ["…0.fc.weight", "…1.fc.weight"]],
  [
    ["attention_projection.weight", "attention_projection.bias", "head"],
    16,
    ["atten…ion.weight", "atten…ction.bias", "head"],
  ],
  [["net.attention_projection.weight", "net.attention_projection.bias"], 16, ["…atte…ion.weight", "…atte…ction.bias"]],
  [["same.name.twice", "same.name.twice"], 10, ["sam….twice", "sam….twice"]],
  [
    ["A", "B"].map((letter) => RUN.replace("?", letter)),
    26,
    ["…A_seed_…t_0.1_warmup_1000", "…B_seed_…t_0.1_warmup_1000"],
  ],
  [["block_1.sub.sub.weight", "block_10.sub.sub.weight"], 12, ["block_1…ight", "block_…ight"]],
  [["x".repeat(30), "x".repeat(31), "x".repeat(32)], 10, null],
  [["😀".repeat(30), `${"😀".repeat(29)}🙂`], 8, null],
  [["abc", "abcdef", "abxdef"], 3, null],
  [["", "a"], 5, ["", "a"]],
  [[], 5, []],
]) {
  test(`names fit, and different ones stay different: ${names.map((name) => name.slice(0, 24))}`, () => {
    const found = shortNames(names, most);
    if (shown) assert.deepEqual(found, shown);
    assert.equal(new Set(found).size, new Set(names).size, found.join(" "));
    for (const name of found) assert.ok([...name].length <= most, name);
    for (const name of found) assert.equal(printable(name), name);
  });
}

test("names of a model of any depth fit and stay different", () => {
  const parts = ["attn.qkv.weight", "attn.qkv.bias", "mlp.fc.weight", "mlp.fc.bias"];
  const names = Array.from({ length: 1000 }, (_, layer) => `transformer.h.${layer >> 2}.${parts[layer % 4]}`);
  for (const most of [12, 16, 23, 30]) {
    const found = shortNames(names, most);
    assert.equal(new Set(found).size, names.length);
    assert.ok(found.every((name) => name.length <= most));
  }
});

test("layer 11 does not look like layer 1", () => {
  for (let most = 8; most < 30; most++) {
    for (const number of ["1", "11", "111"]) {
      const [cut] = shortNames([`transformer.h.${number}.attention.c_proj.weight`], most);
      const numbers = cut.split(/[.…]/).filter((part) => /^\d+$/.test(part));
      assert.ok(!numbers.length || numbers[0] === number, cut);
    }
  }
});

for (const [name, most, shown] of [
  ["Gradient Norm", 13, "Gradient Norm"],
  ["Gradient Norm", 12, "Norm"],
  ["Learning rate (bias and norm)", 29, "Learning rate (bias and norm)"],
  ["Learning rate (bias and norm)", 20, "Learning rate"],
  ["Learning rate (bias and norm)", 8, "rate"],
  ["Loss", 3, ""],
  ["Samples per second", 12, "per second"],
  ["Samples per second", 8, ""],
]) {
  test(`of ${name} the last words are kept that fit into ${most} letters`, () =>
    assert.equal(
      lastWords(name, (text) => text.length <= most),
      shown,
    ));
}
