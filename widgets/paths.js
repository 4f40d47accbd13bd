// Other ways to compute the graph: decisions as lines on a map, and a table that fills what is seen of it, and grows as it is scrolled.
import { framed, make, refill, shape } from "./common.js";

const LINE = 24, BEYOND = 8, APART = 190, DEEP = 34, LEFT = 16, TOP = 40, LETTERS = 22, MOST_LETTERS = 72, LETTER_PIXELS = 8; // of a label with others beside it, and of one without
const WAYS = ["graph", "a run", "more", "measured", "calls", "kept at most", "by"];

const TITLES = { more: "than the first path takes", measured: "the share of its time that stands on measurements of its kernels" };

const cut = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);
const lettered = (text, most, attributes) => shape("text", attributes, cut(text, most), shape("title", {}, text));
const stopAt = (column, row) => [LEFT + column * APART, TOP + row * DEEP];

// The last line is the chosen path; legs that lines share are drawn once.
function railway({ decisions, stops, lines }) {
  const taken = lines.at(-1) ?? [], deep = Math.max(0, ...stops.map(([, row]) => row)) + 1;
  const end = decisions.length - 1, room = (column) => (column === end ? MOST_LETTERS : LETTERS);
  const last = [decisions[end] ?? "", ...stops.filter(([column]) => column === end).map(([, , label]) => label)];
  const beside = Math.min(Math.max(...last.map((text) => text.length)), MOST_LETTERS) * LETTER_PIXELS;
  const wide = LEFT * 2 + APART * end + Math.max(APART, beside), high = TOP + DEEP * deep;
  const legs = new Map(lines.flatMap((line) => line.slice(1).map((row, i) => [`${i} ${line[i]} ${row}`, [i, line[i], row]])));
  const isTaken = ([i, from, to]) => taken[i] === from && taken[i + 1] === to;
  const leg = ([i, from, to]) => {
    const [x0, y0] = stopAt(i, from), [x1, y1] = stopAt(i + 1, to), middle = (x0 + x1) / 2;
    return shape("path", { d: `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}`, ...(isTaken([i, from, to]) && { class: "tg-taken" }) });
  };
  const stop = ([column, row, label]) => {
    const [cx, cy] = stopAt(column, row), is = taken[column] === row;
    return [shape("circle", { cx, cy, r: is ? 6 : 4, ...(is && { class: "tg-taken" }) }), lettered(label || "nothing", room(column), { x: cx + 9, y: cy + 16 })];
  };
  const all = [...legs.values()].sort((a, b) => isTaken(a) - isTaken(b));
  return shape("svg", { width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": "paths through their decisions" },
    ...decisions.map((name, i) => lettered(name, room(i), { x: stopAt(i, 0)[0] - 6, y: 16, class: "tg-decision" })), ...all.map(leg), ...stops.flatMap(stop));
}

export function pathsPanel(scene, place) {
  let asking = false, known = 0, isDry = false; // isDry: the last that was asked for was nothing, and whoever wants more says so
  const button = (name, title, what) => scene.asking(name, title, () => scene.act(what));
  const find = button("find the ways", "look for other ways to compute the graph: seconds, of a large model half a minute", "ways");
  const measure = button("measure the next 50", "time the kernels of the first paths, where nothing is known of them", "measure");
  const halt = button("stop", "what is looked for now, or after the path that is measured now", "halt");
  const take = button("plan with this", "compute by the chosen path, with a plan for it", "take");
  const told = make("span", { class: "tg-soft tg-line tg-grow", role: "status" }), differs = make("p", { class: "tg-soft tg-line" });
  const map = make("div", { class: "tg-map", tabindex: 0, "aria-label": "decisions, by paths" });
  const head = make("div", { class: "tg-row tg-way tg-soft" }, ...WAYS.map((name) => make("span", { title: TITLES[name] }, name)));
  const body = make("div", { class: "tg-rows" }), further = scene.asking("more", "look further, for graphs that take another time", () => more());
  const words = make("span", {}), end = make("p", { class: "tg-soft tg-end" }, further, words);
  const scroll = make("div", { class: "tg-program", tabindex: 0, role: "listbox", "aria-label": "paths, the cheapest first" }, body, end);
  const before = make("p", { class: "tg-empty" }, "The same can be computed in other ways: products of one input as one, factored, in another order, scales in weights. Each is a path; measured here, the fastest one can be planned with.");
  place.append(make("div", { class: "tg-bar" }, find, measure, halt, take, told), before, map, differs, head, scroll);

  function load() {
    const facts = scene.data.paths?.facts ?? {}, isFound = Boolean(facts.is_found);
    find.hidden = before.hidden = isFound;
    find.disabled = measure.disabled = take.disabled = scene.isLost || Boolean(facts.doing);
    measure.hidden = take.hidden = map.hidden = head.hidden = scroll.hidden = differs.hidden = !isFound;
    halt.hidden = !facts.doing;
    told.textContent = told.title = facts.doing || facts.label || "";
    const were = known;
    known = scene.data.paths?.place?.length ?? 0;
    isDry = known === were && isDry;
    if (!isFound) return;
    further.hidden = facts.is_all;
    further.disabled = scene.isLost || Boolean(facts.doing);
    words.textContent = facts.is_all || isDry ? facts.end : "";
    map.hidden = !facts.decisions.length;
    refill(map, railway(facts));
    differs.textContent = differs.title = `beside the given graph: ${facts.differs}`;
    body.style.height = `${known * LINE}px`;
    paint();
  }

  function paint() {
    const data = scene.data.paths, { chosen, in_force: now } = data.facts;
    const first = Math.max(Math.floor(scroll.scrollTop / LINE) - BEYOND, 0);
    const last = Math.min(Math.ceil((scroll.scrollTop + (scroll.clientHeight || 300)) / LINE) + BEYOND, known);
    const cells = (i) => [Number(data.place[i]).toLocaleString("en-US"), data.time[i], data.more[i], data.measured[i], data.calls[i], data.kept[i], `${Number(data.place[i]) === now ? "in force: " : ""}${data.by[i]}`];
    const row = (i) => make("div", { class: "tg-row tg-way", role: "option", "aria-selected": String(Number(data.place[i]) === chosen), style: `top:${i * LINE}px`, title: data.by[i], onclick: () => choose(i) },
      ...cells(i).map((text) => make("span", {}, text)));
    body.replaceChildren(...Array.from({ length: Math.max(last - first, 0) }, (_, i) => row(first + i)));
    const isEnd = scroll.clientHeight && last === known;
    if (isEnd && !isDry && !data.facts.is_all && !data.facts.doing) more();
  }

  function choose(i) { scene.act("way", { place: Number(scene.data.paths.place[i]) }); }

  function more() {
    if (asking) return;
    const were = known;
    asking = true;
    const done = (isNone) => { asking = false; isDry = isNone; words.textContent = isNone ? scene.data.paths.facts.end : ""; };
    scene.ask("more_ways").then(() => done(known === were), () => done(true));
  }

  scroll.addEventListener("scroll", framed(paint));
  scroll.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], data = scene.data.paths;
    if (!step || !known) return;
    event.preventDefault();
    const now = data.place.findIndex((one) => Number(one) === data.facts.chosen), next = Math.min(Math.max(now + step, 0), known - 1);
    choose(next);
    if (next * LINE < scroll.scrollTop || (next + 1) * LINE > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = next * LINE - scroll.clientHeight / 2;
  });
  scene.on("paths", load);
  const sized = new ResizeObserver(() => { if (known) paint(); });
  sized.observe(scroll);
  scene.dispose.push(() => sized.disconnect());
  load();
}
