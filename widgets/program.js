// A program, call by call; only the rows in sight are elements.
import { bytes, duration, framed, make, named } from "./common.js";

const ROW = 24, AROUND = 8;

export function programPanel(scene, place) {
  let data = { node: [] }, shown = [], most = 1;
  const head = make("span", { class: "tg-soft tg-line", role: "status" }), body = make("div", { class: "tg-rows" });
  const scroll = make("div", { class: "tg-program", tabindex: 0, role: "listbox", "aria-label": "calls of the program" }, body);
  place.append(make("div", { class: "tg-bar" }, head),
    make("div", { class: "tg-row tg-soft" }, ...["#", "node", "box", "kernel", "expected", "offset, B", "scratch"].map((name) => make("span", {}, name))), scroll);

  function load() {
    data = scene.data.program ?? { node: [] };
    most = (data.expected ?? []).reduce((a, b) => Math.max(a, b), 1);
    filter();
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
    const bar = `linear-gradient(90deg,color-mix(in srgb,var(--tg-slice) 45%,transparent) ${(100 * data.expected[i]) / most}%,transparent 0)`;
    return make("div", { class: "tg-row", role: "option", "aria-selected": String(isMarked), style: `top:${place * ROW}px`, onclick: () => scene.choose([data.node[i]]) },
      make("span", {}, String(i)), named(data.node[i], { title: `${data.node[i]}: ${data.op[i]}` }), make("span", {}, data.box[i]), make("span", {}, data.kernel[i]),
      make("span", { style: `background:${bar}` }, duration(data.expected[i])), make("span", {}, data.offset[i] < 0 ? "-" : String(data.offset[i])),
      make("span", {}, data.scratch[i] ? bytes(data.scratch[i]) : "-"));
  }

  function seek() {
    const place = shown.findIndex((i) => scene.nodes.includes(data.node[i]));
    const top = place * ROW;
    if (place >= 0 && (top < scroll.scrollTop || top > scroll.scrollTop + scroll.clientHeight - ROW)) scroll.scrollTop = top - scroll.clientHeight / 2;
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
  const sized = new ResizeObserver(seek); // a tab that is opened shows the chosen call
  sized.observe(scroll);
  scene.dispose.push(() => sized.disconnect());
  load();
}
