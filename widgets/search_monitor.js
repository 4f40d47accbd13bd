// A search as it goes: best so far and bound over time; stop, resume, fork, another budget.
import { ask, bytes, columns, duration, fitted, framed, listen, make, theme, view } from "./common.js";

const MARGIN = { left: 70, right: 12, top: 10, bottom: 22 };

export default view((model, root, dispose) => {
  let facts = model.get("facts"), data = {};
  const button = (name, title, what) => make("button", { type: "button", title, onclick: () => say(what) }, name);
  const start = button("start", "search in the background", "start"), stop = button("stop", "end it, and put the best plan in force", "stop");
  const fork = button("fork", "go on from the best plan with another seed", "fork");
  const state = make("span", { class: "tg-state", role: "status" }), tiles = make("div", { class: "tg-tiles" });
  const canvas = make("canvas", { style: "height:200px", role: "img" }), seen = make("p", { class: "tg-seen", "aria-live": "polite" });
  const told = make("output", {}), slider = make("input", { type: "range", min: 0, max: 100, "aria-label": "memory budget" });
  const budget = make("label", { class: "tg-budget" }, "budget", slider, told);
  root.append(make("div", { class: "tg-bar" }, start, stop, fork, state, make("span", { class: "tg-grow" }), budget), tiles, canvas, seen);

  const size = fitted(canvas, () => draw(), dispose);
  const draw = framed(paint);
  const look = theme(root, () => draw(), dispose);
  const say = (what, request = {}) => {
    seen.textContent = "";
    return ask(model, what, request).catch((error) => { seen.textContent = error.message; });
  };

  // Budgets lie evenly on a logarithmic scale.
  const chosenBytes = () => Math.round(facts.least * (facts.most / facts.least) ** (slider.value / 100));
  slider.addEventListener("input", () => { told.textContent = bytes(chosenBytes()); });
  slider.addEventListener("change", () => say("budget", { bytes: chosenBytes() }));

  function load() {
    facts = model.get("facts");
    data = columns(model.get("data"));
    start.hidden = facts.is_running;
    start.textContent = facts.is_new ? "start" : "resume";
    stop.disabled = !facts.is_running;
    fork.disabled = facts.is_new;
    state.textContent = facts.is_running ? facts.message || "starting" : facts.state;
    const gap = facts.bound ? `${(100 * Math.max(facts.best / facts.bound - 1, 0)).toFixed(1)} %` : "–";
    tiles.replaceChildren(...[
      ["best so far", facts.best ? duration(facts.best) : "–"], ["bound", facts.bound ? duration(facts.bound) : "–"],
      ["gap", gap], ["steps", String(facts.step)], ["steps a second", facts.rate ? facts.rate.toFixed(1) : "–"],
    ].map(([name, value]) => make("div", {}, make("span", { class: "tg-soft" }, name), make("b", {}, value))));
    budget.hidden = !facts.most;
    if (facts.most && document.activeElement !== slider) {
      const now = facts.budget || facts.most;
      slider.value = (100 * Math.log(Math.min(Math.max(now, facts.least), facts.most) / facts.least)) / Math.log(facts.most / facts.least || 1);
      told.textContent = facts.budget ? bytes(facts.budget) : "none";
    }
    canvas.setAttribute("aria-label", model.get("label"));
    canvas.style.display = facts.is_running || data.seconds?.length ? "block" : "none";
    draw();
  }

  function paint() {
    if (!canvas.clientWidth) return;
    const { pen, width, height } = size(), { seconds = [], best = [], bound = [] } = data;
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = look.colour("soft");
    if (!seconds.length) { pen.fillText(facts.is_running ? "the first plan is on its way" : "no plan yet", MARGIN.left, height / 2); return; }
    const known = [...best, ...bound].filter((ns) => ns > 0), low = Math.min(...known), high = Math.max(...known);
    const room = (high - low) * 0.08 || high * 0.05, y0 = low - room, y1 = high + room, x1 = Math.max(seconds[seconds.length - 1], 1);
    const x = (s) => MARGIN.left + (s / x1) * (width - MARGIN.left - MARGIN.right);
    const y = (ns) => height - MARGIN.bottom - ((ns - y0) / (y1 - y0)) * (height - MARGIN.top - MARGIN.bottom);
    pen.strokeStyle = look.colour("line");
    pen.textAlign = "right";
    for (const ns of [low, (low + high) / 2, high]) {
      pen.beginPath(); pen.moveTo(MARGIN.left, y(ns)); pen.lineTo(width - MARGIN.right, y(ns)); pen.stroke();
      pen.fillText(duration(ns), MARGIN.left - 6, y(ns) + 4);
      if (high === low) break;
    }
    pen.fillText(`${x1.toFixed(1)} s`, width - MARGIN.right, height - 6);
    pen.textAlign = "left";
    pen.fillText("0 s", MARGIN.left, height - 6);
    steps(pen, seconds, bound, x, y, "bad", [5, 3]);
    steps(pen, seconds, best, x, y, "mark", []);
    pen.fillStyle = look.colour("mark"); pen.fillText("best so far", MARGIN.left + 60, height - 6);
    if (bound.some(Boolean)) { pen.fillStyle = look.colour("bad"); pen.fillText("bound (dashed)", MARGIN.left + 140, height - 6); }
  }

  function steps(pen, seconds, values, x, y, colour, dash) {
    pen.strokeStyle = look.colour(colour);
    pen.lineWidth = 2;
    pen.setLineDash(dash);
    pen.beginPath();
    let before = null;
    values.forEach((ns, i) => {
      if (!ns) return;
      if (before === null) pen.moveTo(x(seconds[i]), y(ns)); else { pen.lineTo(x(seconds[i]), y(before)); pen.lineTo(x(seconds[i]), y(ns)); }
      before = ns;
    });
    pen.stroke();
    pen.setLineDash([]);
    pen.lineWidth = 1;
  }

  listen(model, "change:data change:facts", framed(load), dispose);
  load();
});
