// A program, call by call; only the rows in sight are elements.
import { bytes, duration, framed, make, named } from "./common.js";

const ROW = 24, AROUND = 8, COLUMNS = ["#", "node", "box", "kernel", "expected", "offset, B", "scratch"], COLUMN_GAP = 7;
const LEAST = { 1: 96, 2: 84, 3: 84 }; // pixels of names, which are cut where there is no room; numbers are not

export function programPanel(scene, place) {
  let data = { node: [] }, shown = [], most = 1, fontNow = ""; // for which columns have their widths
  const head = make("span", { class: "tg-soft tg-line", role: "status" }), body = make("div", { class: "tg-rows" });
  const names = make("div", { class: "tg-row tg-soft", role: "presentation" }, ...COLUMNS.map((name) => make("span", {}, name)));
  const scroll = make("div", { class: "tg-program tg-calls", tabindex: 0, role: "listbox", "aria-label": "calls of the program" }, names, body);
  place.append(make("div", { class: "tg-bar" }, head), scroll);

  function load() {
    data = scene.data.program ?? { node: [] };
    most = (data.expected ?? []).reduce((a, b) => Math.max(a, b), 1);
    fontNow = "";
    fit();
    filter();
  }

  const cells = (i) => [String(i), data.node[i], data.box[i], data.kernel[i], duration(data.expected[i]), data.offset[i] < 0 ? "-" : String(data.offset[i]), data.scratch[i] ? bytes(data.scratch[i]) : "-"];

  // Each column is as wide as what stands in it; names of nodes have the rest, or the end of them.
  function fit() {
    const pen = make("canvas").getContext("2d"), { fontSize, fontFamily } = getComputedStyle(scene.root), texts = COLUMNS.map((name) => new Set([name]));
    if (fontNow === `${fontSize} ${fontFamily}`) return;
    pen.font = fontNow = `${fontSize} ${fontFamily}`;
    for (const i of data.node.keys()) cells(i).forEach((text, k) => texts[k].add(text));
    const wide = texts.map((all) => Math.ceil([...all].reduce((wide, text) => Math.max(wide, pen.measureText(text).width), 0)) + 5);
    const least = wide.map((px, k) => Math.min(px, LEAST[k] ?? px));
    scroll.style.setProperty("--tg-columns", wide.map((px, k) => `minmax(${least[k]}px,${k === 1 ? "1fr" : `${px}px`})`).join(" "));
    scroll.style.setProperty("--tg-least", `${least.reduce((a, b) => a + b) + COLUMN_GAP * (wide.length - 1) + 2}px`);
  }

  function filter() {
    const all = [...data.node.keys()];
    shown = scene.wanted ? all.filter((i) => scene.isWanted(`${data.node[i]} ${data.kernel[i]} ${data.op[i]}`)) : all;
    head.textContent = data.node.length ? `${shown.length} of ${data.node.length} calls; ${data.facts.label}` : "No program: nothing ran yet.";
    body.style.height = `${shown.length * ROW}px`;
    paint();
  }

  function paint() {
    const first = Math.max(Math.floor(scroll.scrollTop / ROW) - AROUND, 0);
    const last = Math.min(Math.ceil((scroll.scrollTop + (scroll.clientHeight || 300)) / ROW) + AROUND, shown.length);
    const marked = new Set(scene.nodes);
    body.replaceChildren(...shown.slice(first, last).map((i, k) => row(i, first + k, marked.has(data.node[i]))));
  }

  function row(i, place, isMarked) {
    const [number, node, box, kernel, expected, offset, scratch] = cells(i), bar = `linear-gradient(90deg,color-mix(in srgb,var(--tg-slice) 45%,transparent) ${(100 * data.expected[i]) / most}%,transparent 0)`;
    return make("div", { class: "tg-row", role: "option", "aria-selected": String(isMarked), style: `top:${place * ROW}px`, onclick: () => scene.choose([data.node[i]]) },
      make("span", {}, number), named(node, { title: `${node}: ${data.op[i]}` }), make("span", { title: box }, box), make("span", { title: kernel }, kernel),
      make("span", { style: `background:${bar}` }, expected), make("span", {}, offset), make("span", {}, scratch));
  }

  function seek() {
    const place = shown.findIndex((i) => scene.nodes.includes(data.node[i]));
    const top = place * ROW;
    if (place >= 0 && (top < scroll.scrollTop || top > scroll.scrollTop + scroll.clientHeight - 2 * ROW)) scroll.scrollTop = top - scroll.clientHeight / 2;
    paint();
  }

  scroll.addEventListener("scroll", framed(paint));
  scroll.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !shown.length) return;
    event.preventDefault();
    const place = shown.findIndex((i) => scene.nodes.includes(data.node[i]));
    scene.choose([data.node[shown[Math.min(Math.max(place + step, 0), shown.length - 1)]]]);
  });
  scene.on("program", load);
  scene.on("wanted", filter);
  scene.on("chosen", seek);
  const sized = new ResizeObserver(() => { fit(); seek(); }); // a tab that is opened shows the chosen call
  sized.observe(scroll);
  scene.dispose.push(() => sized.disconnect());
  load();
}
