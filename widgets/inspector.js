// The inspector: why the chosen node is kept, what becomes of it, its elements, its kernels; without one, the last run.
import { breakable, bytes, fitted, framed, make, named, refill } from "./common.js";
import { FATE_LOOKS, liveAt, nodeOfRow, peakOf, stepNow } from "./memory.js";

const MOST_LIVE = 60, ELEMENTS_HIGH = 118, NOT_THERE = "not there";
const ELEMENT_ORDER = ["valid", "reused", "stale", "computed", "dirty", "needed"];
const ELEMENT_LOOKS = {
  valid: { fill: "good", alpha: 0.28 }, reused: { fill: "good", alpha: 0.55 }, stale: { fill: "scratch", alpha: 0.5 }, computed: { fill: "bad", alpha: 1 },
  dirty: { line: "slice", dash: [5, 3] }, needed: { line: "input", dash: [] }, known: { fill: "soft", alpha: 0.35 },
};

export function inspectorPanel(scene, place) {
  const inside = make("div", { class: "tg-inspector tg-scroll" });
  place.append(inside);
  const canvas = make("canvas", { role: "img", style: `height:${ELEMENTS_HIGH}px` }), pointed = make("p", { class: "tg-soft tg-line" });
  const fit = fitted(canvas, () => draw(), scene.dispose), draw = framed(paint), hidden = new Set();
  let data = null, plane = null;

  const section = (title, ...children) => make("section", {}, make("h4", {}, title), ...children);
  const button = (name, title, what) => scene.asking(name, title, () => scene.act(what, { node: data.facts.node }));

  function load() {
    data = scene.data.inspector;
    place.hidden = !data && !scene.data.memory;
    if (!data) { refill(inside, live()); return; }
    if (data.facts.node) node(); else refill(inside, overview(), live());
    draw();
  }

  function overview() {
    const rows = data.facts.overview.map(([what, words, name]) => make("tr", {}, make("th", { scope: "row" }, what),
      make("td", {}, name ? make("button", { type: "button", class: "tg-link", onclick: () => scene.choose([name]) }, breakable(words)) : breakable(words))));
    return section("The last run, and the plan", make("table", { class: "tg-facts" }, ...rows));
  }

  // What is live at the step at hand, largest first.
  function live() {
    const memory = scene.data.memory;
    if (!memory?.name.length) return make("p", { class: "tg-soft" }, "Choose a node.");
    const step = stepNow(scene), rows = liveAt(memory, step), isPeak = memory.live[step] === memory.live[peakOf(memory)];
    const items = rows.slice(0, MOST_LIVE).map((i) => make("li", {}, make("button", { type: "button", title: memory.detail[i], onclick: () => scene.choose([nodeOfRow(memory, i)]) },
      named(memory.name[i]), make("span", {}, bytes(memory.size[i])))));
    return section(`${bytes(memory.live[step])} in use at step ${step}${isPeak ? ", the peak" : ""}`,
      make("p", { class: "tg-soft" }, breakable(`${memory.schedule[step] ?? "the end"}; ${rows.length.toLocaleString("en-US")} live, largest first`)), make("ol", { class: "tg-list" }, ...items),
      ...(rows.length > MOST_LIVE ? [make("p", { class: "tg-soft" }, `and ${(rows.length - MOST_LIVE).toLocaleString("en-US")} smaller`)] : []));
  }

  function node() {
    const { facts } = data, canChange = scene.data.header?.facts.can_change;
    const fates = facts.fates.map(([kind, words, fate]) => make("li", {}, make("button", { type: "button", title: kind, "aria-pressed": String(kind === facts.bucket), onclick: () => scene.during(kind) },
      make("i", { class: "tg-dot", style: `background:var(--tg-${(FATE_LOOKS[fate.split(",")[0]] ?? ["soft"])[0]})` }), make("span", {}, words), make("span", {}, fate))));
    const kernels = facts.kernels.map(([name, time, source]) => make("tr", {}, make("td", {}, named(name)), make("td", { class: "tg-right-side" }, time), make("td", { class: "tg-soft" }, source)));
    refill(inside, make("section", {}, make("h4", { class: "tg-node" }, named(facts.node), make("button", { type: "button", title: "choose nothing", onclick: () => scene.choose([]) }, "×")),
      make("p", { class: "tg-soft" }, facts.type + (facts.count > 1 ? `; ${facts.count.toLocaleString("en-US")} chosen` : "")),
      ...(facts.source ? [make("p", { class: "tg-source", title: "where in your code it comes from" }, facts.source)] : []),
      ...(canChange ? [make("div", { class: "tg-bar" }, button("retain", "keep it through every run (p)", "pin"), button("drop", "do not keep it between runs (d)", "drop"))] : [])),
      section("Why", ...facts.why.map((line, i) => make("p", i ? { class: "tg-soft" } : {}, breakable(line)))),
      ...(fates.length ? [section("What runs do to it", make("ol", { class: "tg-list tg-fates" }, ...fates))] : []),
      ...(data.shape ? [section(`Its elements${facts.of}`, make("p", { class: "tg-soft tg-line", title: facts.title }, `${facts.plane}, ${facts.title}`), canvas, elements(), dimensions(), pointed)] : []),
      ...(kernels.length ? [section(`Kernels for its part of the run${facts.of} (✓: taken)`, make("table", { class: "tg-facts" }, ...kernels))] : []));
  }

  // --- elements -----------------------------------------------------------------------------------

  function elements() {
    plane = { rows: data.facts.rows, columns: data.facts.columns, at: [...data.facts.at] };
    canvas.setAttribute("aria-label", `elements of ${data.facts.node}: ${data.facts.regions.map(([kind, count]) => `${kind} ${count}`).join(", ")}`);
    const counts = Object.fromEntries(data.facts.regions.map(([kind, count]) => [kind, count]));
    const items = [...ELEMENT_ORDER, "known"].filter((kind) => counts[kind]).map((kind) => {
      const { fill, line, alpha, dash } = ELEMENT_LOOKS[kind];
      const box = make("input", { type: "checkbox", checked: !hidden.has(kind), onchange: () => { if (box.checked) hidden.delete(kind); else hidden.add(kind); draw(); } });
      const style = fill ? `background:var(--tg-${fill});opacity:${alpha}` : `border:2px ${dash.length ? "dashed" : "solid"} var(--tg-${line})`;
      return make("li", { title: data.facts.meanings[kind] ?? "follows from constants alone" }, make("label", {}, box, make("i", { style }), `${kind} ${counts[kind]}`));
    });
    return make("ul", { class: "tg-legend" }, ...items, make("li", { title: data.facts.meanings[NOT_THERE] }, make("i", { class: "tg-never" }), NOT_THERE));
  }

  // Two dimensions are drawn; every other one has a slider.
  function dimensions() {
    const sliders = [...data.shape].map((size, i) => {
      if (i === plane.rows || i === plane.columns || size === 1) return null;
      const slider = make("input", { type: "range", min: 0, max: size - 1, value: plane.at[i], "aria-label": `index of dimension ${i}`, oninput: () => { plane.at[i] = Number(slider.value); draw(); } });
      return make("label", {}, `[${i}]`, slider);
    });
    return make("div", { class: "tg-bar" }, ...sliders.filter(Boolean));
  }

  const count = (axis) => (axis < 0 ? 1 : data.shape[axis]);
  const cell = () => ({ across: Math.min((canvas.clientWidth - 8) / count(plane.columns), 40), down: Math.min((ELEMENTS_HIGH - 8) / count(plane.rows), 40) });

  // [row start, row stop, column start, column stop] of a box in the plane; null if it is elsewhere.
  function crossing(b) {
    const rank = data.shape.length, from = (axis) => data.box[2 * (b * rank + axis)], to = (axis) => data.box[2 * (b * rank + axis) + 1];
    for (let axis = 0; axis < rank; axis++) if (axis !== plane.rows && axis !== plane.columns && !(from(axis) <= plane.at[axis] && plane.at[axis] < to(axis))) return null;
    return [plane.rows < 0 ? 0 : from(plane.rows), plane.rows < 0 ? 1 : to(plane.rows), plane.columns < 0 ? 0 : from(plane.columns), plane.columns < 0 ? 1 : to(plane.columns)];
  }
  function isKnown(row, column) {
    let index = 0;
    for (let axis = 0; axis < data.open_shape.length; axis++) {
      const at = axis === plane.rows ? row : axis === plane.columns ? column : plane.at[axis];
      index = index * data.open_shape[axis] + (data.open_shape[axis] === 1 ? 0 : at);
    }
    return !data.open[index];
  }

  function paint() {
    if (!data?.shape || !canvas.clientWidth) return;
    const { pen, width, height } = fit(), { across, down } = cell(), wide = count(plane.columns) * across, high = count(plane.rows) * down, colour = scene.colours.colour;
    pen.clearRect(0, 0, width, height);
    pen.strokeStyle = scene.colours.colour("line"); // hatched: not there
    pen.save();
    pen.beginPath(); pen.rect(4, 4, wide, high); pen.clip();
    pen.beginPath();
    for (let x = -high; x < wide; x += 7) { pen.moveTo(4 + x, 4 + high); pen.lineTo(4 + x + high, 4); }
    pen.stroke();
    pen.restore();
    if (!hidden.has("known") && data.open.some((flag) => !flag)) known(pen, across, down);
    for (const kind of ELEMENT_ORDER) {
      if (hidden.has(kind)) continue;
      const number = data.facts.kinds.indexOf(kind), { fill, alpha, line, dash } = ELEMENT_LOOKS[kind];
      for (let b = 0; b < data.kind.length; b++) {
        const span = data.kind[b] === number ? crossing(b) : null;
        if (!span) continue;
        const at = [4 + span[2] * across, 4 + span[0] * down, Math.max((span[3] - span[2]) * across, 1.5), Math.max((span[1] - span[0]) * down, 1.5)];
        if (fill) { pen.fillStyle = colour("paper"); pen.fillRect(...at); pen.globalAlpha = alpha; pen.fillStyle = colour(fill); pen.fillRect(...at); pen.globalAlpha = 1; }
        else { pen.setLineDash(dash); pen.lineWidth = 1.5; pen.strokeStyle = colour(line); pen.strokeRect(...at); pen.setLineDash([]); }
      }
    }
    pen.lineWidth = 1;
    pen.strokeStyle = colour("soft");
    pen.strokeRect(3.5, 3.5, wide + 1, high + 1);
  }
  function known(pen, across, down) {
    const rows = count(plane.rows), wide = count(plane.columns), stepRow = Math.max(1, Math.floor(1 / down)), stepColumn = Math.max(1, Math.floor(1 / across));
    pen.fillStyle = scene.colours.colour("soft");
    pen.globalAlpha = ELEMENT_LOOKS.known.alpha;
    for (let row = 0; row < rows; row += stepRow) {
      for (let column = 0, from = -1; column <= wide; column += stepColumn) {
        const is = column < wide && isKnown(row, column);
        if (is && from < 0) from = column;
        if (!is && from >= 0) { pen.fillRect(4 + from * across, 4 + row * down, (column - from) * across, Math.max(down * stepRow, 1)); from = -1; }
      }
    }
    pen.globalAlpha = 1;
  }
  canvas.addEventListener("pointermove", (event) => {
    if (!data?.shape) return;
    const { across, down } = cell(), row = Math.floor((event.offsetY - 4) / down), column = Math.floor((event.offsetX - 4) / across);
    if (row < 0 || column < 0 || row >= count(plane.rows) || column >= count(plane.columns)) return;
    const kinds = ELEMENT_ORDER.filter((kind) => [...data.kind.keys()].some((b) => {
      const span = data.kind[b] === data.facts.kinds.indexOf(kind) ? crossing(b) : null;
      return span && span[0] <= row && row < span[1] && span[2] <= column && column < span[3];
    }));
    if (isKnown(row, column)) kinds.push("known");
    const at = [...plane.at];
    if (plane.rows >= 0) at[plane.rows] = row;
    if (plane.columns >= 0) at[plane.columns] = column;
    pointed.textContent = `[${at.join(", ")}]: ${kinds.join(", ") || NOT_THERE}`;
  });

  scene.on("inspector", load);
  scene.on("chosen memory", () => { if (!data?.facts.node) load(); });
  scene.on("theme", () => draw());
  load();
}
