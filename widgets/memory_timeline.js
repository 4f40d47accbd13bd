// The memory timeline: schedule steps to the right, arena offsets upwards, a rectangle per slot.
// What a gesture would do is drawn here at once; whether it may be done, Python says.
import { ask, bytes, Camera, columns, copied, duration, fitted, framed, listen, make, named, refill, selection, shortened, theme, ticks, view } from "./common.js";
import { blend, DIAGONAL, DOTS, LINES, PLAIN, Raster } from "./raster.js";

const ALIGNMENT = 64, MOST_LISTED = 60, MOST_NAMES = 1500, SLOW_MS = 20;
const TEXTURES = { input: PLAIN, retained: LINES, partial: DIAGONAL, slice: PLAIN, scratch: DOTS };
const MARGIN = { left: 74, right: 10, top: 10, bottom: 26 };
const KEYS = "Keys: left and right move through time, up and down choose among what is live, plus and minus zoom, " +
  "shift with arrows moves the picture, / searches, alt with up or down moves the chosen buffer and enter asks whether it may " +
  "lie there, p retains, d drops, u undoes, c copies the changes as Python, escape clears.";

export default view((model, root, dispose) => {
  let facts = model.get("facts"), data = columns(model.get("data"));
  const chosen = selection(model);
  if (!data.name?.length) {
    root.append(make("p", { class: "tg-empty" }, "This plan gives bytes to nothing: there is no memory to draw."));
    return;
  }
  const everything = () => ({ x0: 0, x1: Math.max(facts.steps, 1), y0: 0, y1: tallest() * 1.04 });
  // The budget is drawn where it leaves the map large enough to read.
  const hasBudget = () => facts.budget_bytes && facts.budget_bytes <= 1.6 * facts.size_bytes;
  const tallest = () => Math.max(facts.size_bytes, hasBudget() ? facts.budget_bytes : 0, 1);
  const camera = new Camera(everything(), { width: Math.min(4, facts.steps), height: Math.min(256, tallest()) });
  let raster, rowsOf, top, hovered = -1, moving = null, shown = null, during = null, drawnAt = null, slow = false, settle = 0;

  // --- elements -----------------------------------------------------------------------------------

  const search = make("input", { type: "search", placeholder: "search nodes", "aria-label": "search nodes" });
  const found = make("span", { class: "tg-soft", role: "status" });
  const classes = make("select", { "aria-label": "class of runs" }, make("option", { value: "" }, "any run"),
    ...(facts.classes ?? []).map((kind, i) => make("option", { value: String(i) }, kind)));
  const slider = make("input", { type: "range", min: 0, max: facts.steps - 1, "aria-label": "schedule step" });
  const canvas = make("canvas", { tabindex: 0, role: "application", "aria-label": `${model.get("label")}. ${KEYS}`, style: "height:420px" });
  const side = make("div", { class: "tg-side" });
  const seen = make("p", { class: "tg-seen", "aria-live": "polite" });
  const verdict = make("p", { class: "tg-verdict", role: "status" });
  const act = (name, title, call) => make("button", { type: "button", title, onclick: call }, name);
  const pin = act("retain", "keep it through every run (p)", () => change("pin"));
  const drop = act("drop", "do not keep it between runs (d)", () => change("drop"));
  const undo = act("undo", "take the last change back (u)", () => change("undo"));
  const copy = act("copy as Python", "the changes as code (c)", () => ask(model, "code").then((text) => copied(text, seen), failed));
  const canChange = Boolean(facts.can_change);
  root.append(
    make("div", { class: "tg-bar" }, search, found, make("span", { class: "tg-grow" }),
      facts.classes?.length ? make("label", {}, "during", classes) : null,
      act("what is shared", "zoom to slices and scratch", shared), act("all of it", "the whole arena (0)", () => moved("rest", camera.all())),
      make("span", { class: "tg-soft" }, facts.device)),
    make("div", { class: "tg-columns" }, canvas, side),
    make("div", { class: "tg-bar", style: "margin:6px 0 0" }, make("label", {}, "step", slider),
      act("peak", "to the step with most bytes in use", () => goTo(peak())), make("span", { class: "tg-grow" }),
      ...(canChange ? [pin, drop, undo, copy] : [])),
    seen, verdict, legend());

  function legend() {
    const items = facts.kinds.map((kind, k) => data.kind.includes(k)
      ? make("li", { title: facts.meanings[k] }, make("i", { style: swatch(kind) }), kind) : null);
    return make("ul", { class: "tg-legend" }, ...items, make("li", {}, "line: bytes in use"),
      facts.is_bound ? make("li", {}, "a slice is drawn until its bytes are used again; the graph would tell when it is last read") : null);
  }

  function swatch(kind) {
    const colour = `var(--tg-${kind})`, line = "color-mix(in srgb, #000 35%, transparent)";
    const weave = { retained: `repeating-linear-gradient(0deg,${line} 0 1px,transparent 1px 4px),`, partial: `repeating-linear-gradient(135deg,${line} 0 1px,transparent 1px 4px),`, scratch: `radial-gradient(${line} 1px,transparent 1.2px) 0 0/4px 4px,` }[kind] ?? "";
    return `background:${weave}${colour}`;
  }

  // --- data ---------------------------------------------------------------------------------------

  function load() {
    facts = model.get("facts");
    data = columns(model.get("data"));
    const y1 = data.offset.map((at, i) => at + data.size[i]);
    raster = new Raster({ x0: data.start, x1: data.stop, y0: data.offset, y1, style: data.kind });
    top = y1;
    rowsOf = new Map();
    data.name.forEach((name, i) => { if (!rowsOf.has(name)) rowsOf.set(name, i); });
    camera.every = everything();
    camera.show(camera.view);
    slider.max = facts.steps - 1;
    hovered = -1;
    during = null;
    filter();
  }
  const scratchKind = facts.kinds.indexOf("scratch"), kindOf = (i) => facts.kinds[data.kind[i]];
  const nodeOf = (i) => data.kind[i] === scratchKind ? data.name[i].replace(/ \(scratch\)$/, "") : data.name[i];
  const selectedRow = () => chosen.nodes.length ? rowsOf.get(chosen.nodes[0]) ?? -1 : -1;
  const peak = () => data.live.reduce((best, size, step) => (size > data.live[best] ? step : best), 0);
  const stepAtHand = () => (chosen.step >= 0 && chosen.step < facts.steps ? chosen.step : peak());
  const reads = (i) => data.read.subarray(data.read_first[i], data.read_first[i + 1]);
  const stepName = (step) => data.schedule[step] ?? (step >= facts.steps - 1 ? "the end" : `step ${step}`);

  function describe(i) {
    const kind = kindOf(i), group = data.group[i];
    const when = { input: "always", retained: "always", partial: "always, while it is there" }[kind] ?? `steps ${data.start[i]} to ${data.stop[i] - 1}`;
    const taken = group !== i && kind === "slice" ? `, bytes taken over from ${data.name[group]}` : "";
    return `${data.name[i]}: ${kind}, ${bytes(data.size[i])} at offset ${data.offset[i]}, ${when}${taken} (${data.detail[i]})`;
  }

  // Why a rectangle is alive at a step: the next read, or what keeps it.
  function why(i, step) {
    const next = reads(i).find((at) => at >= step), kind = kindOf(i);
    if (next !== undefined) return `next read at step ${next} by ${stepName(next)}`;
    if (kind === "input") return "its last value is kept for the next run";
    if (kind === "retained") return "kept for later runs";
    if (kind === "partial") return "kept after some runs";
    if (kind === "scratch") return "in use by the kernel of this step";
    return data.stop[i] >= facts.steps && !facts.is_bound ? "handed out at the end" : "not read again";
  }

  // --- drawing ------------------------------------------------------------------------------------

  const colours = theme(root, () => { drawnAt = null; draw(); }, dispose);
  const draw = framed(paint), fit = fitted(canvas, () => { drawnAt = null; draw(); }, dispose);

  function paint() {
    const { pen, scale, width, height } = fit();
    if (!width) return;
    camera.box = { left: MARGIN.left, top: MARGIN.top, width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
    const { left, top: above, width: wide, height: high } = camera.box;
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif";
    axes(pen);
    pen.save();
    pen.beginPath();
    pen.rect(left, above, wide, high);
    pen.clip();
    rectangles(pen, scale);
    level(pen, facts.size_bytes, `arena ${bytes(facts.size_bytes)}`, "ink", [], -4);
    if (hasBudget() && facts.budget_bytes !== facts.size_bytes) level(pen, facts.budget_bytes, `budget ${bytes(facts.budget_bytes)}`, "bad", [6, 3], 12);
    line(pen);
    scrubbed(pen);
    marks(pen);
    pen.restore();
    root.dataset.painted = String(performance.now());
  }

  function rectangles(pen, scale) {
    const { left, top: above, width, height } = camera.box;
    if (slow && settle && drawnAt) { // while it moves, the last picture is moved along
      const v = raster.drawn, x = camera.x(v.x0), y = camera.y(v.y1);
      pen.drawImage(raster.canvas, x, y, camera.x(v.x1) - x, camera.y(v.y0) - y);
      return;
    }
    const key = JSON.stringify([camera.view, width, height, scale]);
    if (drawnAt !== key) {
      const began = performance.now();
      raster.draw(camera, ...styles(), shown ?? during, scale);
      slow = performance.now() - began > SLOW_MS;
      root.dataset.raster = String(performance.now() - began);
      drawnAt = key;
    }
    pen.drawImage(raster.canvas, left, above, width, height);
    names(pen);
  }

  function styles() {
    const paper = colours.rgb("paper"), ink = colours.isDark ? [0, 0, 0] : [20, 24, 30];
    const list = facts.kinds.map((kind) => {
      const fill = blend(colours.rgb(kind), paper, 0.12);
      return { fill, edge: blend(fill, ink, 0.35), texture: TEXTURES[kind] };
    });
    const faded = list.map(({ fill }) => ({ fill: blend(fill, paper, 0.82), edge: blend(fill, paper, 0.7), texture: PLAIN }));
    return [list, faded];
  }

  // Names where they fit; the largest first, so that crowded pictures stay fast.
  function names(pen) {
    const { left, top: above, width, height } = camera.box, v = camera.view;
    const wide = (40 / width) * (v.x1 - v.x0), high = (13 / height) * (v.y1 - v.y0);
    let drawn = 0;
    pen.textBaseline = "alphabetic";
    for (let i = 0; i < data.name.length && drawn < MOST_NAMES; i++) {
      if (data.size[i] < high || data.stop[i] - data.start[i] < wide) continue;
      if (data.stop[i] < v.x0 || data.start[i] > v.x1 || top[i] < v.y0 || data.offset[i] > v.y1) continue;
      const x = Math.max(camera.x(data.start[i]), left) + 4, room = Math.min(camera.x(data.stop[i]), left + width) - x - 4;
      const y = Math.max(camera.y(top[i]), above), tall = Math.min(camera.y(data.offset[i]), above + height) - y;
      if (room < 24 || tall < 12) continue;
      const isFaint = (shown ?? during) && !(shown ?? during)[i];
      pen.fillStyle = isFaint ? colours.colour("soft") : "#0b0f14";
      const text = shortened(pen, data.name[i], room);
      pen.fillText(text, x, y + Math.min(tall / 2 + 4, 14));
      drawn++;
    }
  }

  function axes(pen) {
    const { left, top: above, width, height } = camera.box, v = camera.view;
    pen.fillStyle = colours.colour("soft");
    pen.strokeStyle = colours.colour("line");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    for (const size of ticks(v.y0, v.y1, 7, true)) {
      const y = Math.round(camera.y(size)) + 0.5;
      pen.beginPath(); pen.moveTo(left, y); pen.lineTo(left + width, y); pen.stroke();
      pen.fillText(bytes(size), left - 6, y + 4);
    }
    pen.textAlign = "center";
    for (const step of ticks(v.x0, v.x1, Math.max(width / 90, 2))) {
      pen.fillText(step === 0 ? "step 0" : String(step), Math.min(Math.max(camera.x(step), left + 14), left + width - 10), above + height + 16);
    }
    pen.textAlign = "left";
  }

  function level(pen, size, words, colour, dash, below) {
    const y = camera.y(size), right = camera.box.left + camera.box.width;
    pen.strokeStyle = pen.fillStyle = colours.colour(colour);
    pen.lineWidth = 1.2;
    pen.setLineDash(dash);
    pen.beginPath(); pen.moveTo(camera.box.left, y); pen.lineTo(right, y); pen.stroke();
    pen.setLineDash([]);
    pen.textAlign = "right";
    pen.fillText(words, right - 6, y + below);
    pen.textAlign = "left";
  }

  // Bytes in use; of many steps on one pixel, the largest.
  function line(pen) {
    const { left, width } = camera.box;
    const path = () => {
      pen.beginPath();
      if (facts.steps > 2 * width * ((camera.every.x1) / (camera.view.x1 - camera.view.x0))) return;
      for (let px = 0; px <= width; px++) {
        const a = Math.floor(camera.atX(left + px)), b = Math.max(Math.floor(camera.atX(left + px + 1)), a + 1);
        let most = 0;
        for (let step = Math.max(a, 0); step < Math.min(b, facts.steps); step++) most = Math.max(most, data.live[step]);
        pen.lineTo(left + px, camera.y(most));
      }
    };
    path();
    pen.lineJoin = "round";
    pen.strokeStyle = colours.colour("paper");
    pen.lineWidth = 3.5;
    pen.stroke();
    pen.strokeStyle = colours.colour("ink");
    pen.lineWidth = 1.5;
    pen.stroke();
  }

  function scrubbed(pen) {
    const step = stepAtHand(), x = camera.x(step), wide = Math.max(camera.x(step + 1) - x, 1.5);
    pen.fillStyle = colours.colour("mark");
    pen.globalAlpha = 0.22;
    pen.fillRect(x, camera.box.top, wide, camera.box.height);
    pen.globalAlpha = 1;
  }

  function outline(pen, i, colour, width, up = 0) {
    const x = camera.x(data.start[i]), y = camera.y(top[i] + up);
    const w = Math.max(camera.x(data.stop[i]) - x, 3), h = Math.max(camera.y(data.offset[i] + up) - y, 3);
    pen.strokeStyle = colours.colour("paper");
    pen.lineWidth = width + 2;
    pen.strokeRect(x - 1, y - 1, w + 2, h + 2);
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.strokeRect(x - 1, y - 1, w + 2, h + 2);
  }

  function marks(pen) {
    for (const name of chosen.nodes.slice(0, 200)) {
      const i = rowsOf.get(name);
      if (i !== undefined) outline(pen, i, colours.colour("ink"), 2);
    }
    if (hovered >= 0 && !moving) outline(pen, hovered, colours.colour("mark"), 1.5);
    if (!moving) return;
    for (const i of moving.group) {
      pen.fillStyle = colours.colour(moving.clashes.length ? "bad" : "good");
      pen.globalAlpha = 0.55;
      const y = camera.y(top[i] + moving.up), x = camera.x(data.start[i]);
      pen.fillRect(x, y, Math.max(camera.x(data.stop[i]) - x, 3), Math.max(camera.y(data.offset[i] + moving.up) - y, 3));
      pen.globalAlpha = 1;
      outline(pen, i, colours.colour("ink"), 2, moving.up);
    }
    for (const i of moving.clashes.slice(0, 100)) outline(pen, i, colours.colour("bad"), 2.5);
  }

  // --- what is chosen, searched, at a step --------------------------------------------------------

  function filter() {
    const wanted = search.value.trim().toLowerCase();
    shown = null;
    if (wanted) {
      shown = new Uint8Array(data.name.length);
      let count = 0;
      data.name.forEach((name, i) => { if (name.toLowerCase().includes(wanted)) { shown[i] = 1; count++; } });
      found.textContent = count === 1 ? "1 match" : `${count} matches`;
    } else found.textContent = "";
    drawnAt = null;
    draw();
  }

  // What is live at a step, largest first; bytes that an in-place result takes over count once.
  function liveAt(step) {
    const rows = [], groups = new Set();
    for (let i = 0; i < data.name.length; i++) {
      if (data.start[i] > step || step >= data.stop[i]) continue;
      const owner = data.kind[i] === scratchKind ? -1 - i : data.group[i];
      if (!groups.has(owner)) { groups.add(owner); rows.push(i); }
    }
    return rows.sort((a, b) => data.size[b] - data.size[a] || data.offset[a] - data.offset[b]);
  }

  function list() {
    const step = stepAtHand(), rows = liveAt(step), isPeak = data.live[step] === data.live[peak()];
    slider.value = step;
    slider.setAttribute("aria-valuetext", `step ${step}, ${stepName(step)}`);
    const title = `${bytes(data.live[step])} in use at step ${step}${isPeak ? ", the peak" : ""}`;
    const items = rows.slice(0, MOST_LISTED).map((i) => make("li", {}, make("button", {
      type: "button", title: `${describe(i)}; ${why(i, step)}`, "aria-pressed": String(chosen.nodes.includes(nodeOf(i))),
      onclick: () => choose(i),
    }, named(data.name[i]), make("span", {}, bytes(data.size[i])))));
    const rest = rows.length > MOST_LISTED ? make("p", { class: "tg-soft" }, `and ${rows.length - MOST_LISTED} smaller`) : null;
    refill(side, make("h4", {}, title), make("div", { class: "tg-soft" }, `${stepName(step)}; ${rows.length} live, largest first`),
      make("ol", {}, ...items), ...(rest ? [rest] : []));
  }

  function choose(i) {
    chosen.choose(i >= 0 ? [nodeOf(i)] : []);
    if (i >= 0) seen.textContent = `${describe(i)}; at step ${stepAtHand()}: ${why(i, stepAtHand())}`;
  }
  function goTo(step) {
    chosen.at(Math.min(Math.max(step, 0), facts.steps - 1));
  }
  function selected() {
    const i = selectedRow();
    for (const button of [pin, drop]) button.disabled = i < 0 || kindOf(i) === "input";
    if (i >= 0 && hovered < 0) seen.textContent = `${describe(i)}; at step ${stepAtHand()}: ${why(i, stepAtHand())}`;
    list();
    draw();
  }

  function shared() {
    const kept = new Set(["input", "retained"].map((kind) => facts.kinds.indexOf(kind)));
    let low = Infinity, high = 0;
    data.offset.forEach((at, i) => { if (!kept.has(data.kind[i])) { low = Math.min(low, at); high = Math.max(high, top[i]); } });
    if (high) camera.show({ ...everything(), y0: low, y1: high + 0.03 * (high - low) });
    moved("rest");
  }

  // --- changes ------------------------------------------------------------------------------------

  const groupOf = (i) => [...data.group.keys()].filter((j) => data.group[j] === data.group[i] && data.kind[j] !== scratchKind);

  // What shares bytes with a group moved up by so many bytes while both are live.
  function clashes(group, up) {
    const mine = new Set(group), hit = [];
    for (let j = 0; j < data.name.length; j++) {
      if (mine.has(j)) continue;
      for (const i of group) {
        const together = data.from[i] < data.until[j] && data.from[j] < data.until[i];
        if (together && data.offset[i] + up < top[j] && data.offset[j] < top[i] + up) { hit.push(j); break; }
      }
    }
    return hit;
  }

  function lift(i, up) {
    const group = moving?.row === i ? moving.group : groupOf(i), lowest = Math.min(...group.map((j) => data.offset[j]));
    const by = Math.max(Math.round((lowest + up) / ALIGNMENT) * ALIGNMENT, 0) - lowest;
    if (moving?.row === i && moving.up === by) return;
    moving = { row: i, group, up: by, clashes: clashes(group, by) };
    const names = moving.clashes.slice(0, 5).map((j) => data.name[j]).join(", ");
    const more = moving.clashes.length > 5 ? ` and ${moving.clashes.length - 5} more` : "";
    say(moving.clashes.length ? "no" : "", `${data.name[i]} at offset ${data.offset[i] + by}: ` +
      (moving.clashes.length ? `shares bytes with ${names}${more} while both are live` : "free; let go to ask for the verdict"));
    draw();
  }

  function say(kind, words) {
    verdict.className = `tg-verdict${kind ? ` tg-${kind}` : ""}`;
    verdict.textContent = words;
  }
  const failed = (error) => { moving = null; say("no", error.message); draw(); };

  function change(what, request = {}) {
    const i = selectedRow();
    if (!canChange || (what !== "undo" && i < 0)) return;
    say("", "asking …");
    ask(model, what, { node: i >= 0 ? nodeOf(i) : "", ...request }).then((answer) => {
      moving = null;
      const slower = answer.expected_ns != null ? `; expected ${duration(answer.expected_ns)} a run, ${duration(answer.before_ns)} before` : "";
      say(answer.is_valid ? "yes" : "no", answer.message + slower);
      draw();
    }, failed);
  }
  const release = () => { if (moving) change("move", { offset_bytes: data.offset[moving.row] + moving.up }); };

  // --- events -------------------------------------------------------------------------------------

  function moved(how) {
    clearTimeout(settle);
    settle = how === "pan" || how === "zoom" ? setTimeout(() => { settle = 0; draw(); }, 80) : 0;
    draw();
  }
  const rowAt = (event) => raster.pick(event.offsetX - camera.box.left, event.offsetY - camera.box.top, globalThis.devicePixelRatio || 1);
  let press = null;
  dispose.push(camera.attach(canvas, moved, (event) => {
    press = { x: event.offsetX, y: event.offsetY };
    const i = rowAt(event);
    if (!canChange || i < 0 || i !== selectedRow() || kindOf(i) === "input") return null;
    const from = camera.atY(event.offsetY);
    return {
      move: (now) => lift(i, camera.atY(now.offsetY) - from),
      drop: () => { if (moving && moving.up) release(); else { moving = null; draw(); } },
    };
  }));
  canvas.addEventListener("click", (event) => {
    if (press && Math.hypot(event.offsetX - press.x, event.offsetY - press.y) > 4) return;
    const i = rowAt(event);
    choose(i);
    goTo(Math.floor(camera.atX(event.offsetX)));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons) return;
    const i = rowAt(event);
    if (i === hovered) return;
    hovered = i;
    if (i >= 0) seen.textContent = describe(i);
    canvas.style.cursor = canChange && i >= 0 && i === selectedRow() && kindOf(i) !== "input" ? "ns-resize" : "";
    draw();
  });
  canvas.addEventListener("pointerleave", () => { hovered = -1; draw(); });
  const keys = {
    ArrowLeft: () => goTo(stepAtHand() - 1), ArrowRight: () => goTo(stepAtHand() + 1),
    ArrowUp: () => along(1), ArrowDown: () => along(-1), "/": () => search.focus(),
    Escape: () => { moving = null; search.value = ""; say("", ""); choose(-1); filter(); },
    Enter: () => (moving ? release() : selected()),
    p: () => change("pin"), d: () => change("drop"), u: () => change("undo"), c: () => copy.click(),
  };
  function along(by) { // the next one up or down among what is live
    const rows = liveAt(stepAtHand()).sort((a, b) => data.offset[a] - data.offset[b]);
    const at = rows.findIndex((i) => nodeOf(i) === chosen.nodes[0]);
    if (rows.length) choose(rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + by, 0), rows.length - 1)]);
  }
  canvas.addEventListener("keydown", (event) => {
    const i = selectedRow(), up = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (event.altKey && up && i >= 0 && canChange && kindOf(i) !== "input") {
      event.preventDefault();
      lift(i, (moving?.row === i ? moving.up : 0) + up * Math.max(ALIGNMENT, Math.round((camera.view.y1 - camera.view.y0) / 200 / ALIGNMENT) * ALIGNMENT));
    } else if (camera.key(event)) moved("zoom");
    else if (keys[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); keys[event.key](); }
  });
  search.addEventListener("input", filter);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { search.value = ""; filter(); canvas.focus(); }
    if (event.key === "Enter" && shown) { const i = shown.indexOf(1); if (i >= 0) { choose(i); canvas.focus(); } }
  });
  slider.addEventListener("input", () => goTo(Number(slider.value)));
  classes.addEventListener("change", () => chosen.during(classes.value === "" ? "" : facts.classes[Number(classes.value)]));

  function ofClass() {
    const kind = (facts.classes ?? []).indexOf(chosen.bucket);
    classes.value = kind < 0 ? "" : String(kind);
    during = null;
    drawnAt = null;
    if (kind < 0) { draw(); return; }
    ask(model, "during", { bucket: chosen.bucket }).then(({ names, words }) => {
      const touched = new Set(names);
      during = Uint8Array.from(data.name, (_, i) => (touched.has(nodeOf(i)) ? 1 : 0));
      seen.textContent = words;
      drawnAt = null;
      draw();
    }, failed);
  }

  listen(model, "change:data", () => { load(); selected(); }, dispose);
  listen(model, "change:selected change:step", selected, dispose);
  listen(model, "change:bucket", ofClass, dispose);
  load();
  selected();
  if (chosen.bucket) ofClass();
});
