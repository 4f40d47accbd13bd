// One node's tensor: a plane of it, with what a run did to each element.
import { ask, columns, fitted, framed, listen, make, refill, theme, view } from "./common.js";

const ORDER = ["valid", "reused", "stale", "computed", "dirty", "needed"];
const LOOK = {
  valid: { fill: "good", alpha: 0.28 }, reused: { fill: "good", alpha: 0.55 },
  stale: { fill: "scratch", alpha: 0.5 }, computed: { fill: "bad", alpha: 1 },
  dirty: { line: "slice", dash: [5, 3] }, needed: { line: "input", dash: [] }, known: { fill: "soft", alpha: 0.35 },
};
const MARGIN = { left: 52, top: 8, right: 12, bottom: 20 };

export default view((model, root, dispose) => {
  const hidden = new Set();
  let data = {}, facts = {}, plane = { rows: -1, columns: -1, at: [] };

  const runs = make("select", { "aria-label": "class of runs", onchange: () => show({ run: runs.value }) });
  const nodes = make("select", { "aria-label": "node", onchange: () => show({ node: nodes.value }) });
  const head = make("strong"), dims = make("div", { class: "tg-bar" });
  const canvas = make("canvas", { style: "height:300px", tabindex: 0, role: "img" });
  const legend = make("ul", { class: "tg-legend" }), seen = make("p", { class: "tg-seen", "aria-live": "polite" });
  root.append(make("div", { class: "tg-bar" }, make("label", {}, "run", runs), make("label", {}, "node", nodes), head), dims, canvas, legend, seen);

  const size = fitted(canvas, () => draw(), dispose);
  const draw = framed(paint);
  const look = theme(root, () => { keys(); draw(); }, dispose);
  const show = (request) => ask(model, "show", request).catch((error) => { seen.textContent = error.message; });

  function load() {
    data = columns(model.get("data"));
    facts = model.get("facts");
    plane = { rows: facts.rows, columns: facts.columns, at: [...facts.at] };
    options(runs, facts.runs, facts.run);
    options(nodes, facts.names.includes(facts.node) ? facts.names : [facts.node, ...facts.names], facts.node);
    head.textContent = `${facts.node}: ${facts.type}`;
    canvas.setAttribute("aria-label", model.get("label"));
    dimensions();
    keys();
    draw();
  }

  function options(list, names, value) {
    list.replaceChildren(...names.map((name) => make("option", { value: name, selected: name === value }, name)));
  }

  // Two dimensions are drawn, every other one has a slider.
  function dimensions() {
    const shape = [...data.shape], axis = (which) => {
      const list = make("select", { "aria-label": which, onchange: () => { turn(which, Number(list.value)); } },
        ...shape.map((size, i) => make("option", { value: i, selected: plane[which] === i }, `${i} (${size})`)));
      return make("label", {}, which, list);
    };
    const others = shape.map((size, i) => {
      if (i === plane.rows || i === plane.columns || size === 1) return null;
      const told = make("span", { class: "tg-soft" }, String(plane.at[i]));
      const slider = make("input", { type: "range", min: 0, max: size - 1, value: plane.at[i], "aria-label": `index of dimension ${i}`,
        oninput: () => { plane.at[i] = Number(slider.value); told.textContent = slider.value; draw(); } });
      return make("label", {}, `dimension ${i}`, slider, told);
    });
    refill(dims, ...(shape.length > 2 ? [axis("rows"), axis("columns")] : []), ...others.filter(Boolean));
  }

  function turn(which, axis) {
    const other = which === "rows" ? "columns" : "rows";
    if (plane[other] === axis) plane[other] = plane[which];
    plane[which] = axis;
    dimensions();
    draw();
  }

  function present() {
    const kinds = ORDER.filter((kind) => data.kind.includes(facts.kinds.indexOf(kind)));
    return data.open.some((flag) => !flag) ? [...kinds, "known"] : kinds;
  }

  function keys() {
    if (!data.kind) return;
    const counts = Object.fromEntries((facts.words ?? []).map(([kind, count]) => [kind, count]));
    refill(legend, ...present().map((kind) => {
      const { fill, line } = LOOK[kind];
      const style = fill ? `background:var(--tg-${fill});opacity:${LOOK[kind].alpha}` : `border:2px ${LOOK[kind].dash.length ? "dashed" : "solid"} var(--tg-${line})`;
      const box = make("input", { type: "checkbox", checked: !hidden.has(kind), onchange: () => {
        if (box.checked) hidden.delete(kind); else hidden.add(kind);
        draw();
      } });
      return make("li", { title: facts.meanings[kind] ?? "follows from constants alone" },
        make("label", {}, box, make("i", { style }), `${kind} ${counts[kind] ?? ""}`));
    }));
  }

  const count = (axis) => (axis < 0 ? 1 : data.shape[axis]);
  function frame(width, height) {
    const wide = width - MARGIN.left - MARGIN.right, high = height - MARGIN.top - MARGIN.bottom;
    return { across: Math.min(wide / count(plane.columns), 60), down: Math.min(high / count(plane.rows), 60) };
  }

  // [row start, row stop, column start, column stop] of a box in the plane; null if it is elsewhere.
  function crossing(b) {
    const rank = data.shape.length, from = (axis) => data.box[2 * (b * rank + axis)], to = (axis) => data.box[2 * (b * rank + axis) + 1];
    for (let axis = 0; axis < rank; axis++) {
      if (axis !== plane.rows && axis !== plane.columns && !(from(axis) <= plane.at[axis] && plane.at[axis] < to(axis))) return null;
    }
    return [plane.rows < 0 ? 0 : from(plane.rows), plane.rows < 0 ? 1 : to(plane.rows),
      plane.columns < 0 ? 0 : from(plane.columns), plane.columns < 0 ? 1 : to(plane.columns)];
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
    if (!canvas.clientWidth || !data.shape) return;
    const { pen, width, height } = size(), { across, down } = frame(width, height);
    pen.clearRect(0, 0, width, height);
    const rows = count(plane.rows), wide = count(plane.columns);
    if (!hidden.has("known") && data.open.some((flag) => !flag)) known(pen, rows, wide, across, down);
    for (const kind of ORDER) {
      if (hidden.has(kind)) continue;
      const number = facts.kinds.indexOf(kind), { fill, alpha, line, dash } = LOOK[kind];
      for (let b = 0; b < data.kind.length; b++) {
        const span = data.kind[b] === number ? crossing(b) : null;
        if (!span) continue;
        const at = [MARGIN.left + span[2] * across, MARGIN.top + span[0] * down,
          Math.max((span[3] - span[2]) * across, 1), Math.max((span[1] - span[0]) * down, 1)];
        if (fill) { pen.globalAlpha = alpha; pen.fillStyle = look.colour(fill); pen.fillRect(...at); pen.globalAlpha = 1; }
        else { pen.setLineDash(dash); pen.lineWidth = 2; pen.strokeStyle = look.colour(line); pen.strokeRect(...at); pen.setLineDash([]); }
      }
    }
    pen.lineWidth = 1;
    pen.strokeStyle = look.colour("soft");
    pen.strokeRect(MARGIN.left - 0.5, MARGIN.top - 0.5, wide * across + 1, rows * down + 1);
    pen.fillStyle = look.colour("soft");
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.fillText("0", MARGIN.left - 6, MARGIN.top + 9);
    pen.fillText(String(rows), MARGIN.left - 6, MARGIN.top + rows * down);
    pen.textAlign = "left";
    pen.fillText(`dimension ${Math.max(plane.columns, 0)} → ${wide}`, MARGIN.left, MARGIN.top + rows * down + 15);
  }

  function known(pen, rows, wide, across, down) {
    pen.fillStyle = look.colour("soft");
    pen.globalAlpha = LOOK.known.alpha;
    const stepRow = Math.max(1, Math.floor(1 / down)), stepColumn = Math.max(1, Math.floor(1 / across));
    for (let row = 0; row < rows; row += stepRow) {
      let from = -1;
      for (let column = 0; column <= wide; column += stepColumn) {
        const is = column < wide && isKnown(row, column);
        if (is && from < 0) from = column;
        if (!is && from >= 0) {
          pen.fillRect(MARGIN.left + from * across, MARGIN.top + row * down, (column - from) * across, Math.max(down * stepRow, 1));
          from = -1;
        }
      }
    }
    pen.globalAlpha = 1;
  }

  canvas.addEventListener("pointermove", (event) => {
    const { across, down } = frame(canvas.clientWidth, canvas.clientHeight);
    const row = Math.floor((event.offsetY - MARGIN.top) / down), column = Math.floor((event.offsetX - MARGIN.left) / across);
    if (row < 0 || column < 0 || row >= count(plane.rows) || column >= count(plane.columns)) return;
    const kinds = ORDER.filter((kind) => [...data.kind.keys()].some((b) => {
      const span = data.kind[b] === facts.kinds.indexOf(kind) ? crossing(b) : null;
      return span && span[0] <= row && row < span[1] && span[2] <= column && column < span[3];
    }));
    if (isKnown(row, column)) kinds.push("known");
    const at = [...plane.at];
    if (plane.rows >= 0) at[plane.rows] = row;
    if (plane.columns >= 0) at[plane.columns] = column;
    seen.textContent = `${facts.node}[${at.join(", ")}]: ${kinds.join(", ") || "untouched"}`;
  });

  listen(model, "change:data change:facts", framed(load), dispose);
  load();
});
