// The graph: nodes in lines, equal layers in frames; colours tell kinds, times, fates or what is kept.
import { bytes, Camera, copied, duration, fitted, framed, make, shortened } from "./common.js";
import { FATE_LOOKS } from "./memory.js";
import { blend } from "./raster.js";

const ACROSS = 168, DOWN = 58, WIDE = 152, HIGH = 40, GAP = DOWN - HIGH, MOST_EDGES = 25000, MOST_FOUND = 40, SIDE = (ACROSS - WIDE) / 2, MOST_SPAN = 60, NEAREST = 3 * ACROSS, LONG = Infinity; // beside a box; how long an edge is led, and how far aside
const LEAVES = { input: "input", state: "scratch", output: "good" };
const KEYS_OF_GRAPH = "Keys: up and down go to what a node reads and to who reads it, left and right to its neighbours, " +
  "plus and minus zoom, shift with arrows moves the picture, 0 shows all, / searches, escape clears.";

// What a node is; its type without the dtype where all of it does not fit.
const titled = (pen, text, room) => shortened(pen, pen.measureText(text).width <= room ? text : text.replace(/ [a-z]+\d*\[/, " ["), room, true);

export function graphPanel(scene, place_) {
  let data = null, facts = {}, camera = null, reads = [], readBy = [], memberOf = new Map(), byLine = [], around = [], lanes = new Map(), isPlaced = false, hovered = -1, most = 1;
  const look = scene.colours;
  const button = (name, title, call) => make("button", { type: "button", title, onclick: call }, name);
  const seen = make("span", { class: "tg-soft tg-grow tg-line" }), canvas = make("canvas", { tabindex: 0, role: "application", class: "tg-fill" }), meanings = make("ul", { class: "tg-legend" });
  const fold = scene.asking("", "equal layers once, or each for itself", () => scene.act("fold"));
  const colour = make("select", { "aria-label": "colours", onchange: () => { legend(); draw(); } }, ...["kind", "time", "what a run does", "what is kept"].map((name) => make("option", {}, name)));
  place_.append(make("div", { class: "tg-bar" }, colour, fold, button("all", "the whole graph (0)", () => { camera.all(); draw(); }),
    scene.asking("copy DOT", "Graphviz source of the graph", () => scene.ask("dot").then((text) => copied(text, scene.say), (error) => scene.say(error.message, "no"))), seen), canvas, meanings);

  const size = fitted(canvas, () => { place(); draw(); }, scene.dispose);
  const draw = framed(paint);

  function load() {
    data = scene.data.graph;
    if (!data) return;
    facts = data.facts;
    most = data.name.reduce((a, _, i) => Math.max(a, total(data.time, i)), 1);
    canvas.setAttribute("aria-label", `${facts.label}. ${KEYS_OF_GRAPH}`);
    fold.textContent = facts.is_folded ? "unfold layers" : "fold layers";
    reads = data.name.map(() => []);
    readBy = data.name.map(() => []);
    for (let i = 0; i < data.edge.length; i += 2) {
      reads[data.edge[i + 1]].push(data.edge[i]);
      readBy[data.edge[i]].push(data.edge[i + 1]);
    }
    memberOf = new Map();
    lanes = new Map();
    byLine = [];
    data.name.forEach((_, i) => {
      (byLine[data.y[i]] ??= []).push(i);
      for (let m = data.first[i]; m < data.first[i + 1]; m++) memberOf.set(data.member[m], i);
    });
    data.inside.forEach((name, k) => memberOf.set(name, data.inside_of[k]));
    byLine.forEach((line) => line.sort((a, b) => data.x[a] - data.x[b]));
    around = facts.blocks.map(() => [Infinity, -Infinity, Infinity, -Infinity]);
    data.block.forEach((number, i) => {
      if (number < 0) return;
      const [x0, x1, y0, y1] = around[number];
      around[number] = [Math.min(x0, left(i) - 10), Math.max(x1, left(i) + WIDE + 10), Math.min(y0, top(i) - GAP), Math.max(y1, top(i) + HIGH + 10)];
    });
    hovered = -1;
    isPlaced = false;
    legend();
    place();
    follow();
  }

  function follow() {
    const first = memberOf.get(scene.nodes[0]);
    if (first !== undefined) { show(first); tell(first); }
    draw();
  }

  // The plane has one scale on both axes: its window takes the shape of the canvas.
  function place() {
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width || height < 40 || !data) return;
    const wide = data.x.reduce((a, b) => Math.max(a, b), 0) * ACROSS + WIDE + 60, high = byLine.length * DOWN + 40;
    const scale = Math.max(wide / width, high / height, 0.6);
    const every = { x0: -30 - (scale * width - wide) / 2, y0: -20 };
    every.x1 = every.x0 + scale * width;
    every.y1 = every.y0 + scale * height;
    const before = camera?.view, isWhole = camera && JSON.stringify(before) === JSON.stringify(camera.every);
    camera ??= made();
    camera.every = every;
    camera.least = { width: width / 3, height: height / 3 };
    camera.box = { left: 0, top: 0, width, height };
    if (isPlaced && before && !isWhole) { camera.show({ ...before, y1: before.y0 + ((before.x1 - before.x0) * height) / width }); return; }
    isPlaced = true;
    camera.all();
    if (scale > 1.6) { // too small to read: begin at the top
      const middle = (every.x0 + every.x1) / 2, half = width * 0.65;
      camera.show({ x0: middle - half, x1: middle + half, y0: -20, y1: -20 + height * 1.3 });
    }
  }

  function made() {
    const camera = new Camera({ x0: 0, x1: 1, y0: 0, y1: 1 }, { width: 1, height: 1 }, true);
    scene.dispose.push(camera.attach(canvas, () => draw()));
    return camera;
  }

  const left = (i) => data.x[i] * ACROSS, top = (i) => data.y[i] * DOWN;
  const middle = (i) => left(i) + WIDE / 2;

  function paint() {
    if (!camera || !data || !canvas.clientWidth) return;
    const { pen, width, height } = size();
    pen.clearRect(0, 0, width, height);
    const scale = camera.box.width / (camera.view.x1 - camera.view.x0), v = camera.view;
    const first = Math.max(Math.floor((v.y0 - HIGH) / DOWN), 0), last = Math.min(Math.ceil(v.y1 / DOWN), byLine.length - 1);
    const inside = [], marked = new Set(scene.nodes.map((name) => memberOf.get(name)));
    for (let line = first; line <= last; line++) for (const i of byLine[line] ?? []) {
      if (left(i) + WIDE >= v.x0 && left(i) <= v.x1) inside.push(i);
    }
    frames(pen, scale);
    edges(pen, scale, first, last, marked);
    pen.font = `${Math.max(Math.min(12 * scale, 14), 8)}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    for (const i of inside) node(pen, i, scale, marked.has(i));
    if (!data.name.length) { pen.fillStyle = look.colour("soft"); pen.fillText("an empty graph", 20, 30); }
  }

  function frames(pen, scale) {
    facts.blocks.forEach((block, number) => {
      const [x0, x1, y0, y1] = around[number];
      pen.fillStyle = look.colour("panel");
      pen.strokeStyle = look.colour("line");
      pen.beginPath();
      pen.roundRect(camera.x(x0), camera.y(y0), (x1 - x0) * scale, (y1 - y0) * scale, 8);
      pen.fill();
      pen.stroke();
      pen.fillStyle = look.colour("ink");
      pen.font = `600 ${Math.min(Math.max(14 * scale, 9), 14)}px system-ui, sans-serif`; // fits between two lines
      pen.textAlign = "right";
      pen.textBaseline = "top";
      pen.fillText(`×${block.count} layers`, Math.min(camera.x(x1), camera.box.width) - 8, Math.max(camera.y(y0), 0) + 2);
      pen.textAlign = "left";
    });
  }

  const curve = (pen, x0, y0, x1, y1, scale) => { const bend = Math.max((y1 - y0) / 2, 6 * scale); pen.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1); };

  // Where an edge that would run behind boxes goes down beside them: the nearest gap that is free all
  // the way; null where it meets none. Where it is long, or no gap is near, it is LONG: its ends alone
  // are drawn until one of them is chosen.
  function laneOf(a, b) {
    const key = a * data.name.length + b;
    if (!lanes.has(key)) lanes.set(key, lane(a, b));
    return lanes.get(key);
  }
  function lane(a, b) {
    const from = data.y[a], span = data.y[b] - from, between = [];
    if (span < 2) return null;
    if (span > MOST_SPAN) return LONG;
    for (let line = from + 1; line < data.y[b]; line++) for (const i of byLine[line] ?? []) between.push(i);
    const x0 = middle(a), x1 = middle(b), at = (line) => { const t = (line - from) / span; return x0 + (x1 - x0) * t * t * (3 - 2 * t); };
    const meets = (i, x) => left(i) - 2 < x && x < left(i) + WIDE + 2;
    if (!between.some((i) => meets(i, at(data.y[i])))) return null;
    const gaps = [...new Set(between.flatMap((i) => [left(i) - SIDE, left(i) + WIDE + SIDE]))].sort((a, b) => Math.abs(2 * a - x0 - x1) - Math.abs(2 * b - x0 - x1));
    return gaps.find((x) => Math.abs(2 * x - x0 - x1) < 2 * NEAREST && !between.some((i) => meets(i, x))) ?? LONG;
  }

  function edges(pen, scale, first, last, marked) {
    const near = [], lit = [];
    for (let e = 0; e < data.edge.length && near.length < MOST_EDGES; e += 2) {
      const [a, b] = [data.edge[e], data.edge[e + 1]];
      if (data.y[b] < first || data.y[a] > last) continue;
      (marked.has(a) || marked.has(b) ? lit : near).push(a, b);
    }
    for (const [pairs, colour, width, alpha] of [[near, "soft", 1, 0.4], [lit, "mark", 1.8, 1]]) {
      pen.strokeStyle = look.colour(colour);
      pen.lineWidth = width;
      pen.globalAlpha = alpha;
      pen.beginPath();
      for (let p = 0; p < pairs.length; p += 2) {
        const x0 = camera.x(middle(pairs[p])), y0 = camera.y(top(pairs[p]) + HIGH);
        const x1 = camera.x(middle(pairs[p + 1])), y1 = camera.y(top(pairs[p + 1]));
        const a = pairs[p], b = pairs[p + 1], lane = laneOf(a, b);
        pen.moveTo(x0, y0);
        if (lane === LONG && pairs === near) { const end = 0.5 * GAP * scale; pen.lineTo(x0, y0 + end); pen.moveTo(x1, y1 - end); pen.lineTo(x1, y1); continue; }
        if (lane === null || lane === LONG) { curve(pen, x0, y0, x1, y1, scale); continue; }
        const x = camera.x(lane), down = camera.y((data.y[a] + 1) * DOWN), up = camera.y(data.y[b] * DOWN - GAP);
        curve(pen, x0, y0, x, down, scale);
        pen.lineTo(x, up);
        curve(pen, x, up, x1, y1, scale);
      }
      pen.stroke();
    }
    pen.globalAlpha = 1;
    pen.lineWidth = 1;
  }

  function node(pen, i, scale, isMarked) {
    const x = camera.x(left(i)), y = camera.y(top(i)), kind = facts.kinds[data.kind[i]];
    if (scale < 0.08) {
      pen.fillStyle = look.colour(isMarked ? "bad" : LEAVES[kind] ?? "soft");
      pen.fillRect(x, y, Math.max(WIDE * scale, 1.5), Math.max(HIGH * scale, 1.5));
      return;
    }
    const isPale = kind === "view" && !isMarked;
    pen.globalAlpha = isPale ? 0.6 : 1;
    pen.beginPath();
    pen.roundRect(x, y, WIDE * scale, HIGH * scale, 4 * scale);
    const isWanted = scene.isWanted(data.name[i]) || Array.from(data.member.slice(data.first[i], data.first[i + 1])).some(scene.isWanted);
    if (!isWanted) pen.globalAlpha = 0.25;
    pen.fillStyle = fillOf(i);
    pen.fill();
    pen.strokeStyle = look.colour(isMarked ? "mark" : LEAVES[kind] ?? "soft");
    pen.lineWidth = isMarked ? 3 : LEAVES[kind] || i === hovered ? 2 : 1;
    pen.setLineDash(kind === "parameter" || kind === "constant" ? [3, 3] : []);
    pen.stroke();
    pen.setLineDash([]);
    if (scale >= 0.45) {
      const many = data.first[i + 1] - data.first[i] > 1;
      if (isWanted) pen.globalAlpha = 1; // words stay legible
      pen.fillStyle = look.colour(isPale ? "soft" : "ink");
      pen.fillText(shortened(pen, data.name[i], (many ? 101 : WIDE - 14) * scale), x + 7 * scale, y + 12 * scale);
      pen.fillStyle = look.colour("soft");
      pen.fillText(titled(pen, data.title[i].replace(/, ×\d+$/, ""), (WIDE - 14) * scale), x + 7 * scale, y + 27 * scale);
      if (many) spark(pen, i, x + 112 * scale, y + 4 * scale, 34 * scale, 14 * scale);
    }
    pen.globalAlpha = 1;
    pen.lineWidth = 1;
  }

  // What the colours at hand tell.
  function legend() {
    if (!data) return;
    const box = (name, style) => make("li", {}, make("i", { style }), name), line = (colour_, how = "solid") => `border:2px ${how} var(--tg-${colour_})`;
    const kinds = new Set([...data.kind].map((k) => facts.kinds[k])), fates = new Set(data.member.map((name) => scene.fateOf.get(name)));
    const shown = {
      kind: () => [...Object.entries(LEAVES).filter(([kind]) => kinds.has(kind)).map(([kind, colour_]) => box(kind, line(colour_))),
        kinds.has("parameter") && box("weight", line("soft", "dashed")), kinds.has("view") && make("li", { title: "the bytes of what it reads, seen otherwise" }, "pale: takes no bytes")],
      time: () => [box("the darker, the longer it is modelled to take", "background:var(--tg-slice)")],
      "what a run does": () => Object.entries(FATE_LOOKS).filter(([fate]) => fates.has(fate)).map(([fate, [colour_]]) => box(fate, `background:color-mix(in srgb,var(--tg-${colour_}) 55%,var(--tg-paper))`)),
      "what is kept": () => [box("kept through every run", "background:color-mix(in srgb,var(--tg-retained) 60%,var(--tg-paper))")],
    }[colour.value]();
    if (data.edge.some((_, e) => e % 2 && data.y[data.edge[e]] - data.y[data.edge[e - 1]] > MOST_SPAN)) shown.push(make("li", { title: "choose a node, and all of its edges are drawn" }, "ends alone: an edge over many lines"));
    if (facts.blocks.length && facts.is_folded) shown.push(make("li", {}, make("span", { style: "color:var(--tg-slice)" }, "╱╲"), " modelled time, layer by layer"));
    meanings.replaceChildren(...shown.filter(Boolean));
  }

  const total = (values, i) => values.subarray(data.first[i], data.first[i + 1]).reduce((a, b) => a + b, 0);
  function fillOf(i) {
    const paper = look.rgb("paper"), css = ([r, g, b]) => `rgb(${r},${g},${b})`, names = data.member.slice(data.first[i], data.first[i + 1]);
    if (colour.value === "time") return css(blend(look.rgb("slice"), paper, 1 - 0.85 * Math.sqrt(total(data.time, i) / most)));
    if (colour.value === "what a run does") {
      const fate = names.map((name) => scene.fateOf.get(name)).find(Boolean);
      return fate ? css(blend(look.rgb(FATE_LOOKS[fate][0]), paper, 0.45)) : css(paper);
    }
    if (colour.value === "what is kept" && scene.data.memory) {
      const memory = scene.data.memory, kept = new Set(memory.name.filter((_, k) => memory.facts.kinds[memory.kind[k]] === "retained"));
      return names.some((name) => kept.has(name)) ? css(blend(look.rgb("retained"), paper, 0.4)) : css(paper);
    }
    return css(paper);
  }

  function spark(pen, i, x, y, width, height) {
    const values = data.time.subarray(data.first[i], data.first[i + 1]), most = Math.max(...values);
    if (!most) return;
    pen.strokeStyle = look.colour("slice");
    pen.lineWidth = 1.4;
    pen.beginPath();
    values.forEach((value, k) => pen.lineTo(x + (k / (values.length - 1)) * width, y + height - (value / most) * height * 0.8));
    pen.stroke();
  }

  // --- what is pointed at, chosen and searched ------------------------------------------------------

  function at(event) {
    const x = camera.atX(event.offsetX), y = camera.atY(event.offsetY);
    const line = Math.floor(y / DOWN);
    if (y - line * DOWN > HIGH) return -1;
    return (byLine[line] ?? []).find((i) => left(i) <= x && x <= left(i) + WIDE) ?? -1;
  }

  const members = (i) => Array.from(data.member.slice(data.first[i], data.first[i + 1]));
  const choose = (i) => { scene.choose(i < 0 ? [] : members(i)); tell(i); };

  function tell(i) {
    if (i < 0) { seen.textContent = ""; return; }
    seen.textContent = `${data.name[i]}: ${data.title[i]}; ${bytes(total(data.size, i))}, modelled ${duration(total(data.time, i))} for all of it; ` +
      `reads ${listed(reads[i])}; read by ${listed(readBy[i])}`;
  }

  function listed(nodes) {
    const names = nodes.slice(0, 4).map((i) => data.name[i]).join(", ");
    return nodes.length ? names + (nodes.length > 4 ? ` and ${nodes.length - 4} more` : "") : "nobody";
  }

  let down = null;
  const heard = {
    pointerdown: (event) => { down = [event.offsetX, event.offsetY]; canvas.focus(); },
    pointerup: (event) => {
      if (down && Math.hypot(event.offsetX - down[0], event.offsetY - down[1]) < 4) choose(at(event));
      down = null;
    },
    pointermove: (event) => {
      const next = at(event);
      if (next !== hovered) { hovered = next; if (next >= 0) tell(next); draw(); }
    },
    keydown: key,
  };
  for (const [name, call] of Object.entries(heard)) canvas.addEventListener(name, call);

  function key(event) {
    if (camera.key(event)) { draw(); return; }
    const here = memberOf.get(scene.nodes[0]) ?? -1;
    const line = here < 0 ? [] : byLine[data.y[here]];
    const next = {
      ArrowUp: () => reads[here]?.[0], ArrowDown: () => readBy[here]?.[0],
      ArrowLeft: () => line[line.indexOf(here) - 1], ArrowRight: () => line[line.indexOf(here) + 1],
    }[event.key];
    if (next) {
      event.preventDefault();
      const to = here < 0 ? 0 : next();
      if (to !== undefined) { choose(to); show(to); }
    } else if (event.key === "/") { event.preventDefault(); scene.search.focus(); }
    else if (event.key === "Escape") choose(-1);
  }

  function show(i) {
    if (!camera) return; // its tab was not opened yet
    const v = camera.view, x = middle(i), y = top(i);
    if (x < v.x0 || x > v.x1 || y < v.y0 || y > v.y1 - HIGH) {
      const wide = v.x1 - v.x0, high = v.y1 - v.y0;
      camera.show({ x0: x - wide / 2, x1: x + wide / 2, y0: y - high / 2, y1: y + high / 2 });
    }
    draw();
  }

  function find() {
    const hits = scene.wanted && data ? data.member.filter(scene.isWanted).slice(0, MOST_FOUND) : [];
    if (hits.length) show(memberOf.get(hits[0]));
    draw();
  }

  scene.on("graph", load);
  scene.on("chosen", follow);
  scene.on("wanted", find);
  scene.on("fates memory theme", () => { legend(); draw(); });
  load();
}
