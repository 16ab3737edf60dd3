import assert from "node:assert/strict";
import test from "node:test";
import {
  bytes,
  compact,
  count,
  duration,
  logTicks,
  number,
  position,
  positionLabels,
  symlogTicks,
  tickLabels,
  ticks,
} from "page/format.js";

/** The number that a label says. */
function said(label) {
  return Number(label.replaceAll("−", "-"));
}

test("numbers have three or four digits, and powers of ten where there are many zeros", () => {
  const cases = [
    [0, "0"],
    [1.23456, "1.235"],
    [-12.3456, "−12.35"],
    [123.456, "123.5"],
    [0.0123456, "0.0123"],
    [0.000123456, "1.23e−4"],
    [123456, "1.23e5"],
    [NaN, "NaN"],
    [Infinity, "+Inf"],
    [-Infinity, "−Inf"],
    [null, "–"],
    [undefined, "–"],
  ];
  for (const [value, text] of cases) assert.equal(number(value), text);
});

test("no two labels of an axis are equal, and each says where it is", () => {
  const axes = [
    ticks(0.00106, 0.00114, 4), // a learning rate that hardly changes
    ticks(0, 0.001, 4),
    ticks(1e-9, 3e-9, 5),
    ticks(99.99, 100.01, 5),
    ticks(1_000_000, 1_000_050, 5),
    ticks(-1, 1, 5),
    ticks(0, 3000, 6),
    logTicks(1e-6, 10, 5),
    logTicks(0.97, 1.03, 4),
    symlogTicks(-100, 100, 6, 0.1),
    [5],
    [],
  ];
  for (const places of axes) {
    const labels = tickLabels(places);
    assert.equal(new Set(labels).size, places.length, labels.join(" "));
    const gaps = places.slice(1).map((place, index) => Math.abs(place - places[index]));
    labels.forEach((label, index) => {
      assert.ok(Math.abs(said(label) - places[index]) <= 0.02 * Math.min(...gaps, Infinity), `${label} ${places}`);
    });
  }
});

test("labels of one axis are written alike and have no more digits than they need", () => {
  assert.deepEqual(tickLabels([0.0008, 0.001, 0.0012]), ["0.0008", "0.001", "0.0012"]);
  assert.deepEqual(tickLabels([0, 0.0005, 0.001]), ["0", "0.0005", "0.001"]);
  assert.deepEqual(tickLabels([0.1, 0.2, 0.30000000000000004]), ["0.1", "0.2", "0.3"]);
  assert.deepEqual(tickLabels([0.00108, 0.0011, 0.00112]), ["0.00108", "0.0011", "0.00112"]);
  assert.deepEqual(tickLabels([1e-5, 2e-5, 3e-5]), ["1e−5", "2e−5", "3e−5"]);
  assert.deepEqual(tickLabels([100000, 100005, 100010]), ["1e5", "1.00005e5", "1.0001e5"]);
  assert.deepEqual(tickLabels([0.01, 0.1, 1, 10, 100]), ["0.01", "0.1", "1", "10", "100"]);
});

test("places of labels are round, inside of the axis, and not too many", () => {
  for (const [low, high, wanted, kind] of [
    [0, 24, 5, "step"],
    [0, 1, 5, "step"],
    [0.2, 7.9, 4, "epoch"],
    [0, 0.4, 4, "time"],
    [0, 86400 * 30, 4, "time"],
    [3, 5000, 6, undefined],
  ]) {
    const places = ticks(low, high, wanted, kind);
    assert.ok(places.length >= 1 && places.length <= wanted + 1, `${places}`);
    assert.ok(places.every((place) => place >= low - 1e-9 && place <= high + 1e-9));
  }
  assert.deepEqual(ticks(0, 24, 5, "step"), [0, 5, 10, 15, 20]);
  assert.deepEqual(ticks(0, 1, 5, "step"), [0, 1]); // no half steps
  assert.deepEqual(ticks(0, 100, 4, "time"), [0, 30, 60, 90]);
  assert.deepEqual(ticks(5, 5, 3), [5]);
});

test("moments are steps, epochs or a clock, and labels of short runs differ", () => {
  assert.equal(position(12345, "step"), "12,345");
  assert.equal(position(1.5, "epoch"), "1.5");
  assert.equal(position(3725, "time"), "1:02:05");
  assert.deepEqual(positionLabels([0, 30, 60, 3600], "time"), ["0:00", "0:30", "1:00", "1:00:00"]);
  assert.deepEqual(positionLabels([0, 0.2, 0.4], "time"), ["0 s", "0.2 s", "0.4 s"]);
  assert.deepEqual(positionLabels([0, 0.6], "time"), ["0 s", "0.6 s"]);
  assert.deepEqual(positionLabels([0, 0.01, 0.1, 1], "time"), ["0 s", "0.01 s", "0.1 s", "1 s"]);
  assert.deepEqual(positionLabels([1, 1.005, 1.01], "epoch"), ["1", "1.005", "1.01"]);
  assert.deepEqual(positionLabels([0, 1000], "step"), ["0", "1,000"]);
});

test("a logarithmic axis of a run shorter than a second has labels, too", () => {
  assert.ok(logTicks(0.01, 0.6, 5, "time").length > 1);
  assert.deepEqual(logTicks(1, 4000, 8, "time").slice(0, 3), [1, 10, 60]);
});

test("what has no logarithm has the labels of an even axis", () => {
  assert.deepEqual(logTicks(0, 1, 5), ticks(0, 1, 5));
  assert.deepEqual(logTicks(-1, 1, 5), ticks(-1, 1, 5));
  assert.deepEqual(logTicks(0, Infinity, 5), [0]);
});

test("lengths of time, sizes and counts are in their largest unit", () => {
  assert.deepEqual([0.25, 42, 250, 100_000, 400_000].map(duration), ["250 ms", "42 s", "4 min", "28 h", "5 d"]);
  assert.deepEqual([12_345, 3_400_000, 5e9].map(bytes), ["12 kB", "3.4 MB", "5 GB"]);
  assert.deepEqual([950, 12_345, 3.4e6, 2e9].map(compact), ["950", "12.3k", "3.4M", "2G"]);
  assert.deepEqual([1234567, null, undefined].map(count), ["1,234,567", "–", "–"]);
});
