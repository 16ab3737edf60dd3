// Statistics as the server tells of them.

const USUAL = {
  scale: "linear",
  limits: null,
  curve: "",
  role: "line",
  band: "",
  side: "",
  error: null,
  error_text: "",
};

/** A line of a tag; the mean needs no label of its own. */
export function line(tag, line, fields = {}) {
  const curve = fields.curve ?? "";
  const own = [curve, line].filter(Boolean).join(" ");
  const label = line === "mean" ? curve : own;
  return { ...USUAL, name: `${tag}/${own}`, tag, line, label, ...fields };
}

/** The two edges of a band. */
export function band(tag, name, [low, high], fields = {}) {
  const edge = (text, side) => line(tag, text, { ...fields, role: "edge", band: name, side });
  return [edge(low, "low"), edge(high, "high")];
}

export const count = (tag, fields = {}) => line(tag, "nonfinite", { ...fields, role: "count" });
