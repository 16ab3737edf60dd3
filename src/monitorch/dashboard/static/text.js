// Names as text: safe to show, and short enough without becoming the same. They come from strangers.

const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const MARK = "…";
const PARTS = ". ";
const WORDS = "._-/ ";

/**
 * Text that turns nothing around and hides nothing: what is no visible character is written as its code. Lines and
 * tabulators stay, for those of a traceback.
 * @param {string} text
 */
export function printable(text) {
  return text.replace(UNSEEN, (character) => ("\n\t".includes(character) ? character : code(character)));
}

/** @param {string} character */
function code(character) {
  const hex = (character.codePointAt(0) ?? 0).toString(16);
  const [letter, digits] = hex.length < 3 ? ["x", 2] : hex.length < 5 ? ["u", 4] : ["U", 8];
  return `\\${letter}${hex.padStart(digits, "0")}`;
}

/**
 * Names of at most so many letters, cut in the middle; different names stay different. What all long names begin with
 * tells nothing and goes first, and so does what names begin with that differ only where they would be cut.
 * @param {string[]} names
 * @param {number} most
 */
export function shortNames(names, most) {
  const all = [...new Set(names)];
  const isShort = (/** @type {string} */ name) => [...name].length <= most;
  const taken = new Set(all.filter(isShort));
  const long = all.filter((name) => !isShort(name));
  const short = toldApart(new Map(long.map((name) => [name, name])), most, PARTS, taken);
  return names.map((name) => short.get(name) ?? name);
}

/**
 * The name of a quantity, or as many of its last words as fit; what is in brackets at its end goes first. What is
 * counted per second is no second.
 * @param {string} name
 * @param {(text: string) => boolean} fits
 */
export function lastWords(name, fits) {
  const words = (fits(name) ? name : name.replace(/\s*\(.*\)$/, "")).split(" ");
  while (words.length && !fits(words.join(" "))) if (words.shift() === "per") return "";
  return words.join(" ");
}

/**
 * @param {Map<string, string>} texts
 * @param {number} most
 * @param {string} ends
 * @param {Set<string>} taken
 * @returns {Map<string, string>}
 */
function toldApart(texts, most, ends, taken) {
  const parent = commonParent([...texts.values()], ends);
  const isWorthIt = parent.length > MARK.length;
  const rest = new Map([...texts].map(([name, text]) => [name, isWorthIt ? MARK + text.slice(parent.length) : text]));
  const head = bestHead([...rest.values()], most);
  /** @type {Map<string, Map<string, string>>} */
  const alike = new Map();
  for (const [name, text] of rest) {
    const cut = middleCut(text, most, head);
    alike.set(cut, (alike.get(cut) ?? new Map()).set(name, text));
  }
  return new Map(
    [...alike].flatMap(([cut, group]) => {
      if (commonParent([...group.values()], WORDS).length > MARK.length)
        return [...toldApart(group, most, WORDS, taken)];
      return [...group.keys()].map((name) => /** @type {[string, string]} */ ([name, free(cut, most, taken)]));
    }),
  );
}

/**
 * What all names begin with, up to the end of a part; nothing of a single one. Parameters of one module keep its
 * name: without it they could be anybody's.
 * @param {string[]} names
 * @param {string} ends
 */
function commonParent(names, ends) {
  if (names.length < 2) return "";
  const [first] = names;
  let same = 0;
  while (same < first.length && names.every((name) => name[same] === first[same])) same++;
  const toEnd = () => {
    while (same > 0 && !ends.includes(first[same - 1])) same--;
  };
  toEnd();
  const isLast = (/** @type {string} */ name) => ![...name.slice(same)].some((letter) => ends.includes(letter));
  if (ends === PARTS && first[same - 1] === "." && names.every(isLast)) {
    same--;
    toEnd();
  }
  return first.slice(0, same);
}

/**
 * A text that nobody has yet, with a number where somebody has it.
 * @param {string} text
 * @param {number} most
 * @param {Set<string>} taken
 */
function free(text, most, taken) {
  let found = text;
  for (let number = 2; taken.has(found); number++) {
    const ending = `~${number}`;
    found = [...text].slice(0, Math.max(most - ending.length, 0)).join("") + ending;
  }
  taken.add(found);
  return found;
}

/**
 * How many letters of the beginnings to keep, so that the fewest names become the same; about a third if it can be.
 * @param {string[]} texts
 * @param {number} most
 */
function bestHead(texts, most) {
  const room = Math.max(most - MARK.length, 0);
  const third = Math.floor(room / 3);
  const heads = Array.from({ length: room + 1 }, (_, head) => head);
  heads.sort((one, other) => Math.abs(one - third) - Math.abs(other - third));
  let [best, mostTold] = [third, 0];
  for (const head of heads) {
    const told = new Set(texts.map((text) => middleCut(text, most, head))).size;
    if (told > mostTold) [best, mostTold] = [head, told];
    if (told === texts.length) break;
  }
  return best;
}

/**
 * A name with its middle left out: long names often differ at their ends. Of a number that is cut nothing is left, or
 * layer 11 would look like layer 1.
 * @param {string} text
 * @param {number} most
 * @param {number} kept
 */
function middleCut(text, most, kept) {
  const letters = [...text];
  if (letters.length <= most) return text;
  let [head, tail] = [kept, letters.length - Math.max(most - MARK.length - kept, 0)];
  if (isDigit(letters[head])) while (isDigit(letters[head - 1])) head--;
  if (isDigit(letters[tail - 1])) while (isDigit(letters[tail])) tail++;
  return [...letters.slice(0, head), MARK, ...letters.slice(tail)].join("");
}

/** @param {string | undefined} letter */
function isDigit(letter) {
  return letter !== undefined && letter >= "0" && letter <= "9";
}
