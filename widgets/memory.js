// Memory through time: steps to the right, arena offsets upwards, a rectangle a slot.
//
//   bytes in use   the whole schedule, and the window that is shown
//   map            what is kept is one band until it is unfolded; colours tell kinds, or fates
//   layers         on the same axis
//
// What a gesture would do is drawn here at once; whether it may be done, Python says.
import { Camera, bytes, counted, duration, fitted, framed, make, shared, shortened, stepsOf, ticks } from "./common.js";
import { blend, DIAGONAL, DOTS, LINES, PLAIN, Raster } from "./raster.js";

const SLACK = 4; // pixels that a click may move
const ALIGNMENT = 64, MOST_NAMES = 1500, MOST_ARROWS = 60, MOST_GHOSTS = 400, SLOW_MS = 20, BAND = 0.09, PALE = 0.78, STRONG = 0.12; // of paper in a colour: what a run leaves alone, and all else
export const KIND_TEXTURES = { input: PLAIN, retained: LINES, partial: DIAGONAL, slice: PLAIN, scratch: DOTS };
export const FATE_LOOKS = {
  untouched: ["soft", PLAIN, "neither needed nor changed; or what a kernel uses beside it"], changed: ["input", PLAIN, "new in this run"], recomputed: ["slice", PLAIN, "computed in this run"],
  extended: ["scratch", DOTS, "computed in part, the rest still there"], reused: ["retained", LINES, "needed, and still there"],
  stale: ["partial", DIAGONAL, "changed, and not made right again"], destroyed: ["bad", DIAGONAL, "written over by others in this run"],
};
const KEYS_OF_MAP = "Keys: left and right move through time, up and down choose among what is live, plus and minus zoom, shift with arrows moves the picture, " +
  "b lets the pointer choose all in a rectangle, / searches, alt with up or down moves the chosen buffer and enter asks whether it may lie there, p retains, d drops, u undoes, f unfolds what is kept, escape clears.";

// Rows that are live at a step, largest first; bytes that an in-place result takes over count once.
export function liveAt(data, step) {
  const rows = [], groups = new Set(), scratch = data.facts.kinds.indexOf("scratch");
  for (let i = 0; i < data.name.length; i++) {
    if (data.start[i] > step || step >= data.stop[i]) continue;
    const owner = data.kind[i] === scratch ? -1 - i : data.group[i];
    if (!groups.has(owner)) { groups.add(owner); rows.push(i); }
  }
  return rows.sort((a, b) => data.size[b] - data.size[a] || data.offset[a] - data.offset[b]);
}
export const peakOf = (data) => data.live.reduce((best, size, step) => (size > data.live[best] ? step : best), 0);
export const stepNow = (scene) => { const { data: { memory } } = scene; return memory && scene.step >= 0 && scene.step < memory.facts.steps ? scene.step : memory ? peakOf(memory) : 0; };
// A node is chosen with a step at which it is there: the one at hand, or else its first.
export function stepOf(scene, node) {
  const { data: { memory } } = scene, now = stepNow(scene);
  const rows = memory ? [...memory.name.keys()].filter((i) => nodeOfRow(memory, i) === node) : [];
  return !rows.length || rows.some((i) => memory.start[i] <= now && now < memory.stop[i]) ? scene.step : memory.start[rows[0]];
}
export const nodeOfRow = (data, i) => (data.facts.kinds[data.kind[i]] === "scratch" ? data.name[i].replace(/ \(scratch\)$/, "") : data.name[i]);

export function memoryPanel(scene, place) {
  const { colours } = scene;
  const option = (value, words) => make("option", { value }, words ?? value);
  const colour = make("select", { "aria-label": "colours", onchange: () => { restyle(); legend(); draw(); } }, option("fate", "what a run does"), option("kind", "what is kept"));
  const across = make("select", { "aria-label": "axis", onchange: () => { place_x(); camera.all(); fresh(); } }, option("steps"), option("time", "modelled time"));
  const fold = make("button", { type: "button", title: "what is kept as one band, or to scale (f)", onclick: () => { isFolded = !isFolded; folded = true; place_y(); camera.all(); fresh(); } });
  // Not shift: in JupyterLab a press with shift, wherever it is, chooses cells.
  const brushes = make("button", { type: "button", title: "a drag chooses all in a rectangle, for screen.to_frame() (b)", "aria-pressed": "false", onclick: () => {
    brushes.setAttribute("aria-pressed", String(!isBrushing()));
  } }, "brush");
  const isBrushing = () => brushes.getAttribute("aria-pressed") === "true";
  const words = make("span", { class: "tg-soft tg-grow tg-line" });
  const canvas = make("canvas", { tabindex: 0, role: "application", class: "tg-fill" }), key = make("ul", { class: "tg-legend" });
  const empty = make("p", { class: "tg-empty", hidden: true });
  place.append(make("div", { class: "tg-bar" }, colour, across, fold, make("button", { type: "button", title: "all of it (0)", onclick: () => { camera.all(); fresh(); } }, "all"), brushes, words), canvas, empty, key);

  let data = null, raster = null, rowsOf = new Map(), at = [0], low = [], top = [], styleOf = null, isFolded = true, folded = false, bandBytes = 0, bandScale = 1;
  let hovered = -1, moving = null, brush = null, shown = null, drawnAt = null, slow = false, settle = 0;
  const camera = new Camera({ x0: 0, x1: 1, y0: 0, y1: 1 }, { width: 1, height: 1 });
  const draw = framed(paint), fit = fitted(canvas, () => fresh(), scene.dispose);
  const fresh = () => { drawnAt = null; draw(); };

  // --- data ---------------------------------------------------------------------------------------

  function load() {
    const wasEmpty = data === null;
    data = scene.data.memory?.name.length ? scene.data.memory : null;
    empty.hidden = Boolean(data);
    empty.textContent = scene.data.memory ? "This plan gives bytes to nothing: there is no memory to draw." : "No plan is in force: the next run makes one.";
    canvas.hidden = key.hidden = !data;
    if (!data) return;
    const { facts } = data, wasWhole = JSON.stringify(camera.view) === JSON.stringify(camera.every);
    canvas.setAttribute("aria-label", `${facts.label}. ${KEYS_OF_MAP}`);
    rowsOf = new Map();
    data.name.forEach((name, i) => { if (!rowsOf.has(name)) rowsOf.set(name, i); });
    if (wasEmpty && facts.is_bound) colour.value = "kind"; // a plan alone does not say what is computed
    if (!folded) isFolded = facts.kept_bytes > 0.3 * facts.size_bytes && facts.kept_bytes < 0.995 * facts.size_bytes;
    across.hidden = !data.cost.length;
    hovered = -1;
    moving = null;
    place_x();
    place_y();
    if (wasWhole) camera.all(); else camera.show(camera.view);
    colour.hidden = !scene.fateOf.size;
    restyle();
    legend();
    filter();
  }

  // Where steps begin, on the axis: one apart, or as long as they are modelled to take.
  function place_x() {
    const { steps } = data.facts, cost = across.value === "time" ? data.cost : [];
    const least = cost.length ? 0.15 * (cost.reduce((a, b) => a + b, 0) / cost.length) : 1;
    at = new Float64Array(steps + 1);
    for (let step = 0; step < steps; step++) at[step + 1] = at[step] + Math.max(cost[step] ?? 0, least);
    camera.every.x0 = 0;
    camera.every.x1 = at[steps];
    camera.least.width = (4 / Math.max(steps, 4)) * at[steps];
    rectangles();
  }
  function place_y() {
    const { facts } = data, highest = tallest(), kept = facts.kept_bytes;
    const rest = Math.max(highest - kept, 1);
    bandBytes = isFolded ? kept : 0;
    bandScale = isFolded && kept ? (BAND * rest) / (1 - BAND) / kept : 1;
    fold.hidden = !kept || kept >= 0.995 * facts.size_bytes;
    fold.textContent = isFolded ? "unfold kept" : "fold kept";
    camera.every.y0 = 0;
    camera.every.y1 = upOf(highest) * 1.03;
    camera.least.height = Math.min(256, highest);
    rectangles();
  }
  function rectangles() {
    if (!data || at.length !== data.facts.steps + 1) return;
    const count = data.name.length, x0 = new Float64Array(count), x1 = new Float64Array(count);
    [low, top] = [new Float64Array(count), new Float64Array(count)];
    for (let i = 0; i < count; i++) {
      [x0[i], x1[i]] = [at[data.start[i]], at[data.stop[i]]];
      [low[i], top[i]] = [upOf(data.offset[i]), upOf(data.offset[i] + data.size[i])];
    }
    raster = new Raster({ x0, x1, y0: low, y1: top, style: styleOf?.length === count ? styleOf : data.kind });
  }
  const upOf = (size) => (size < bandBytes ? size * bandScale : size - bandBytes + bandBytes * bandScale);
  const bytesAt = (up) => (up < bandBytes * bandScale ? up / bandScale : up + bandBytes - bandBytes * bandScale);
  const hasBudget = () => data.facts.budget_bytes && data.facts.budget_bytes <= 1.6 * data.facts.size_bytes;
  const tallest = () => Math.max(data.facts.size_bytes, hasBudget() ? data.facts.budget_bytes : 0, data.facts.ghost_bytes ?? 0, 1);
  const stepAt = (x) => { let a = 0, b = data.facts.steps - 1; while (a < b) { const m = (a + b + 1) >> 1; if (at[m] <= x) a = m; else b = m - 1; } return a; };

  const isFate = () => colour.value === "fate" && scene.fateOf.size > 0;
  const kindOf = (i) => data.facts.kinds[data.kind[i]], nodeOf = (i) => nodeOfRow(data, i);
  const fateOf = (i) => (kindOf(i) === "scratch" ? "untouched" : scene.fateOf.get(nodeOf(i)) ?? "untouched");
  const FATE_NAMES = Object.keys(FATE_LOOKS);
  function restyle() {
    styleOf = isFate() ? Uint8Array.from(data.name, (_, i) => FATE_NAMES.indexOf(fateOf(i))) : data.kind;
    raster.style = styleOf;
    drawnAt = null;
  }
  const selectedRow = () => (scene.nodes.length ? rowsOf.get(scene.nodes[0]) ?? -1 : -1);
  const stepName = (step) => data.schedule[step] ?? "the end";
  const reads = (i) => data.read.subarray(data.read_first[i], data.read_first[i + 1]);

  function describe(i) {
    const kind = kindOf(i), group = data.group[i], fate = isFate() && kind !== "scratch" ? `, ${fateOf(i)}` : "";
    const by = isFate() ? scene.data.fates.facts.destroyed[nodeOf(i)] : null;
    const when = { input: "always", retained: "always", partial: "always, while it is there" }[kind] ?? stepsOf(data.start[i], data.stop[i] - 1);
    const taken = group !== i && kind === "slice" ? `, bytes taken over from ${data.name[group]}` : "";
    return `${data.name[i]}: ${kind}, ${bytes(data.size[i])} at offset ${data.offset[i]}, ${when}${taken}${fate}${by ? `, destroyed by ${by.slice(0, 3).join(", ")}` : ""} (${data.detail[i]})`;
  }
  // Why a rectangle is alive at a step: the next read, or what keeps it.
  function why(i, step) {
    if (step < data.start[i] || step >= data.stop[i]) return "its bytes are others' then";
    const next = reads(i).find((one) => one >= step), kind = kindOf(i);
    if (next !== undefined) return `next read at step ${next} by ${stepName(next)}`;
    const kept = { input: "its last value is kept for the next run", retained: "kept for later runs", partial: "kept after some runs", scratch: "in use by the kernel of this step" };
    return kept[kind] ?? (data.stop[i] >= data.facts.steps && !data.facts.is_bound ? "handed out at the end" : "not read again");
  }

  // --- drawing ------------------------------------------------------------------------------------

  const STRIP = { top: 4, height: 30 }, EDGE = { left: 66, right: 8 };
  function paint() {
    const { pen, scale, width, height } = fit();
    if (!width || !data) return;
    camera.box = { left: EDGE.left, top: STRIP.top + STRIP.height + 8, width: width - EDGE.left - EDGE.right, height: height - STRIP.top - STRIP.height - 8 - 34 };
    if (camera.box.height < 20) return;
    const { left, top: above, width: wide, height: high } = camera.box;
    pen.clearRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    inUse(pen);
    axes(pen);
    layers(pen);
    pen.save();
    pen.beginPath();
    pen.rect(left, above, wide, high);
    pen.clip();
    map(pen, scale);
    const { size_bytes: size, budget_bytes: budget } = data.facts, arena = `arena ${bytes(size)}`;
    level(pen, size, arena, "ink", [], 13);
    if (hasBudget() && budget !== size) { // beside the arena's name where both are close
      const isClose = Math.abs(camera.y(upOf(budget)) - camera.y(upOf(size))) < 34;
      level(pen, budget, `budget ${bytes(budget)}`, "bad", [6, 3], -4, isClose ? pen.measureText(arena).width + 14 : 0);
    }
    ghosts(pen);
    scrubbed(pen);
    arrows(pen);
    marks(pen);
    band(pen);
    pen.restore();
    scene.root.dataset.painted = String(performance.now());
  }

  // Bytes in use over the whole schedule, with the window of the map; of many steps on one pixel, the largest.
  function inUse(pen) {
    const { left, width } = camera.box, { top: y0, height } = STRIP, most = Math.max(data.live[peakOf(data)], 1), whole = at[data.facts.steps];
    const kept = isFolded ? Math.min(data.facts.kept_bytes, most - 1) : 0, base = kept ? 6 : 0; // folded here too
    const y = (size) => y0 + height - base - Math.max((size - kept) / (most - kept), 0) * (height - base), px = (x) => left + (x / whole) * width;
    pen.fillStyle = colours.colour("panel");
    pen.fillRect(left, y0, width, height);
    pen.beginPath();
    pen.moveTo(left, y0 + height);
    for (let p = 0, step = 0; p <= width; p++) {
      const until = ((p + 1) / width) * whole;
      let highest = data.live[Math.min(step, data.facts.steps - 1)];
      while (step < data.facts.steps - 1 && at[step + 1] < until) highest = Math.max(highest, data.live[++step]);
      pen.lineTo(left + p, y(highest));
    }
    pen.lineTo(left + width, y0 + height);
    pen.fillStyle = colours.colour("soft");
    pen.globalAlpha = 0.45;
    pen.fill();
    pen.globalAlpha = 1;
    const now = stepNow(scene), x = px(at[now]);
    pen.fillStyle = colours.colour("mark");
    pen.fillRect(x, y0, Math.max(px(at[now + 1]) - x, 2), height);
    if (camera.view.x1 - camera.view.x0 < 0.999 * whole) {
      pen.strokeStyle = colours.colour("ink");
      pen.lineWidth = 1.5;
      pen.strokeRect(px(camera.view.x0), y0 + 0.5, px(camera.view.x1) - px(camera.view.x0), height - 1);
    }
    pen.fillStyle = colours.colour("soft");
    pen.textAlign = "right";
    pen.fillText("in use", left - 6, y0 + 11);
    pen.fillText(bytes(most), left - 6, y0 + 26);
    pen.textAlign = "left";
  }

  function map(pen, scale) {
    const { left, top: above, width, height } = camera.box;
    if (slow && settle && drawnAt) { // while it moves, the last picture is moved along
      const v = raster.drawn, x = camera.x(v.x0), y = camera.y(v.y1);
      pen.drawImage(raster.canvas, x, y, camera.x(v.x1) - x, camera.y(v.y0) - y);
      return;
    }
    const now = JSON.stringify([camera.view, width, height, scale]);
    if (drawnAt !== now) {
      const began = performance.now();
      raster.draw(camera, ...styles(), shown, scale);
      slow = performance.now() - began > SLOW_MS;
      scene.root.dataset.raster = String(performance.now() - began);
      drawnAt = now;
    }
    pen.drawImage(raster.canvas, left, above, width, height);
    names(pen);
  }

  function styles() {
    const paper = colours.rgb("paper"), ink = colours.isDark ? [0, 0, 0] : [20, 24, 30];
    const looks = isFate() ? FATE_NAMES.map((name) => [FATE_LOOKS[name][0], FATE_LOOKS[name][1], name === "untouched" ? PALE : STRONG]) : data.facts.kinds.map((kind) => [kind, KIND_TEXTURES[kind], STRONG]);
    const list = looks.map(([name, texture, paler]) => { const fill = blend(colours.rgb(name), paper, paler); return { fill, edge: blend(fill, ink, 0.35), texture }; });
    return [list, list.map(({ fill }) => ({ fill: blend(fill, paper, 0.82), edge: blend(fill, paper, 0.7), texture: PLAIN }))];
  }

  // Names where they fit; what is in the folded band has no room for one, and where a value takes
  // over the bytes of another, the name of the other ends.
  function names(pen) {
    const { left, top: above, width, height } = camera.box, v = camera.view;
    const wide = (40 / width) * (v.x1 - v.x0), high = (13 / height) * (v.y1 - v.y0);
    const labels = [];
    for (let i = 0; i < data.name.length && labels.length < MOST_NAMES; i++) {
      const x0 = raster.x0[i], x1 = raster.x1[i];
      if (top[i] - low[i] < high || x1 - x0 < wide || x1 < v.x0 || x0 > v.x1 || top[i] < v.y0 || low[i] > v.y1) continue;
      if (bandBytes && top[i] <= upOf(bandBytes)) continue;
      const x = Math.max(camera.x(x0), left) + 4, room = Math.min(camera.x(x1), left + width) - x - 4;
      const y = Math.max(camera.y(top[i]), above), tall = Math.min(camera.y(low[i]), above + height) - y;
      if (room < 24 || tall < 12) continue;
      const isAtTheEnd = tall > 32 && Math.abs(camera.y(upOf(data.facts.size_bytes)) - y) < 14; // of the arena, which is told there
      labels.push({ i, x, room, y: y + Math.min(tall / 2 + 4, isAtTheEnd ? 30 : 14) });
    }
    labels.sort((a, b) => a.y - b.y || a.x - b.x);
    labels.forEach(({ i, x, room, y }, k) => {
      const next = labels[k + 1], free = next && next.y === y ? Math.min(room, next.x - x - 8) : room;
      if (free < 24) return;
      pen.fillStyle = (shown && !shown[i]) || (isFate() && fateOf(i) === "untouched") ? colours.colour("soft") : "#0b0f14";
      pen.fillText(labelled(pen, i, free), x, y);
    });
  }

  function labelled(pen, i, room) {
    const isScratch = data.facts.kinds[data.kind[i]] === "scratch";
    return isScratch && pen.measureText(data.name[i]).width > room ? shortened(pen, "scratch", room, true) : shortened(pen, data.name[i], room);
  }

  function band(pen) {
    if (!bandBytes) return;
    const y = camera.y(upOf(bandBytes)), tall = camera.y(0) - y;
    if (tall < 19) return;
    const inBand = (name) => data.kind.reduce((n, kind, i) => n + (data.facts.kinds[kind] === name && data.offset[i] < bandBytes), 0);
    const [count, inputs] = [inBand("retained"), inBand("input")];
    const said = `${[count && counted(count, "kept value"), inputs && counted(inputs, "input")].filter(Boolean).join(" and ")}, ${bytes(bandBytes)}`, wide = pen.measureText(said).width;
    pen.fillStyle = colours.colour("paper");
    pen.globalAlpha = 0.85;
    pen.fillRect(camera.box.left + 6, y + tall / 2 - 9, wide + 10, 18);
    pen.globalAlpha = 1;
    pen.fillStyle = colours.colour("ink");
    pen.fillText(said, camera.box.left + 11, y + tall / 2 + 4);
  }

  function axes(pen) {
    const { left, top: above, width, height } = camera.box, v = camera.view;
    pen.strokeStyle = colours.colour("line");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    let before = Infinity;
    for (const size of [...(bandBytes ? [0] : []), ...ticks(Math.max(bytesAt(v.y0), bandBytes), bytesAt(v.y1), height / 42, true)]) {
      const y = Math.round(camera.y(upOf(size))) + 0.5;
      if (y > above + height + 1 || y > before - 13) continue;
      before = y;
      pen.beginPath(); pen.moveTo(left, y); pen.lineTo(left + width, y); pen.stroke();
      pen.fillStyle = colours.colour("soft");
      pen.fillText(bytes(size), left - 6, Math.max(Math.min(y + 4, above + height), above + 10));
    }
    pen.textAlign = "center";
    const time = across.value === "time" && data.cost.length;
    for (const x of ticks(v.x0, v.x1, Math.max(width / 90, 2))) {
      pen.fillText(time ? duration(x) : x === 0 ? "step 0" : String(x), Math.min(Math.max(camera.x(x), left + 18), left + width - 14), above + height + 31);
    }
    pen.textAlign = "left";
  }

  // The layers, on the map's own axis.
  function layers(pen) {
    const { left, top: above, width, height } = camera.box, y = above + height + 3, h = 15;
    pen.save();
    pen.beginPath(); pen.rect(left, y, width, h); pen.clip();
    const prefix = shared(data.layer.filter((name) => /\d$/.test(name))); // where names have no room, their numbers do
    for (let i = 0; i < data.layer.length; i++) {
      const x = camera.x(at[data.layer_start[i]]), wide = camera.x(at[data.layer_stop[i]]) - x;
      if (x > left + width || x + wide < left) continue;
      pen.fillStyle = colours.colour(i % 2 ? "panel" : "line");
      pen.fillRect(x, y, Math.max(wide - 1, 1), h);
      const begin = Math.max(x, left) + 3, room = Math.min(x + wide, left + width) - begin - 3;
      pen.fillStyle = colours.colour("ink");
      const told = pen.measureText(data.layer[i]).width <= room ? data.layer[i] : data.layer[i].replace(prefix, "");
      if (told && (room > 18 || pen.measureText(told).width <= room)) pen.fillText(shortened(pen, told, room), begin, y + 12);
    }
    pen.restore();
  }

  function level(pen, size, said, colour_, dash, below, aside = 0) {
    const y = camera.y(upOf(size)), end = camera.box.left + camera.box.width, right = end - aside;
    pen.strokeStyle = pen.fillStyle = colours.colour(colour_);
    pen.lineWidth = 1.2;
    pen.setLineDash(dash);
    pen.beginPath(); pen.moveTo(camera.box.left, y); pen.lineTo(end, y); pen.stroke();
    pen.setLineDash([]);
    const at = y + (y + below < camera.box.top + 10 ? 13 : below), wide = pen.measureText(said).width;
    pen.globalAlpha = 0.85;
    pen.fillStyle = colours.colour("paper");
    pen.fillRect(right - 10 - wide, at - 11, wide + 8, 15);
    pen.globalAlpha = 1;
    pen.fillStyle = colours.colour(colour_);
    pen.textAlign = "right";
    pen.fillText(said, right - 6, at);
    pen.textAlign = "left";
  }

  // The map in force, behind one that is proposed.
  function ghosts(pen) {
    if (!data.ghost) return;
    pen.strokeStyle = colours.colour("ink");
    pen.setLineDash([3, 3]);
    pen.globalAlpha = 0.55;
    data.ghost.slice(0, MOST_GHOSTS).forEach((name, g) => {
      const i = rowsOf.get(name), from = data.ghost_offset[g], size = data.ghost_size[g];
      if (i !== undefined && data.offset[i] === from && data.size[i] === size) return; // lies where it lay
      if (from + size <= bandBytes) return;
      const x = camera.x(i === undefined ? 0 : raster.x0[i]), y = camera.y(upOf(from + size));
      pen.strokeRect(x + 0.5, y + 0.5, (i === undefined ? camera.box.width : camera.x(raster.x1[i]) - x) - 1, Math.max(camera.y(upOf(from)) - y - 1, 2));
    });
    pen.setLineDash([]);
    pen.globalAlpha = 1;
  }

  function scrubbed(pen) {
    const step = stepNow(scene), x = camera.x(at[step]), wide = Math.max(camera.x(at[step + 1]) - x, 1.5);
    pen.fillStyle = colours.colour("mark");
    pen.globalAlpha = 0.18;
    pen.fillRect(x, camera.box.top, wide, camera.box.height);
    pen.globalAlpha = 1;
  }

  // From who destroys to what is destroyed, for what is chosen.
  function arrows(pen) {
    const i = selectedRow(), by = isFate() ? scene.data.fates.facts.destroyed : {};
    if (i < 0) return;
    const pairs = Object.entries(by).flatMap(([name, others]) => others.map((other) => [rowsOf.get(other), rowsOf.get(name)]))
      .filter(([a, b]) => a !== undefined && b !== undefined && (a === i || b === i));
    pen.strokeStyle = pen.fillStyle = colours.colour("bad");
    pen.lineWidth = 1.8;
    for (const [a, b] of pairs.slice(0, MOST_ARROWS)) {
      const middle = (k) => [camera.x((raster.x0[k] + raster.x1[k]) / 2), camera.y((low[k] + top[k]) / 2)];
      const [[x0, y0], [x1, y1]] = [middle(a), middle(b)], turn = Math.atan2(y1 - y0, x1 - x0);
      pen.beginPath(); pen.moveTo(x0, y0); pen.lineTo(x1, y1); pen.stroke();
      pen.beginPath(); pen.moveTo(x1, y1);
      for (const side of [2.7, -2.7]) pen.lineTo(x1 + 9 * Math.cos(turn + side), y1 + 9 * Math.sin(turn + side));
      pen.fill();
      outline(pen, b, colours.colour("bad"), 2);
    }
  }

  function outline(pen, i, stroke, width, lifted = 0) {
    const x = camera.x(raster.x0[i]), y = camera.y(top[i] + lifted);
    const w = Math.max(camera.x(raster.x1[i]) - x, 3), h = Math.max(camera.y(low[i] + lifted) - y, 3);
    pen.strokeStyle = colours.colour("paper");
    pen.lineWidth = width + 2;
    pen.strokeRect(x - 1, y - 1, w + 2, h + 2);
    pen.strokeStyle = stroke;
    pen.lineWidth = width;
    pen.strokeRect(x - 1, y - 1, w + 2, h + 2);
  }

  function marks(pen) {
    for (const name of scene.nodes.slice(0, 200)) { const i = rowsOf.get(name); if (i !== undefined) outline(pen, i, colours.colour("ink"), 2); }
    if (hovered >= 0 && !moving) outline(pen, hovered, colours.colour("mark"), 1.5);
    if (brush) {
      pen.fillStyle = pen.strokeStyle = colours.colour("mark");
      pen.globalAlpha = 0.2;
      pen.fillRect(brush.x, brush.y, brush.w, brush.h);
      pen.globalAlpha = 1;
      pen.strokeRect(brush.x, brush.y, brush.w, brush.h);
    }
    if (!moving) return;
    for (const i of moving.group) {
      pen.fillStyle = colours.colour(moving.clashes.length ? "bad" : "good");
      pen.globalAlpha = 0.55;
      const y = camera.y(top[i] + moving.up), x = camera.x(raster.x0[i]);
      pen.fillRect(x, y, Math.max(camera.x(raster.x1[i]) - x, 3), Math.max(camera.y(low[i] + moving.up) - y, 3));
      pen.globalAlpha = 1;
      outline(pen, i, colours.colour("ink"), 2, moving.up);
    }
    for (const i of moving.clashes.slice(0, 100)) outline(pen, i, colours.colour("bad"), 2.5);
  }

  function legend() {
    const swatch = (name, texture, paler = STRONG) => make("i", { class: ["", "tg-lines", "tg-diagonal", "tg-dots"][texture], style: `background-color:color-mix(in srgb,var(--tg-${name}) ${100 - 100 * paler}%,var(--tg-paper))` });
    const isUntouched = () => data.name.some((_, i) => kindOf(i) !== "scratch" && fateOf(i) === "untouched");
    const there = new Set(styleOf);
    const fateItem = (name) => make("li", { title: FATE_LOOKS[name][2] }, swatch(FATE_LOOKS[name][0], FATE_LOOKS[name][1], name === "untouched" ? PALE : STRONG), name === "untouched" && !isUntouched() ? "scratch" : name);
    const items = isFate() ? [...FATE_NAMES.slice(1), FATE_NAMES[0]].filter((name) => there.has(FATE_NAMES.indexOf(name))).map(fateItem)
      : data.facts.kinds.flatMap((kind, k) => (there.has(k) ? [make("li", { title: data.facts.meanings[k] }, swatch(kind, KIND_TEXTURES[kind]), kind)] : []));
    if (data.ghost) items.push(make("li", {}, `dashed: ${data.facts.ghost_words}`));
    if (data.facts.is_bound) items.push(make("li", { title: "the graph would tell when it is last read" }, "a slice is drawn until its bytes are used again"));
    key.replaceChildren(...items);
  }

  // --- what is chosen, searched, at a step --------------------------------------------------------

  function filter() {
    if (!data) return;
    shown = scene.wanted ? Uint8Array.from(data.name, (name) => (scene.isWanted(name) ? 1 : 0)) : null;
    if (shown) { const count = shown.reduce((a, b) => a + b, 0); words.textContent = count === 1 ? "1 match" : `${count} matches`; } else tell();
    fresh();
  }
  function tell() {
    const i = hovered >= 0 ? hovered : selectedRow(), step = stepNow(scene);
    words.textContent = i >= 0 ? describe(i) + (hovered >= 0 ? "" : `; at step ${step}: ${why(i, step)}`)
      : isFate() ? scene.data.fates.facts.words : `${bytes(data.live[step])} in use at step ${step}, ${stepName(step)}`;
    words.title = words.textContent;
  }
  function choose(i, step = stepNow(scene)) {
    if (i < 0) { scene.choose([], step); return; }
    scene.choose([nodeOf(i)], step >= data.start[i] && step < data.stop[i] ? step : data.start[i]);
  }
  const goTo = (step) => scene.at(Math.min(Math.max(step, 0), data.facts.steps - 1));
  function reveal() { // what is chosen elsewhere comes into sight
    const i = selectedRow(), v = camera.view;
    if (i < 0) return;
    const w = v.x1 - v.x0, h = v.y1 - v.y0, isOut = raster.x1[i] <= v.x0 || raster.x0[i] >= v.x1, isFar = top[i] <= v.y0 || low[i] >= v.y1;
    if (isOut || isFar) camera.show({
      x0: isOut ? (raster.x0[i] + raster.x1[i] - w) / 2 : v.x0, x1: isOut ? (raster.x0[i] + raster.x1[i] + w) / 2 : v.x1,
      y0: isFar ? (low[i] + top[i] - h) / 2 : v.y0, y1: isFar ? (low[i] + top[i] + h) / 2 : v.y1,
    });
  }

  // --- changes ------------------------------------------------------------------------------------

  const scratchKind = () => data.facts.kinds.indexOf("scratch");
  const groupOf = (i) => [...data.group.keys()].filter((j) => data.group[j] === data.group[i] && data.kind[j] !== scratchKind());
  const LYING = { input: "an input, which lies where it is", scratch: "scratch, which lies with the value of its step" };
  const whyLying = (i) => (LYING[kindOf(i)] ? `${nodeOf(i)}: ${LYING[kindOf(i)]}` : data.offset[i] < bandBytes ? "unfold what is kept to move it" : "");
  const mayMove = (i) => data.facts.can_change && i >= 0 && !whyLying(i);
  // While the whole map is seen there is nowhere to go, and a drag takes what is under the pointer;
  // else it takes what is chosen alone, and moves the window everywhere else.
  const mayGrab = (i) => i >= 0 && data.facts.can_change && (i === selectedRow() || isWhole());
  const isWhole = () => ["x0", "x1", "y0", "y1"].every((side) => Math.abs(camera.view[side] - camera.every[side]) < 1e-6 * Math.abs(camera.every.x1 + camera.every.y1));

  // What shares bytes with a group moved up by so many bytes while both are live.
  function clashes(group, up) {
    const mine = new Set(group), hit = [];
    for (let j = 0; j < data.name.length; j++) {
      if (mine.has(j)) continue;
      for (const i of group) {
        const together = data.from[i] < data.until[j] && data.from[j] < data.until[i];
        if (together && data.offset[i] + up < data.offset[j] + data.size[j] && data.offset[j] < data.offset[i] + data.size[i] + up) { hit.push(j); break; }
      }
    }
    return hit;
  }
  function lift(i, up) {
    const group = moving?.row === i ? moving.group : groupOf(i), lowest = Math.min(...group.map((j) => data.offset[j]));
    const by = Math.max(Math.round((lowest + up) / ALIGNMENT) * ALIGNMENT, bandBytes) - lowest;
    if (moving?.row === i && moving.up === by) return;
    moving = { row: i, group, up: by, clashes: clashes(group, by) };
    const named = moving.clashes.slice(0, 5).map((j) => data.name[j]).join(", "), more = moving.clashes.length > 5 ? ` and ${moving.clashes.length - 5} more` : "";
    scene.say(`${data.name[i]} at offset ${data.offset[i] + by}: ` + (moving.clashes.length ? `shares bytes with ${named}${more} while both are live` : "free; let go to ask for the verdict"), moving.clashes.length ? "no" : "");
    draw();
  }
  function change(what, request = {}) {
    const i = selectedRow();
    if (!data.facts.can_change || (what !== "undo" && !scene.nodes.length)) return;
    scene.act(what, { node: i >= 0 ? nodeOf(i) : scene.nodes[0] ?? "", ...request }).then(() => { moving = null; draw(); });
  }
  const release = () => { if (moving) change("move", { offset_bytes: data.offset[moving.row] + moving.up }); };

  // --- events -------------------------------------------------------------------------------------

  function moved(how) {
    clearTimeout(settle);
    settle = how === "pan" || how === "zoom" ? setTimeout(() => { settle = 0; draw(); }, 80) : 0;
    draw();
  }
  const rowAt = (event) => raster.pick(event.offsetX - camera.box.left, event.offsetY - camera.box.top, globalThis.devicePixelRatio || 1);
  const inStrip = (event) => event.offsetY < STRIP.top + STRIP.height + 4;
  let press = null;
  scene.dispose.push(camera.attach(canvas, moved, (event) => {
    if (!data) return null;
    press = { x: event.offsetX, y: event.offsetY };
    if (inStrip(event)) return { move: slide, drop: slide };
    if (isBrushing()) return { move: (now) => { brush = boxOf(press, now); draw(); }, drop: brushed };
    const i = rowAt(event), from = camera.atY(event.offsetY), { x, y } = press;
    if (!mayGrab(i) || (!mayMove(i) && !isWhole())) return null;
    let isDrag = false; // or still a click
    const move = (now) => {
      isDrag ||= Math.hypot(now.offsetX - x, now.offsetY - y) > SLACK;
      if (!isDrag) return;
      if (!mayMove(i)) { scene.say(whyLying(i), "no"); return; }
      if (i !== selectedRow()) choose(i, stepAt(camera.atX(x)));
      lift(i, camera.atY(now.offsetY) - from);
    };
    return { move, drop: () => { if (isDrag && moving?.row === i && moving.up) release(); else { moving = null; draw(); } } };
  }));
  const boxOf = (a, b) => ({ x: Math.min(a.x, b.offsetX), y: Math.min(a.y, b.offsetY), w: Math.abs(a.x - b.offsetX), h: Math.abs(a.y - b.offsetY) });
  function brushed() {
    const box = brush;
    brush = null;
    if (!box || box.w + box.h < 6) return;
    const [x0, x1, y1, y0] = [camera.atX(box.x), camera.atX(box.x + box.w), camera.atY(box.y), camera.atY(box.y + box.h)];
    const inside = [...data.name.keys()].filter((i) => raster.x0[i] < x1 && x0 < raster.x1[i] && low[i] < y1 && y0 < top[i]);
    scene.choose([...new Set(inside.map(nodeOf))]);
    scene.say(`${inside.length} chosen; screen.to_frame() has them as rows`);
  }
  // In the strip: the step there, and the window follows.
  function slide(event) {
    const whole = at[data.facts.steps], x = Math.min(Math.max((event.offsetX - camera.box.left) / camera.box.width, 0), 1) * whole, w = camera.view.x1 - camera.view.x0;
    goTo(stepAt(x));
    if (w < 0.999 * whole) { camera.show({ ...camera.view, x0: x - w / 2, x1: x + w / 2 }); moved("pan"); }
  }
  canvas.addEventListener("click", (event) => {
    if (!data || inStrip(event) || (press && Math.hypot(event.offsetX - press.x, event.offsetY - press.y) > SLACK)) return;
    choose(rowAt(event), stepAt(camera.atX(event.offsetX)));
  });
  canvas.addEventListener("dblclick", (event) => { if (data && bytesAt(camera.atY(event.offsetY)) < data.facts.kept_bytes && !fold.hidden) fold.click(); });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons || !data) return;
    const i = inStrip(event) ? -1 : rowAt(event);
    if (i === hovered) return;
    hovered = i;
    tell();
    canvas.style.cursor = mayGrab(i) && mayMove(i) ? "ns-resize" : "";
    draw();
  });
  canvas.addEventListener("pointerleave", () => { hovered = -1; if (data) tell(); draw(); });
  const keys = {
    ArrowLeft: () => goTo(stepNow(scene) - 1), ArrowRight: () => goTo(stepNow(scene) + 1), ArrowUp: () => along(1), ArrowDown: () => along(-1), "/": () => scene.search.focus(),
    Escape: () => { moving = null; scene.search.value = ""; scene.find(""); scene.say(""); choose(-1); },
    Enter: () => release(), p: () => change("pin"), d: () => change("drop"), u: () => change("undo"), f: () => fold.hidden || fold.click(), b: () => brushes.click(),
  };
  function along(by) { // the next one up or down among what is live
    const rows = liveAt(data, stepNow(scene)).sort((a, b) => data.offset[a] - data.offset[b]), here = rows.findIndex((i) => nodeOf(i) === scene.nodes[0]);
    if (rows.length) choose(rows[here < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(here + by, 0), rows.length - 1)]);
  }
  canvas.addEventListener("keydown", (event) => {
    if (!data) return;
    const i = selectedRow(), up = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (event.altKey && up && mayMove(i)) {
      event.preventDefault();
      lift(i, (moving?.row === i ? moving.up : 0) + up * Math.max(ALIGNMENT, Math.round((camera.view.y1 - camera.view.y0) / 200 / ALIGNMENT) * ALIGNMENT));
    } else if (camera.key(event)) moved("zoom");
    else if (keys[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); keys[event.key](); }
  });

  scene.on("memory", load);
  scene.on("fates", () => { if (data) { colour.hidden = !scene.fateOf.size; restyle(); legend(); tell(); draw(); } });
  scene.on("wanted", filter);
  scene.on("chosen", () => { if (data) { reveal(); tell(); draw(); } });
  scene.on("theme", fresh);
  load();
}
