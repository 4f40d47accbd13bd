// Draws the memory maps: steps to the right, offsets upwards. Values come from #timelines.
"use strict";
for (const [number, data] of JSON.parse(document.getElementById("timelines").textContent).entries()) {
  if (data) timeline(number, data);
}

function timeline(number, data) {
  const figure = document.querySelector(`[data-timeline="${number}"]`);
  const canvas = figure.querySelector("canvas");
  const seen = document.querySelector(`[data-seen="${number}"]`);
  const controls = document.querySelector(`[data-run="${number}"]`).closest(".controls");
  const pen = canvas.getContext("2d");
  // The budget is drawn where it leaves the map large enough to read.
  const hasBudget = data.budget_bytes && data.budget_bytes <= 1.6 * data.size_bytes;
  const top = () => (Math.max(data.size_bytes, hasBudget ? data.budget_bytes : 0) || 1) * 1.06;
  const count = data.name.length;
  const every = { x0: 0, x1: data.steps, y0: 0, y1: top() };
  const margin = { left: 76, right: 10, top: 10, bottom: 26 };
  let view = { ...every };
  let computed = null; // indices that the chosen run computes, or null for all
  let selected = -1;
  canvas.hidden = controls.hidden = false;

  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    return new Proxy({}, { get: (_, name) => style.getPropertyValue(`--tg-${name}`).trim() });
  };
  const plot = () => ({
    width: canvas.clientWidth - margin.left - margin.right,
    height: canvas.clientHeight - margin.top - margin.bottom,
  });
  const toX = (step) => margin.left + ((step - view.x0) / (view.x1 - view.x0)) * plot().width;
  const toY = (bytes) => margin.top + (1 - (bytes - view.y0) / (view.y1 - view.y0)) * plot().height;
  const stepAt = (x) => view.x0 + ((x - margin.left) / plot().width) * (view.x1 - view.x0);
  const bytesAt = (y) => view.y0 + (1 - (y - margin.top) / plot().height) * (view.y1 - view.y0);

  function size(bytes) {
    for (const [unit, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
      if (bytes >= unit) return `${Number((bytes / unit).toPrecision(4))} ${name}`;
    }
    return `${Math.round(bytes)} B`;
  }

  function describe(i) {
    const kind = data.kinds[data.kind[i]];
    const when = kind === "input" || kind === "retained" ? "always" : kind === "partial" ? "always, while it is there" : data.start[i] === data.stop[i] - 1 ? `step ${data.start[i]}` : `steps ${data.start[i]} to ${data.stop[i] - 1}`;
    const shared = data.group[i] !== data.name[i] && kind === "slice" ? `, bytes taken over from ${data.group[i]}` : "";
    const runs = Object.entries(data.computed).filter(([, nodes]) => nodes.includes(i)).map(([run]) => run);
    const where = runs.length ? `; computed in: ${runs.join(", ")}` : "";
    return `${data.name[i]}: ${kind}, ${size(data.size[i])} at offset ${data.offset[i]}, ${when}${shared} (${data.detail[i]})${where}`;
  }

  function draw() {
    const scale = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = canvas.clientHeight * scale;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    const colour = colours();
    const { width, height } = plot();
    pen.font = "11px system-ui, sans-serif";
    pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    axes(colour, width, height);
    pen.save();
    pen.beginPath();
    pen.rect(margin.left, margin.top, width, height);
    pen.clip();
    for (let i = 0; i < count; i++) rectangle(i, colour);
    const arena = `arena ${size(data.size_bytes)}`, isClose = hasBudget && toY(data.size_bytes) - toY(data.budget_bytes) < 32;
    level(data.size_bytes, arena, colour.ink, [], isClose ? 12 : -4);
    if (hasBudget) level(data.budget_bytes, `budget ${size(data.budget_bytes)}`, colour.b, [6, 3], isClose ? -4 : 12);
    live(colour.ink);
    retained();
    pen.restore();
  }

  function rectangle(i, colour) {
    const x = toX(data.start[i]), y = toY(data.offset[i] + data.size[i]);
    const w = Math.max(toX(data.stop[i]) - x, 0.6), h = Math.max(toY(data.offset[i]) - y, 0.6);
    if (x > canvas.clientWidth || x + w < 0 || y > canvas.clientHeight || y + h < 0) return;
    const kind = data.kinds[data.kind[i]];
    pen.fillStyle = colour[kind];
    pen.globalAlpha = i === selected ? 1 : computed && !computed.has(i) ? 0.13 : 0.85;
    pen.fillRect(x, y, w, h);
    if (w > 4 && h > 4) {
      pen.strokeStyle = colour.ink;
      pen.globalAlpha = i === selected ? 1 : 0.25;
      pen.lineWidth = i === selected ? 2 : 0.5;
      pen.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    }
    pen.globalAlpha = 1;
    if (h > 13 && w > 40) {
      pen.fillStyle = "#0b0f14";
      const left = Math.max(x, margin.left) + 4;
      const room = Math.min(x + w, canvas.clientWidth - margin.right) - left - 4;
      const parts = data.name[i].split(".");  // its last parts, as many as fit
      const ends = parts.map((_, k) => parts.slice(k).join("."));
      const text = ends.find((end) => pen.measureText(end).width <= room);
      if (text && room > 24) pen.fillText(text, left, Math.max(y, margin.top) + Math.min(h / 2 + 4, 14));
    }
  }

  function axes(colour, width, height) {
    pen.fillStyle = colour.soft;
    pen.strokeStyle = colour.line;
    pen.lineWidth = 1;
    const span = view.y1 - view.y0;
    const apart = 2 ** Math.max(Math.ceil(Math.log2(span / 7)), 0);
    for (let bytes = Math.ceil(view.y0 / apart) * apart; bytes <= view.y1; bytes += apart) {
      const y = toY(bytes);
      pen.beginPath(); pen.moveTo(margin.left, y); pen.lineTo(margin.left + width, y); pen.stroke();
      pen.textAlign = "right";
      pen.fillText(size(bytes), margin.left - 6, y + 4);
    }
    for (const step of round(view.x0, view.x1, 8)) {
      pen.textAlign = "center";
      pen.fillText(step === 0 ? "step 0" : String(step), Math.max(toX(step), margin.left + 12), margin.top + height + 16);
    }
    pen.textAlign = "left";
  }

  function round(from, to, wanted) {
    const rough = (to - from) / wanted;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max([1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough), 1);
    const found = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
    return found;
  }

  function level(bytes, words, colour, dash, below) {
    const y = toY(bytes);
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = 1.2;
    pen.setLineDash(dash);
    pen.beginPath(); pen.moveTo(margin.left, y); pen.lineTo(canvas.clientWidth, y); pen.stroke();
    pen.setLineDash([]);
    pen.textAlign = "right";
    pen.strokeStyle = colours()["paper"];
    pen.lineWidth = 3;
    pen.strokeText(words, canvas.clientWidth - margin.right - 6, y + below);
    pen.fillText(words, canvas.clientWidth - margin.right - 6, y + below);
    pen.textAlign = "left";
  }

  function live(colour) {
    pen.strokeStyle = colour;
    pen.lineWidth = 1;
    pen.globalAlpha = 0.6;
    pen.beginPath();
    data.live.forEach((bytes, step) => {
      pen.lineTo(toX(step), toY(bytes));
      pen.lineTo(toX(step + 1), toY(bytes));
    });
    pen.stroke();
    pen.globalAlpha = 1;
  }

  // Where the retained rectangles are too thin for names, one label for all of them.
  function retained() {
    const kept = [...Array(count).keys()].filter((i) => data.kinds[data.kind[i]] === "retained");
    const low = Math.min(...kept.map((i) => data.offset[i]));
    const high = Math.max(...kept.map((i) => data.offset[i] + data.size[i]));
    const thickest = Math.max(...kept.map((i) => toY(data.offset[i]) - toY(data.offset[i] + data.size[i])));
    const bottom = Math.min(toY(low), margin.top + plot().height), top = Math.max(toY(high), margin.top);
    if (!kept.length || thickest > 13 || bottom - top < 20) return;
    pen.fillStyle = "#0b0f14";
    pen.font = "600 13px system-ui, sans-serif";
    pen.fillText(`retained: ${kept.length} values, ${size(high - low)}`, margin.left + 10, (top + bottom) / 2 + 5);
    pen.font = "11px system-ui, sans-serif";
  }

  function pick(x, y) {
    const step = Math.floor(stepAt(x)), bytes = bytesAt(y);
    let best = -1;
    for (let i = 0; i < count; i++) {
      const inside = data.start[i] <= step && step < data.stop[i] && data.offset[i] <= bytes && bytes < data.offset[i] + data.size[i];
      if (inside && (best < 0 || !computed || computed.has(i))) best = i;
    }
    return best;
  }

  let from = null;
  canvas.addEventListener("pointerdown", (event) => {
    from = { x: event.offsetX, y: event.offsetY, view: { ...view } };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => (from = null));
  canvas.addEventListener("pointermove", (event) => {
    if (from) {
      const { width, height } = plot();
      const dx = ((event.offsetX - from.x) / width) * (view.x1 - view.x0);
      const dy = ((event.offsetY - from.y) / height) * (view.y1 - view.y0);
      show({ x0: from.view.x0 - dx, x1: from.view.x1 - dx, y0: from.view.y0 + dy, y1: from.view.y1 + dy });
      return;
    }
    const found = pick(event.offsetX, event.offsetY);
    if (found === selected) return;
    selected = found;
    if (found >= 0) seen.textContent = describe(found);
    draw();
  });
  canvas.addEventListener("wheel", (event) => { // alone it is the page's
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const factor = Math.exp(event.deltaY * 0.0015);
    const x = stepAt(event.offsetX), y = bytesAt(event.offsetY);
    show({
      x0: x - (x - view.x0) * factor, x1: x + (view.x1 - x) * factor,
      y0: y - (y - view.y0) * factor, y1: y + (view.y1 - y) * factor,
    });
  }, { passive: false });

  function show(next) {
    const width = Math.min(Math.max(next.x1 - next.x0, 4), every.x1);
    const height = Math.min(Math.max(next.y1 - next.y0, 64), every.y1);
    const x0 = Math.min(Math.max(next.x0, 0), every.x1 - width);
    const y0 = Math.min(Math.max(next.y0, 0), every.y1 - height);
    view = { x0, x1: x0 + width, y0, y1: y0 + height };
    draw();
  }

  controls.addEventListener("click", (event) => {
    const zoom = event.target.dataset.zoom;
    if (zoom === "all") show(every);
    if (zoom === "slices") {
      const shared = [...Array(count).keys()].filter((i) => ["partial", "slice", "scratch"].includes(data.kinds[data.kind[i]]));
      const low = Math.min(...shared.map((i) => data.offset[i]));
      if (shared.length) show({ ...every, y0: low, y1: data.size_bytes * 1.03 });
    }
  });
  controls.querySelector("select").addEventListener("change", (event) => {
    computed = event.target.value ? new Set(data.computed[event.target.value]) : null;
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", draw);
  draw();
}
