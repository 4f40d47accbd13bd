// The alias map: arena offsets to the right, the schedule downwards. Bytes below each other are shared.
import { ask, bytes, Camera, columns, fitted, framed, listen, make, named, refill, selection, shortened, theme, ticks, view } from "./common.js";
import { blend, DIAGONAL, DOTS, LINES, PLAIN, Raster } from "./raster.js";

const FATES = ["untouched", "changed", "recomputed", "extended", "reused", "stale", "destroyed"];
const LOOKS = {
  untouched: ["soft", PLAIN], changed: ["input", PLAIN], recomputed: ["slice", PLAIN],
  extended: ["scratch", DOTS], reused: ["retained", LINES], stale: ["partial", DIAGONAL], destroyed: ["bad", DIAGONAL],
};
const MEANINGS = {
  untouched: "neither needed nor changed", changed: "new in this run", recomputed: "computed in this run", extended: "computed in part, the rest still there",
  reused: "needed, and still there", stale: "changed, and not made right again", destroyed: "written over by others in this run",
};
const MARGIN = { left: 46, right: 10, top: 8, bottom: 24 }, MOST_ARROWS = 300, MOST_LISTED = 80, MOST_NAMES = 800;
const KEYS = "Keys: up and down choose a node, plus and minus zoom, shift with arrows moves the picture, / searches, escape clears.";

export default view((model, root, dispose) => {
  const facts = model.get("facts"), data = columns(model.get("data")), chosen = selection(model);
  const count = data.name?.length ?? 0;
  if (!count) {
    root.append(make("p", { class: "tg-empty" }, "This plan gives bytes to nothing: nobody can share any."));
    return;
  }
  const rowOf = new Map(data.name.map((name, i) => [name, i]));
  const fate = new Uint8Array(count), kept = data.retained;
  let run = null, shown = null, hovered = -1, drawn = null;
  const every = { x0: 0, x1: Math.max(facts.size_bytes, 64), y0: -1, y1: Math.max(facts.steps, 1) };
  const camera = new Camera(every, { width: Math.min(256, every.x1), height: Math.min(4, every.y1 + 1) }, true);
  const raster = new Raster({ x0: data.offset, x1: data.stop, y0: data.row, y1: data.row.map((row) => row + 1), style: fate });

  const search = make("input", { type: "search", placeholder: "search nodes", "aria-label": "search nodes" });
  const classes = make("select", { "aria-label": "class of runs" }, make("option", { value: "" }, "no run: who shares bytes"),
    ...facts.classes.map((kind) => make("option", { value: kind }, kind)));
  const canvas = make("canvas", { tabindex: 0, role: "application", "aria-label": `${model.get("label")}. ${KEYS}`, style: "height:380px" });
  const side = make("div", { class: "tg-side", style: "max-height:380px", "aria-live": "polite" });
  const seen = make("p", { class: "tg-seen", role: "status" });
  const key = make("ul", { class: "tg-legend" });
  root.append(
    make("div", { class: "tg-bar" }, search, make("span", { class: "tg-grow" }),
      facts.classes.length ? make("label", {}, "what a run does:", classes) : null,
      make("button", { type: "button", onclick: () => { camera.all(); draw(); } }, "all of it")),
    make("div", { class: "tg-columns" }, canvas, side), seen, key);

  const colours = theme(root, () => { drawn = null; draw(); }, dispose);
  const draw = framed(paint), fit = fitted(canvas, () => { drawn = null; draw(); }, dispose);
  const selected = () => (chosen.nodes.length ? rowOf.get(chosen.nodes[0]) ?? -1 : -1);
  const partners = (i) => [...data.name.keys()].filter((j) => j !== i && data.offset[j] < data.stop[i] && data.offset[i] < data.stop[j]);
  const stepOf = (i) => (data.row[i] < 0 ? "before the first step" : `made at step ${data.row[i]}`);
  const lookOf = (i) => (run ? FATES[fate[i]] : kept[i] ? "reused" : "recomputed");
  const describe = (i) => `${data.name[i]}: ${bytes(data.size[i])} at offset ${data.offset[i]}, ${stepOf(i)}` +
    (run ? `, ${FATES[fate[i]]}${run.destroyed[data.name[i]] ? ` by ${run.destroyed[data.name[i]].slice(0, 4).join(", ")}` : ""}` : kept[i] ? ", kept between runs" : "");

  function paint() {
    const { pen, scale, width, height } = fit();
    if (!width) return;
    camera.box = { left: MARGIN.left, top: MARGIN.top, width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
    const { left, top, width: wide, height: high } = camera.box;
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif";
    pen.strokeStyle = colours.colour("line");
    pen.fillStyle = colours.colour("soft");
    pen.textAlign = "center";
    pen.lineWidth = 1;
    for (const size of ticks(camera.view.x0, camera.view.x1, 6, true)) {
      const x = Math.round(camera.x(size)) + 0.5;
      pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, top + high); pen.stroke();
      pen.fillText(bytes(size), Math.min(Math.max(x, left + 20), left + wide - 24), top + high + 15);
    }
    pen.textAlign = "right";
    for (const step of ticks(Math.max(camera.view.y0, 0), camera.view.y1, 7)) pen.fillText(step === 0 ? "step 0" : String(step), left - 6, camera.y(step) + 9);
    pen.textAlign = "left";
    pen.save();
    pen.beginPath(); pen.rect(left, top, wide, high); pen.clip();
    const i = selected();
    if (i >= 0) { // whatever lies in this band shares its bytes
      pen.fillStyle = colours.colour("mark");
      pen.globalAlpha = 0.16;
      pen.fillRect(camera.x(data.offset[i]), top, Math.max(camera.x(data.stop[i]) - camera.x(data.offset[i]), 2), high);
      pen.globalAlpha = 1;
    }
    const at = JSON.stringify([camera.view, wide, high, scale]);
    if (drawn !== at) {
      raster.draw(camera, ...styles(), shown, scale);
      drawn = at;
    }
    pen.drawImage(raster.canvas, left, top, wide, high);
    names(pen);
    arrows(pen, i);
    if (i >= 0) outline(pen, i, "ink", 2);
    if (hovered >= 0) outline(pen, hovered, "mark", 1.5);
    pen.restore();
    root.dataset.painted = String(performance.now());
  }

  function styles() {
    const paper = colours.rgb("paper"), ink = colours.isDark ? [0, 0, 0] : [20, 24, 30];
    const list = FATES.map((name) => {
      const [colour, texture] = LOOKS[name];
      const fill = blend(colours.rgb(colour), paper, name === "untouched" ? 0.78 : 0.12);
      return { fill, edge: blend(fill, ink, 0.35), texture };
    });
    return [list, list.map(({ fill }) => ({ fill: blend(fill, paper, 0.8), edge: blend(fill, paper, 0.7), texture: PLAIN }))];
  }

  function names(pen) {
    pen.textBaseline = "middle";
    const tall = camera.y(1) - camera.y(0);
    for (let i = 0, done = 0; i < count && done < MOST_NAMES && tall >= 11; i++) {
      const x = Math.max(camera.x(data.offset[i]), camera.box.left) + 3, y = camera.y(data.row[i] + 0.5);
      const room = Math.min(camera.x(data.stop[i]), camera.box.left + camera.box.width) - x - 3;
      if (room < 24 || y < 0 || y > camera.box.top + camera.box.height) continue;
      const isFaint = (shown && !shown[i]) || (run && !fate[i]);
      pen.fillStyle = isFaint ? colours.colour("soft") : "#0b0f14";
      pen.fillText(shortened(pen, data.name[i], room), x, y);
      done++;
    }
    pen.textBaseline = "alphabetic";
  }

  // From who destroys to what is destroyed: all of the run, or those of the chosen node.
  function arrows(pen, i) {
    if (!run) return;
    const pairs = Object.entries(run.destroyed).flatMap(([name, by]) => by.map((other) => [rowOf.get(other), rowOf.get(name)]))
      .filter(([a, b]) => a !== undefined && b !== undefined && (i < 0 || a === i || b === i));
    for (const b of new Set(pairs.slice(0, MOST_ARROWS).map(([, b]) => b))) outline(pen, b, "bad", 1.5);
    pen.strokeStyle = pen.fillStyle = colours.colour("bad");
    pen.lineWidth = 1.2;
    for (const [a, b] of pairs.slice(0, MOST_ARROWS)) {
      const low = Math.max(data.offset[a], data.offset[b]), high = Math.min(data.stop[a], data.stop[b]);
      const x = camera.x(low < high ? (low + high) / 2 : (data.offset[b] + data.stop[b]) / 2); // else its scratch
      const from = camera.y(data.row[a] + 0.5), to = camera.y(data.row[b] + 0.5), bend = Math.min(Math.abs(to - from) * 0.4, 40);
      pen.beginPath(); pen.moveTo(x, from); pen.quadraticCurveTo(x + bend, (from + to) / 2, x, to); pen.stroke();
      const up = to < from ? 1 : -1;
      pen.beginPath(); pen.moveTo(x, to); pen.lineTo(x - 3 + 3, to + 7 * up); pen.lineTo(x + 6, to + 5 * up); pen.fill();
    }
  }

  function outline(pen, i, colour, width) {
    const x = camera.x(data.offset[i]), y = camera.y(data.row[i]);
    const w = Math.max(camera.x(data.stop[i]) - x, 3), h = Math.max(camera.y(data.row[i] + 1) - y, 3);
    pen.strokeStyle = colours.colour("paper");
    pen.lineWidth = width + 2;
    pen.strokeRect(x - 1, y - 1, w + 2, h + 2);
    pen.strokeStyle = colours.colour(colour);
    pen.lineWidth = width;
    pen.strokeRect(x - 1, y - 1, w + 2, h + 2);
  }

  // --- beside the picture -------------------------------------------------------------------------

  function entry(i, words) {
    return make("li", {}, make("button", { type: "button", title: describe(i), onclick: () => chosen.choose([data.name[i]]) },
      named(data.name[i]), make("span", {}, words)));
  }

  function list() {
    const i = selected();
    if (i >= 0) {
      const others = partners(i), by = new Set(run?.destroyed[data.name[i]] ?? []);
      const relation = (j) => by.has(data.name[j]) ? "destroys it" : (run?.destroyed[data.name[j]] ?? []).includes(data.name[i]) ? "destroyed by it" : run ? FATES[fate[j]] : bytes(data.size[j]);
      refill(side, make("h4", {}, data.name[i]), make("div", { class: "tg-soft" },
        others.length ? `shares bytes with ${others.length}` : "shares bytes with nobody"),
        make("ol", {}, ...others.slice(0, MOST_LISTED).map((j) => entry(j, relation(j)))));
      seen.textContent = describe(i);
    } else if (run) {
      const made = [...data.name.keys()].filter((j) => fate[j] > 0).sort((a, b) => data.row[a] - data.row[b]);
      refill(side, make("h4", {}, "the ripple, in schedule order"), make("ol", {}, ...made.slice(0, MOST_LISTED).map((j) => entry(j, FATES[fate[j]]))));
      seen.textContent = run.words;
    } else {
      refill(side, make("div", { class: "tg-soft" }, "Choose a node to see who shares its bytes" + (facts.classes.length ? ", or a run to see what it does." : ".")));
      seen.textContent = "";
    }
  }

  function legend() {
    const names = run ? FATES.map((name, f) => [name, f, MEANINGS[name]]).filter(([, f]) => fate.includes(f))
      : [["kept between runs", FATES.indexOf("reused"), ""], ["not kept", FATES.indexOf("recomputed"), ""]];
    key.replaceChildren(...names.map(([name, f, title]) => make("li", { title },
      make("i", { style: `background:var(--tg-${LOOKS[FATES[f]][0]});opacity:${f ? 1 : 0.3}` }), name)),
      ...(run && Object.keys(run.destroyed).length ? [make("li", {}, "arrow: who destroys whom; outlined: destroyed")] : []));
  }

  function ofRun() {
    const bucket = facts.classes.includes(chosen.bucket) ? chosen.bucket : "";
    classes.value = bucket;
    if (!bucket) { seenRun(null); return; }
    ask(model, "during", { bucket }).then(seenRun, (error) => { seenRun(null); seen.textContent = error.message; });
  }
  function seenRun(found) {
    run = found;
    fate.fill(0);
    if (run) for (const name of ["stale", "reused", "extended", "recomputed", "changed"]) for (const node of run[name]) mark(node, name);
    if (run) for (const node of Object.keys(run.destroyed)) if (!fate[rowOf.get(node)]) mark(node, "destroyed");
    if (!run) for (let i = 0; i < count; i++) fate[i] = FATES.indexOf(lookOf(i));
    drawn = null;
    legend();
    list();
    draw();
  }
  function mark(node, name) { const i = rowOf.get(node); if (i !== undefined) fate[i] = FATES.indexOf(name); }

  // --- events -------------------------------------------------------------------------------------

  const rowAt = (event) => raster.pick(event.offsetX - camera.box.left, event.offsetY - camera.box.top, globalThis.devicePixelRatio || 1);
  let press = null;
  dispose.push(camera.attach(canvas, draw, (event) => { press = { x: event.offsetX, y: event.offsetY }; return null; }));
  canvas.addEventListener("click", (event) => {
    if (press && Math.hypot(event.offsetX - press.x, event.offsetY - press.y) > 4) return;
    const i = rowAt(event);
    chosen.choose(i >= 0 ? [data.name[i]] : []);
  });
  canvas.addEventListener("pointermove", (event) => {
    const i = event.buttons ? hovered : rowAt(event);
    if (i === hovered) return;
    hovered = i;
    if (i >= 0) seen.textContent = describe(i);
    draw();
  });
  canvas.addEventListener("pointerleave", () => { hovered = -1; draw(); });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (camera.key(event)) draw();
    else if (by) { event.preventDefault(); chosen.choose([data.name[Math.min(Math.max(selected() + by, 0), count - 1)]]); }
    else if (event.key === "/") { event.preventDefault(); search.focus(); }
    else if (event.key === "Escape") chosen.choose([]);
  });
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    shown = wanted ? Uint8Array.from(data.name, (name) => (name.toLowerCase().includes(wanted) ? 1 : 0)) : null;
    drawn = null;
    draw();
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !shown) return;
    const i = shown.indexOf(1);
    if (i >= 0) { chosen.choose([data.name[i]]); canvas.focus(); }
  });
  classes.addEventListener("change", () => chosen.during(classes.value));
  listen(model, "change:selected", () => { list(); draw(); }, dispose);
  listen(model, "change:bucket", ofRun, dispose);
  seenRun(null);
  if (chosen.bucket) ofRun();
});
