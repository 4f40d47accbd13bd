// Which class of runs follows which: a table of buttons, shaded by how likely each pair is.
import { columns, duration, listen, make, selection, theme, view } from "./common.js";

const MOST = 40; // classes; the rarest are left out

export default view((model, root, dispose) => {
  theme(root, () => {}, dispose);
  const chosen = selection(model), data = columns(model.get("data")), facts = model.get("facts");
  if (!data.class?.length) {
    root.append(make("p", { class: "tg-empty" }, "Nothing ran yet: run the session, and show this again."));
    return;
  }
  const order = [...data.class.keys()].sort((a, b) => data.times[b] - data.times[a]).slice(0, MOST).sort((a, b) => a - b);
  const seen = make("p", { class: "tg-seen", "aria-live": "polite" });
  const shows = {
    probability: (c) => `${Math.round(100 * data.probability[c])}%`, count: (c) => String(data.count[c]), "mean time": (c) => duration(data.mean[c]),
  };
  const what = make("select", { "aria-label": "what a cell tells", onchange: fill }, ...Object.keys(shows).map((name) => make("option", {}, name)));
  const cell = new Map(data.before ? [...data.before.keys()].map((c) => [`${data.before[c]} ${data.after[c]}`, c]) : []);
  const buttons = [], heads = [];

  function choose(kind, words) { chosen.during(data.class[kind]); seen.textContent = words; }
  const head = (kind) => {
    const made = make("button", { type: "button", class: "tg-class", onclick: () => choose(kind, `${data.class[kind]}: ${data.times[kind]} times`) }, data.class[kind]);
    heads.push([kind, made]);
    return make("th", { scope: "row" }, make("span", { class: "tg-soft" }, `${order.indexOf(kind)} `), made);
  };
  const square = (before, after) => {
    const c = cell.get(`${before} ${after}`);
    if (c === undefined) return make("td", {}, "");
    const made = make("button", { type: "button", class: "tg-heat", "aria-label": `${data.class[after]} after ${data.class[before]}: ${data.count[c]} times`,
      style: `--tg-share:${Math.round(8 + 72 * data.probability[c])}%`, onclick: () => choose(after, told(c)) });
    buttons.push([c, made]);
    return make("td", {}, made);
  };
  const told = (c) => `${data.count[c]} times, ${Math.round(100 * data.probability[c])}% of what followed; mean ${duration(data.mean[c])}, ` +
    `${Math.round(100 * data.hits[c])}% found their program; for example ${data.example[c]}`;

  const rows = order.map((before) => make("tr", {}, head(before), make("td", { class: "tg-soft" }, `${data.times[before]} ×`),
    ...(facts.has_order ? order.map((after) => square(before, after)) : [])));
  root.append(
    make("div", { class: "tg-bar" }, facts.has_order ? make("label", {}, "cells tell", what) : "A plan knows how often each class came, and not in which order."),
    make("div", { class: "tg-scroll" }, make("table", { class: "tg-matrix" },
      make("tr", {}, make("th", {}, "class ↓"), make("th", {}, "runs"), ...(facts.has_order ? order.map((_, i) => make("th", { scope: "col" }, `→ ${i}`)) : [])), ...rows)),
    data.class.length > MOST ? make("p", { class: "tg-soft" }, `${data.class.length - MOST} rarer classes are left out`) : "", seen);

  function fill() { buttons.forEach(([c, made]) => { made.textContent = shows[what.value || "probability"](c); }); }
  function mark() { heads.forEach(([kind, made]) => made.setAttribute("aria-pressed", String(data.class[kind] === chosen.bucket))); }
  listen(model, "change:bucket", mark, dispose);
  fill();
  mark();
});
