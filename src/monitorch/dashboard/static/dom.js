// Elements. Text is never parsed as HTML, and control characters in it are shown: names of layers and runs are not
// trusted.

import { printable } from "page/text.js";

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  pin: "M8 1.5l1.9 4 4.4.6-3.2 3.1.8 4.4L8 11.5l-3.9 2.1.8-4.4L1.7 6.1l4.4-.6z",
  link: "M6.5 9.5l3-3M7 4.5l1.6-1.6a2.5 2.5 0 013.5 3.5L10.5 8M9 11.5l-1.6 1.6a2.5 2.5 0 01-3.5-3.5L5.5 8",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  down: "M8 2.5v7.5M4.8 7l3.2 3.2L11.2 7M3 13.5h10",
  close: "M4 4l8 8M12 4l-8 8",
  help: "M5.8 6a2.2 2.2 0 114 1.3c-.8.7-1.8 1-1.8 2.2M8 12v.6",
  light: "M8 5a3 3 0 100 6 3 3 0 000-6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1",
  dark: "M13 9.6A5.6 5.6 0 016.4 3 5.6 5.6 0 1013 9.6z",
  system: "M2 3h12v8H2zM6 14h4M8 11v3",
};

/** @typedef {keyof typeof ICONS} IconName */

/**
 * Properties of an element: `text` is its text, `on…` its listeners, the rest are attributes.
 * @typedef {Record<string, string | boolean | null | undefined | ((event: any) => void)>} Properties
 */

/** @typedef {Node | string | null | undefined} Child */

/** Attributes that people read. */
const READ = ["title", "aria-label", "label"];

/**
 * Make an element.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Properties} properties
 * @param {...Child} children
 */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (name === "text") write(node, String(value));
    else if (READ.includes(name)) node.setAttribute(name, printable(String(value)));
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) {
    if (child !== null && child !== undefined) node.append(typeof child === "string" ? printable(child) : child);
  }
  return node;
}

/**
 * Give an element its text, and what is told of it under the mouse.
 * @param {HTMLElement} node
 * @param {string} text
 * @param {string} [title]
 */
export function write(node, text, title) {
  const safe = printable(text);
  if (node.textContent !== safe) node.textContent = safe;
  if (title !== undefined) node.title = printable(title);
}

/**
 * Say of what is typed whether it can be understood; the message says what is wrong with it.
 * @param {HTMLInputElement} input
 * @param {boolean} isValid
 * @param {HTMLElement} message
 */
export function markValid(input, isValid, message) {
  input.setAttribute("aria-invalid", String(!isValid));
  if (isValid) input.removeAttribute("aria-describedby");
  else input.setAttribute("aria-describedby", message.id);
}

/** @param {IconName} name */
export function icon(name) {
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", "0 0 16 16");
  drawing.setAttribute("class", "icon");
  drawing.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  drawing.append(path);
  return drawing;
}

/**
 * A button with an icon; its name is for screen readers and the tooltip.
 * @param {IconName} name
 * @param {string} label
 * @param {(event: any) => void} onclick
 */
export function iconButton(name, label, onclick) {
  const properties = { type: "button", class: "icon-button", title: label, "aria-label": label, onclick };
  return element("button", properties, icon(name));
}

/** A few choices side by side. */
export class Choice {
  /**
   * @param {string} label
   * @param {Record<string, string>} options
   * @param {(value: any) => void} onchoose
   */
  constructor(label, options, onchoose) {
    this.buttons = Object.entries(options).map(([value, text]) =>
      element("button", { type: "button", role: "radio", "data-value": value, text, onclick: () => onchoose(value) }),
    );
    this.root = element("div", { class: "choice", role: "radiogroup", "aria-label": label }, ...this.buttons);
  }

  /**
   * @param {string} value
   * @param {string} text
   */
  rename(value, text) {
    for (const button of this.buttons) if (button.dataset.value === value) write(button, text);
  }

  /** @param {string} value */
  show(value) {
    for (const button of this.buttons) button.setAttribute("aria-checked", String(button.dataset.value === value));
  }
}

/**
 * Buttons to save a panel as a picture or as numbers; calls back with the kind.
 * @param {string} what
 * @param {(kind: "PNG" | "CSV") => void} onsave
 */
export function saveButtons(what, onsave) {
  const button = (/** @type {"PNG" | "CSV"} */ kind, /** @type {string} */ as) =>
    element("button", {
      type: "button",
      class: "mini",
      text: kind,
      title: `Save ${what} as ${as}`,
      onclick: () => onsave(kind),
    });
  const buttons = [button("PNG", "a picture"), button("CSV", "numbers")];
  return element("div", { class: "save", role: "group", "aria-label": `Save ${what}` }, icon("down"), ...buttons);
}

/**
 * The options of a select, in groups; keeps its nodes while nothing changes.
 * @param {HTMLSelectElement} select
 * @param {[group: string, options: [value: string, text: string][]][]} groups
 * @param {string} chosen
 */
export function fillSelect(select, groups, chosen) {
  const wanted = JSON.stringify(groups);
  if (select.dataset.options !== wanted) {
    select.dataset.options = wanted;
    select.replaceChildren(
      ...groups.flatMap(([label, options]) => {
        const nodes = options.map(([value, text]) => element("option", { value, text }));
        return label ? [element("optgroup", { label }, ...nodes)] : nodes;
      }),
    );
  }
  if (document.activeElement !== select || select.value !== chosen) select.value = chosen;
}

/**
 * A dot in the colour of a run or curve.
 * @param {string} colour
 * @param {string} [title]
 */
export function dot(colour, title) {
  const node = element("span", { class: "dot", title });
  node.style.background = colour;
  return node;
}

/**
 * Text that may break after separators, but not inside a word.
 * @param {string} text
 */
export function breakable(text) {
  const pieces = text.split(/(?<=[./_,:-])(?=[^\s./_,:-])/);
  return element("bdi", {}, ...pieces.flatMap((part) => [part, element("wbr")]));
}

/**
 * Give a parent these children, in this order, moving as few as possible, so that the focus is kept.
 * @param {Element} parent
 * @param {Element[]} children
 */
export function arrange(parent, children) {
  const focused = document.activeElement;
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  children.forEach((child, place) => {
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
  });
  if (focused !== document.activeElement && focused instanceof HTMLElement && parent.contains(focused))
    focused.focus({ preventScroll: true });
}

/**
 * Give a parent new children. What has the focus passes it on to its successor, or somebody who goes through the page
 * with the keyboard would be thrown back to its beginning with every number that arrives. A successor has the same
 * `data-key`, or else the same label or text.
 * @param {Element} parent
 * @param {(Node | string)[]} children
 */
export function renew(parent, children) {
  const focused = document.activeElement;
  const others = focused && parent.contains(focused) ? alike(parent, focused) : [];
  const place = focused ? others.indexOf(focused) : -1;
  parent.replaceChildren(...children);
  if (!focused || place < 0) return;
  const heirs = alike(parent, focused);
  const heir = heirs[Math.min(place, heirs.length - 1)];
  if (heir instanceof HTMLElement) heir.focus({ preventScroll: true });
}

/**
 * What is the same control as another.
 * @param {Element} parent
 * @param {Element} node
 */
function alike(parent, node) {
  const key = (/** @type {Element} */ one) =>
    one.getAttribute("data-key") ?? one.getAttribute("aria-label") ?? one.textContent;
  return [...parent.querySelectorAll(node.tagName)].filter((one) => key(one) === key(node));
}

/**
 * Download a file.
 * @param {string} name
 * @param {Blob | null} blob
 */
export function download(name, blob) {
  if (!blob) return;
  const link = element("a", { href: URL.createObjectURL(blob), download: name.replace(/[^\w.-]+/g, "_") });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** @param {string} name */
export function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/**
 * A canvas to draw on.
 * @param {HTMLCanvasElement} canvas
 */
export function contextOf(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}
