// What all panels share: buffers, elements, theme, questions to Python, words, the camera.

// Columns of a buffer; see tgbench/views/draw/columns.py. Text columns become arrays of strings.
export function columns(view) {
  const found = {};
  if (!view || view.byteLength < 4) return found;
  const start = view.byteOffset ?? 0, whole = view.buffer ?? view;
  const buffer = whole.slice(start, start + view.byteLength); // so that typed arrays are aligned
  const length = new DataView(buffer).getUint32(0, true), first = 4 + length;
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const types = { uint8: Uint8Array, int32: Int32Array, float32: Float32Array, float64: Float64Array };
  for (const [name, [type, at, count]] of Object.entries(header)) {
    if (types[type]) found[name] = new types[type](buffer, first + at, count);
    else found[name] = type === "text:0" ? [] : new TextDecoder().decode(new Uint8Array(buffer, first + at, count)).split("\0");
  }
  return found;
}

// A panel's buffer: its columns, and small values as `facts`; null where there is nothing to show.
export function decoded(view) {
  const found = columns(view);
  return found.facts ? { ...found, facts: JSON.parse(found.facts[0]) } : null;
}

// A number of things, as Python counts them: "1 node", "12,000 nodes".
export function counted(count, what) { return `${count.toLocaleString("en-US")} ${what}${count === 1 ? "" : "s"}`; }

// Steps in words, the last one included: "step 4", "steps 4 to 7".
export function stepsOf(first, last) { return first === last ? `step ${last}` : `steps ${first} to ${last}`; }

// An element. Children that are text stay text: nothing is ever read as markup.
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

// Keys pressed here are not the notebook's: there x cuts the cell. JupyterLab's shortcuts match the
// focused element itself, so that a mark around it comes too late: whatever takes the focus in the
// same output, tabs and sliders of ipywidgets too, is marked when it does.
export function keepKeys(root, dispose) {
  const mark = ({ target }) => {
    const output = root.closest(".jp-OutputArea-output") ?? root;
    if (output.contains(target)) target.setAttribute("data-lm-suppress-shortcuts", "true");
  };
  document.addEventListener("focusin", mark);
  dispose.push(() => document.removeEventListener("focusin", mark));
}

export function alternative(caption, table) {
  const row = (tag, cells) => make("tr", {}, ...cells.map((cell) => make(tag, {}, String(cell))));
  return make("table", {}, make("caption", {}, caption ?? ""),
    row("th", table?.header ?? []), ...(table?.rows ?? []).map((cells) => row("td", cells)));
}

// Other children in an element. The control that had the focus gives it to the one in its place, so
// that the next key goes there too.
export function refill(place, ...children) {
  const controls = () => [...place.querySelectorAll("button,select,input")];
  const at = controls().indexOf(document.activeElement);
  place.replaceChildren(...children);
  if (at >= 0) (controls()[at] ?? controls().at(-1))?.focus({ preventScroll: true });
}

// Listen until the view is disposed of. `dispose` is an array of functions.
export function listen(model, events, heard, dispose) {
  for (const event of events.split(" ")) {
    model.on(event, heard);
    dispose.push(() => model.off(event, heard));
  }
}

// Ask Python; resolves to its answer, rejects with its message, or when nobody answers.
let asked = 0;
export function ask(model, what, request = {}, patience = 60000) {
  const number = ++asked;
  return new Promise((resolve, reject) => {
    const done = () => { clearTimeout(timer); model.off("msg:custom", heard); };
    const heard = (message) => {
      if (message.reply !== number) return;
      done();
      if (message.error !== undefined) reject(new Error(message.error)); else resolve(message.answer);
    };
    const timer = setTimeout(() => { done(); reject(new Error("no answer from the kernel")); }, patience);
    model.on("msg:custom", heard);
    model.send({ ask: number, what, with: request });
  });
}

// Colours of the theme at hand; `changed` is called when the theme is another one. Colours are read
// afresh each time: JupyterLab loads a theme's style sheet some time after it has named the theme.
// Whether it is dark the page tells: the view is drawn before it stands in it, and has no paper then.
export function theme(root, changed, dispose) {
  const system = matchMedia("(prefers-color-scheme: dark)"), style = getComputedStyle(root);
  const value = (name) => style.getPropertyValue(`--tg-${name}`).trim() || "#888";
  const look = () => {
    const paper = getComputedStyle(document.body).getPropertyValue("--jp-layout-color0").trim(), behind = paper || background();
    root.classList.toggle("tg-plain", !paper);
    root.classList.toggle("tg-dark", behind ? light(rgb(behind)) < 0.4 : system.matches);
  };
  let waits = [];
  const again = () => { look(); changed(); };
  const soon = () => { // at once, and when a style sheet without an event has come
    waits.forEach(clearTimeout);
    waits = [0, 100, 400, 1500].map((after) => setTimeout(again, after));
  };
  const watch = new MutationObserver(soon);
  watch.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name"] });
  system.addEventListener("change", again);
  document.head.addEventListener("load", again, true); // of style sheets
  dispose.push(() => {
    watch.disconnect();
    waits.forEach(clearTimeout);
    system.removeEventListener("change", again);
    document.head.removeEventListener("load", again, true);
  });
  look();
  return {
    look,
    get isDark() { return root.classList.contains("tg-dark"); },
    colour: value,
    rgb: (name) => rgb(value(name)),
  };
}

// The colour of the page itself; "" where it has none.
function background() {
  const colours = [document.body, document.documentElement].map((one) => getComputedStyle(one).backgroundColor);
  return colours.find((colour) => !/, 0\)$|^transparent$/.test(colour)) ?? "";
}

// [red, green, blue] of any CSS colour.
const pens = new Map();
export function rgb(text) {
  const name = text.trim() || "#888";
  if (!pens.has(name)) {
    const canvas = make("canvas", { width: 1, height: 1 }), pen = canvas.getContext("2d", { willReadFrequently: true });
    pen.fillStyle = name;
    pen.fillRect(0, 0, 1, 1);
    pens.set(name, [...pen.getImageData(0, 0, 1, 1).data.slice(0, 3)]);
  }
  return pens.get(name);
}

export function light([r, g, b]) { return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255; }

// So many digits, as Python rounds: halfway between two numbers it takes the even one, toPrecision
// the larger. A number that is halfway has few digits, so that 60 of them are all.
export function rounded(value, most) {
  const up = value.toPrecision(most), all = value.toPrecision(60).replace(/^-|e.*$|\./g, "").replace(/^0+/, "");
  const isHalf = /^50*$/.test(all.slice(most)), isOdd = Number(all[most - 1]) % 2;
  return Number(isHalf && !isOdd ? (value * (1 - 1e-9)).toPrecision(most) : up);
}

// Sizes and times, as tgbench/base/words.py writes them.
export function bytes(count) {
  for (const [unit, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (Math.abs(count) >= unit) return `${rounded(count / unit, 4)} ${name}`;
  }
  return `${Math.round(count)} B`;
}

export function duration(ns) {
  const near = rounded(ns, 4);
  for (const [unit, name] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (Math.abs(near) >= unit) return `${rounded(near / unit, 4)} ${name}`;
  }
  return `${rounded(ns, 3)} ns`;
}

// The same with all of its four digits, so that numbers in a column stand below each other.
export function aligned(words) {
  const [number, unit] = words.split(" "), isWhole = unit === "B" || unit === "ns" || Math.abs(number) >= 1000;
  return isWhole ? words : `${Number(number).toPrecision(4)} ${unit}`;
}

// A shape of SVG, with attributes and what is inside it.
const DRAWING = "http://www.w3.org/2000/svg";
export function shape(tag, attributes, ...inside) {
  const made = document.createElementNS(DRAWING, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value != null) made.setAttribute(name, value);
  }
  made.append(...inside.filter((one) => one != null));
  return made;
}

// What is done on Enter and space as on a click, for what is no button by itself.
export function pressed(call) {
  return { onclick: call, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); call(event); } } };
}

// What fits of a name: its last parts whole, without the scopes before them, where they do; else the
// head of the last one, or its end where that is a number. Of other text, its head.
export function shortened(pen, text, room, isHead = false) {
  if (pen.measureText(text).width <= room) return text;
  const parts = isHead ? [text] : text.split("."), fits = parts.findIndex((_, i) => pen.measureText(parts.slice(i).join(".")).width <= room);
  if (fits >= 0) return parts.slice(fits).join(".");
  const last = parts.at(-1), isEnd = !isHead && /\d$/.test(last);
  const cut = (length) => (isEnd ? `…${last.slice(last.length - length)}` : `${last.slice(0, length)}…`);
  let length = Math.max(Math.floor((room / pen.measureText(last).width) * last.length) - 1, 1);
  while (length > 1 && pen.measureText(cut(length)).width > room) length--;
  return cut(length);
}

// How numbered names begin, if all alike: "layer_" of "layer_0", "layer_12".
export function shared(names) {
  const heads = new Set(names.map((name) => name.replace(/\d+$/, "")));
  return heads.size === 1 ? [...heads][0] : "";
}

// Words whose names go on in another line behind a dot, and not amid one of their parts.
export function breakable(words) {
  return make("span", {}, ...words.split(/(?<=[A-Za-z_]\.)(?=\w)|(?<=\.\d+\.)(?=[A-Za-z_])/).flatMap((part, i) => (i ? [make("wbr"), part] : [part])));
}

// A name in a list, whose head is left out where it does not fit.
export function named(name, attributes = {}) {
  return make("span", { class: "tg-name", ...attributes }, make("bdi", {}, name));
}

// About `wanted` round numbers in [from, to]; powers of two if `binary`.
export function ticks(from, to, wanted, binary = false) {
  const rough = Math.max((to - from) / wanted, 1e-9), found = [];
  const power = 10 ** Math.floor(Math.log10(rough));
  const apart = binary ? 2 ** Math.max(Math.ceil(Math.log2(rough)), 0)
    : Math.max([1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough), 1);
  for (let at = Math.ceil(from / apart) * apart; at <= to; at += apart) found.push(at);
  return found;
}

// A window on a plane: pixels ↔ values on both axes, moved by wheel, drag and keys.
// Values grow to the right and upwards, or downwards if `down`.
export class Camera {
  constructor(every, least, down = false) {
    this.every = { ...every };
    this.least = least; // smallest width and height, in values
    this.down = down;
    this.view = { ...every };
    this.box = { left: 0, top: 0, width: 1, height: 1 };
  }
  x(value) { return this.box.left + ((value - this.view.x0) / (this.view.x1 - this.view.x0)) * this.box.width; }
  y(value) {
    const share = (value - this.view.y0) / (this.view.y1 - this.view.y0);
    return this.box.top + (this.down ? share : 1 - share) * this.box.height;
  }
  atX(px) { return this.view.x0 + ((px - this.box.left) / this.box.width) * (this.view.x1 - this.view.x0); }
  atY(py) {
    const share = (py - this.box.top) / this.box.height;
    return this.view.y0 + (this.down ? share : 1 - share) * (this.view.y1 - this.view.y0);
  }
  show(next) {
    const { every, least } = this;
    const width = Math.min(Math.max(next.x1 - next.x0, least.width), every.x1 - every.x0);
    const height = Math.min(Math.max(next.y1 - next.y0, least.height), every.y1 - every.y0);
    const x0 = Math.min(Math.max(next.x0, every.x0), every.x1 - width);
    const y0 = Math.min(Math.max(next.y0, every.y0), every.y1 - height);
    this.view = { x0, x1: x0 + width, y0, y1: y0 + height };
  }
  all() { this.show(this.every); }
  pan(dx, dy, from = this.view) { // pixels
    const wide = ((from.x1 - from.x0) / this.box.width) * dx;
    const high = ((from.y1 - from.y0) / this.box.height) * dy * (this.down ? -1 : 1);
    this.show({ x0: from.x0 - wide, x1: from.x1 - wide, y0: from.y0 + high, y1: from.y1 + high });
  }
  zoom(factor, px = this.box.left + this.box.width / 2, py = this.box.top + this.box.height / 2) {
    const x = this.atX(px), y = this.atY(py), v = this.view;
    this.show({
      x0: x - (x - v.x0) * factor, x1: x + (v.x1 - x) * factor,
      y0: y - (y - v.y0) * factor, y1: y + (v.y1 - y) * factor,
    });
  }
  // Wheel with ctrl zooms (shift: pans) and scrolls the page without, drag on nothing pans. `grab(event)` may take a drag for itself by
  // returning {move(event), drop(event)}. Returns a function that takes the listeners off.
  attach(canvas, changed, grab = () => null) {
    let drag = null, held = null;
    const down = (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      held = grab(event);
      drag = held ? null : { x: event.offsetX, y: event.offsetY, view: { ...this.view } };
    };
    const move = (event) => {
      if (held) held.move(event);
      else if (drag) { this.pan(event.offsetX - drag.x, event.offsetY - drag.y, drag.view); changed("pan"); }
    };
    const up = (event) => {
      if (held) held.drop(event);
      else if (drag) changed("rest");
      held = drag = null;
    };
    const wheel = (event) => {
      if (!event.shiftKey && !event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      if (event.shiftKey) this.pan(-event.deltaX - event.deltaY, 0);
      else this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * 0.0015))), event.offsetX, event.offsetY);
      changed("zoom");
    };
    const heard = [["pointerdown", down], ["pointermove", move], ["pointerup", up], ["pointercancel", up]];
    for (const [name, call] of heard) canvas.addEventListener(name, call);
    canvas.addEventListener("wheel", wheel, { passive: false });
    return () => {
      for (const [name, call] of heard) canvas.removeEventListener(name, call);
      canvas.removeEventListener("wheel", wheel);
    };
  }
  // Plus, minus, 0 and shifted arrows move the window; returns whether the key was one of these.
  key(event) {
    const fast = 60;
    const moves = {
      "+": () => this.zoom(0.8), "=": () => this.zoom(0.8), "-": () => this.zoom(1.25), 0: () => this.all(),
    };
    const shifted = {
      ArrowLeft: () => this.pan(fast, 0), ArrowRight: () => this.pan(-fast, 0),
      ArrowUp: () => this.pan(0, fast), ArrowDown: () => this.pan(0, -fast),
    };
    const found = event.shiftKey && shifted[event.key] ? shifted[event.key] : moves[event.key];
    if (!found || event.ctrlKey || event.metaKey || event.altKey) return false;
    event.preventDefault();
    found();
    return true;
  }
}

// A canvas as large as its element, in device pixels; `draw` is called after a resize. While the
// element is hidden it has no size: then the width returned is 0 and the picture stays as it was.
export function fitted(canvas, draw, dispose) {
  const watch = new ResizeObserver(() => { if (canvas.clientWidth) draw(); });
  watch.observe(canvas);
  dispose.push(() => watch.disconnect());
  return (pen = canvas.getContext("2d")) => {
    const scale = globalThis.devicePixelRatio || 1;
    const width = Math.round(canvas.clientWidth * scale), height = Math.round(canvas.clientHeight * scale);
    if (width && height && (canvas.width !== width || canvas.height !== height)) { canvas.width = width; canvas.height = height; }
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    return { pen, scale, width: canvas.clientWidth, height: canvas.clientHeight };
  };
}

// One call a frame, however often it is asked for.
export function framed(draw) {
  let waits = 0;
  return () => { if (!waits) waits = requestAnimationFrame(() => { waits = 0; draw(); }); };
}

// Put text on the clipboard, and say how much; where a page may not, say the text.
export async function copied(text, say) {
  try { await navigator.clipboard.writeText(text); say(`copied ${counted(text.trimEnd().split("\n").length, "line")}`); }
  catch { say(text); }
}

// Why the time of a plan that no search weighed lies elsewhere than theirs.
export const UNSEARCHED = "no search weighed it: its time is the mean of the classes it was made for; searches replay the runs that happened, and weigh it by those";
