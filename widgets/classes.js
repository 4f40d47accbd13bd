// Classes of runs: what each changes, how often it came, and which follows which; a click picks the run that is shown.
import { counted, duration, make, refill } from "./common.js";

const MOST_CLASSES = 40; // the rarest are left out

export function classesPanel(scene, place) {
  const list = make("div", { class: "tg-scroll" });
  place.append(list);

  function draw() {
    const data = scene.data.classes;
    if (!data) { list.replaceChildren(make("p", { class: "tg-empty" }, "Nothing ran yet: run the session.")); return; }
    const { facts } = data, order = [...data.class.keys()].sort((a, b) => data.times[b] - data.times[a]).slice(0, MOST_CLASSES);
    const cell = new Map([...data.before.keys()].map((c) => [`${data.before[c]} ${data.after[c]}`, c]));
    const isNow = (kind) => data.class[kind] === facts.at_hand;
    const head = (kind) => make("th", { scope: "row", class: "tg-what-changes" }, make("button", {
      type: "button", class: "tg-class", "aria-pressed": String(isNow(kind)), title: data.class[kind], onclick: () => choose(kind, `${data.class[kind]}: ${data.times[kind]} ×`),
    }, make("span", {}, data.words[kind] || data.class[kind]), make("span", { class: "tg-soft" }, data.class[kind])));
    const told = (c) => `${data.words[data.after[c]]} after ${data.words[data.before[c]]}: ${data.count[c]} ×, ${Math.round(100 * data.probability[c])}% of what followed; mean ${duration(data.mean[c])}, ` +
      `${Math.round(100 * data.hits[c])}% found their program; for example ${data.example[c]}`;
    const square = (before, after) => {
      const c = cell.get(`${before} ${after}`);
      if (c === undefined) return make("td", {}, "");
      return make("td", {}, make("button", { type: "button", class: "tg-heat", title: told(c), style: `--tg-share:${Math.round(8 + 72 * data.probability[c])}%`, onclick: () => choose(after, told(c)) },
        `${Math.round(100 * data.probability[c])}%`));
    };
    const means = data.class_mean ?? [], isTimed = means.length > 0; // a plan's classes are not
    const rows = order.map((before, i) => make("tr", {}, make("td", { class: "tg-soft" }, String.fromCharCode(65 + (i % 26))), head(before), make("td", {}, `${data.times[before]} ×`),
      ...(isTimed ? [make("td", {}, means[before] > 0 ? duration(means[before]) : "–")] : []), ...(facts.has_order ? order.map((after) => square(before, after)) : [])));
    const title = make("tr", {}, make("th"), make("th", {}, "what a run changes"), make("th", {}, "runs"),
      ...(isTimed ? [make("th", { title: "how long such runs took, with plans and programs that were made in them" }, "mean")] : []),
      ...(facts.has_order ? order.map((_, i) => make("th", { scope: "col", title: "came next" }, `→ ${String.fromCharCode(65 + (i % 26))}`)) : []));
    const alone = facts.alone.length ? make("label", { class: "tg-alone" }, "or if only this is new", make("select", { "aria-label": "only one input is new", onchange: (event) => event.target.value && scene.during(event.target.value) },
      make("option", { value: "" }, "…"), ...facts.alone.map((name) => make("option", { value: name, selected: name === facts.at_hand }, name.replace(/^only /, ""))))) : null;
    refill(list, make("table", { class: "tg-matrix" }, title, ...rows), ...(alone ? [alone] : []),
      ...(data.class.length > MOST_CLASSES ? [make("p", { class: "tg-soft" }, `${counted(data.class.length - MOST_CLASSES, "rarer kind")} left out`)] : []));
  }
  function choose(kind, words) { scene.during(scene.data.classes.class[kind]); scene.say(words); }

  scene.on("classes", draw);
  draw();
}
