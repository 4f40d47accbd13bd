// Time by memory: a point per budget; each opens its plan.
import { ask, bytes, columns, duration, listen, make, theme, view } from "./common.js";

const WIDE = 640, HIGH = 240, MARGIN = { left: 76, right: 24, top: 14, bottom: 32 };
const NAMESPACE = "http://www.w3.org/2000/svg";

export default view((model, root, dispose) => {
  theme(root, () => {}, dispose);
  let open = -1;
  const place = make("div"), words = make("pre", { class: "tg-words", role: "status" });
  const use = make("button", { type: "button", onclick: () => say("use"), disabled: true }, "use this plan");
  const compute = make("button", { type: "button", onclick: () => say("compute") }, "try budgets");
  root.append(place, make("div", { class: "tg-bar" }, use, compute), words);
  const say = (what) => ask(model, what, { point: open }).then((text) => { words.textContent = text; }, (error) => { words.textContent = error.message; });

  function shape(tag, attributes, ...inside) {
    const made = document.createElementNS(NAMESPACE, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...inside);
    return made;
  }

  function load() {
    const facts = model.get("facts"), { size = [], time = [], bound = [], words: names = [] } = columns(model.get("data"));
    use.hidden = !facts.can_use;
    compute.hidden = !facts.can_compute;
    if (!size.length) { place.replaceChildren(make("p", { class: "tg-empty" }, "No budget was tried yet.")); return; }
    const span = (values) => { const low = Math.min(...values), high = Math.max(...values); return [low, high > low ? high : low + 1]; };
    const [x0, x1] = span([...size].map(Math.log)), [y0, y1] = span([...time, ...bound.filter((ns) => ns > 0)]);
    const x = (b) => MARGIN.left + ((Math.log(b) - x0) / (x1 - x0)) * (WIDE - MARGIN.left - MARGIN.right);
    const y = (ns) => HIGH - MARGIN.bottom - ((ns - y0) / (y1 - y0)) * (HIGH - MARGIN.top - MARGIN.bottom);
    const line = (values, colour, dash) => shape("polyline", { fill: "none", stroke: `var(--tg-${colour})`, "stroke-width": 2, "stroke-dasharray": dash,
      points: [...values.keys()].filter((i) => values[i] > 0).map((i) => `${x(size[i])},${y(values[i])}`).join(" ") });
    const text = (at, anchor, said) => shape("text", { x: at[0], y: at[1], "text-anchor": anchor, fill: "var(--tg-soft)", "font-size": 11 }, said);
    const points = [...size.keys()].map((i) => {
      const dot = shape("circle", { cx: x(size[i]), cy: y(time[i]), r: 7, fill: "var(--tg-mark)", tabindex: 0, role: "button", "aria-label": names[i], class: "tg-point" }, shape("title", {}, names[i]));
      const choose = () => { open = i; use.disabled = false; points.forEach((one, k) => one.classList.toggle("tg-open", k === i)); say("open"); };
      dot.addEventListener("click", choose);
      dot.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } });
      return dot;
    });
    place.replaceChildren(shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, style: "width:100%;max-height:280px", role: "group", "aria-label": model.get("label") },
      line(bound, "bad", "5 3"), line(time, "mark", ""),
      text([MARGIN.left - 8, MARGIN.top + 6], "end", duration(y1)), text([MARGIN.left - 8, HIGH - MARGIN.bottom], "end", duration(y0)),
      text([MARGIN.left, HIGH - 8], "start", bytes(Math.exp(x0))), text([WIDE - MARGIN.right, HIGH - 8], "end", bytes(Math.exp(x1))),
      text([WIDE / 2, HIGH - 8], "middle", "bytes of the arena; mean run above, its bound dashed"), ...points));
  }

  listen(model, "change:data change:facts", load, dispose);
  load();
});
