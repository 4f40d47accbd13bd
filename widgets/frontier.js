// Time by memory, which is the budget control; beneath it the search, what it decided anew, and what it laid out.
import { UNSEARCHED, aligned, bytes, counted, duration, framed, make, pressed, refill, shape, ticks } from "./common.js";

const CHART_HIGH = 190, LEAST_WIDE = 180, MOST_WIDE = 310, ROOM = { left: 54, right: 10, top: 14, bottom: 30 }, RUN_HIGH = 118, ROW_HIGH = 9, MOST_ROWS = 12;
const RUN_TOP = 18, RUN_ROOM = 36, NAMED = 16; // above and below the lines of a search; pixels between them that hold a name
const LABEL_WIDE = 62, LETTER_WIDE = 6, FAR = 2; // pixels of a label, of a letter; times the largest plan, from where on a budget is off the axis
const NEAR = 4, BESIDE = 12, SETTLED_MS = 700, OLD = "by older measurements"; // pixels between points of one pile, and between two times that are told; how long keys rest before a search begins
const WINDOWS = "a row a window: values that the search decided anew, from the first of the graph to the last; green where that was faster";
const NOTES = ["*", "†", "‡"]; // one a reason why faster plans are not taken
const PHASE_COLOURS = { spawn: "scratch", weigh: "input", bound: "slice", search: "retained" };

export function frontierPanel(scene, place) {
  const chart = make("div", { class: "tg-chart" }), run = make("div", { class: "tg-chart" }), windows = make("div"), list = make("div", { class: "tg-scroll tg-grow" });
  const button = (name, title, what) => scene.asking(name, title, () => scene.act(what));
  const start = button("search", "look for a better plan in the background", "start"), stop = button("stop", "end it, and put the best plan in force", "stop");
  const fork = button("fork", "go on from the best plan with another seed", "fork"), tries = button("try budgets", "a search for each of some budgets", "budgets");
  const controls = make("div", { class: "tg-bar" }, start, stop, fork, tries), numbers = make("p", { class: "tg-seen tg-soft" });
  place.append(make("div", {}, chart), make("div", {}, controls, run, numbers, windows), list);
  let order = "time", opened = -1, chartWide = 260; // as wide as its place, so that letters keep their size

  const text = (x, y, anchor, said, more = {}) => shape("text", { x, y, "text-anchor": anchor, fill: "var(--tg-soft)", "font-size": 11, ...more }, said);
  const legible = { stroke: "var(--tg-paper)", "stroke-width": 3, "paint-order": "stroke" }; // over lines
  const svg = (high, label, ...inside) => shape("svg", { viewBox: `0 0 ${chartWide} ${high}`, role: "group", "aria-label": label, width: chartWide, height: high }, ...inside);
  // Hatching, drawn line by line: a pattern is found by its id, which every screen of the page would have, and those out of sight do not paint.
  const hatched = (x, y, wide, high, apart = 8) => {
    const lines = Array.from({ length: Math.ceil((wide + high) / apart) }, (_, k) => {
      const from = k * apart - high, [start, end] = [Math.max(from, 0), Math.min(from + high, wide)];
      return `M${x + start} ${y + start - from}L${x + end} ${y + end - from}`;
    });
    return shape("path", { d: lines.join(""), stroke: "var(--tg-line)", "stroke-width": 2, fill: "none", class: "tg-hatch" });
  };
  const line = (points, colour, more = {}) => shape("polyline", { fill: "none", stroke: `var(--tg-${colour})`, "stroke-width": 2, points: points.map((p) => p.join()).join(" "), ...more });

  // --- the frontier -------------------------------------------------------------------------------

  // The smallest size, the largest and the plan's own, told where they are; two that are near stand
  // away from each other, and the plan's own is one of them.
  // The sizes as they are: one that went through a product and back may be told by another number.
  function ends(first, most, own, x) {
    const last = own > first && x(most) - x(first) < LABEL_WIDE ? own : most;
    const mark = (size) => shape("line", { x1: x(size), x2: x(size), y1: CHART_HIGH - ROOM.bottom, y2: CHART_HIGH - ROOM.bottom + 4, stroke: "var(--tg-soft)" });
    const isNear = x(last) - x(first) < LABEL_WIDE, told = (size, anchor) => [mark(size), text(isNear ? x(size) : Math.min(x(size), chartWide - 30), CHART_HIGH - 16, anchor, bytes(size))];
    if (bytes(first) === bytes(last)) return told(own ?? first, "middle");
    const isBetween = own && Math.min(x(own) - x(first), x(last) - x(own)) >= LABEL_WIDE;
    return [...told(first, isNear ? "end" : "middle"), ...(isBetween ? told(own, "middle") : []), ...told(last, isNear ? "start" : "middle")];
  }

  // What the forms on it are, as far as there is room; points may lie where the others do.
  function keys(facts, count) {
    const told = [facts.now ? `◇ ${facts.now_words}` : "", facts.proposal ? "□ proposed" : "", count > Boolean(facts.now) + Boolean(facts.proposal) ? "● tried" : ""].filter(Boolean);
    while (told.length > 1 && told.join(" ").length + 8 >= (chartWide - (facts.proposal ? 0 : ROOM.left)) / LETTER_WIDE) told.pop();
    return told.length ? `memory; ${told.join(" ")}` : "memory";
  }

  function frontier(data) {
    const { facts } = data, sizes = [...data.point_size], times = [...data.point_time], bounds = [...data.point_bound], budgets = [...data.point_budget];
    const marks = [facts.now, facts.proposal].filter(Boolean), fresh = [...sizes.keys()].filter((i) => !data.point_old[i]);
    const proved = fresh.filter((i) => bounds[i] > 0); // of a budget, and so of smaller ones
    const own = [...sizes, ...marks.map(([size]) => size)], far = own.length ? FAR * Math.max(...own) : Infinity;
    const isOn = (size) => size > 0 && size <= far, allSizes = [...own, ...proved.map((i) => budgets[i]).filter(isOn), isOn(facts.budget) && facts.budget, facts.refused].filter(Boolean);
    const allTimes = [...times, ...proved.map((i) => bounds[i]), ...marks.map(([, ns]) => ns), facts.greedy?.[1], facts.bound].filter((ns) => ns > 0);
    if (!allSizes.length) { chart.replaceChildren(make("p", { class: "tg-empty" }, "No budget was tried yet.")); return; }
    const [smallest, largest] = [Math.min(...allSizes), Math.max(...allSizes)], [low, high] = [smallest * 0.8, largest * 1.25], most = Math.max(...allTimes) * 1.06, lowest = Math.min(Math.min(...allTimes) * 0.94, 0.7 * most), least = Math.max(lowest - 0.08 * (most - lowest), 0); // room for what marks the lowest
    const x = (size) => ROOM.left + (Math.log(Math.min(size, high) / low) / Math.log(high / low)) * (chartWide - ROOM.left - ROOM.right), y = (ns) => CHART_HIGH - ROOM.bottom - ((ns - least) / (most - least)) * (CHART_HIGH - ROOM.top - ROOM.bottom);
    const sizeAt = (px) => low * (high / low) ** ((px - ROOM.left) / (chartWide - ROOM.left - ROOM.right)), floor = CHART_HIGH - ROOM.bottom;
    const clip = (size) => Math.min(Math.max(Math.round(size / 64) * 64, 64), high);
    const ask = (size) => {
      if (size <= facts.refused) scene.say(`nothing fits in ${bytes(size)}; ${bytes(facts.least || facts.refused)} is the least that was found to work`, "no");
      else if (facts.can_search) scene.act("budget", { bytes: clip(size) });
    };
    const pointer = shape("line", { y1: ROOM.top, y2: floor, stroke: "var(--tg-mark)", "stroke-dasharray": "2 2", visibility: "hidden", "pointer-events": "none" }), told = text(chartWide - ROOM.right, 11, "end", "", { "pointer-events": "none" });
    const field = shape("rect", {
      x: ROOM.left, y: ROOM.top, width: chartWide - ROOM.left - ROOM.right, height: floor - ROOM.top, fill: "transparent", class: "tg-field",
      onpointermove: (event) => { const px = at(event); pointer.setAttribute("x1", px); pointer.setAttribute("x2", px); pointer.setAttribute("visibility", "visible"); told.textContent = sizeAt(px) <= facts.refused ? `nothing fits in ${bytes(sizeAt(px))}` : `${facts.can_search ? "search within " : ""}${bytes(sizeAt(px))}`; },
      onpointerleave: () => { pointer.setAttribute("visibility", "hidden"); told.textContent = ""; },
      onclick: (event) => ask(sizeAt(at(event))),
    });
    const at = (event) => { const box = field.getBoundingClientRect(); return ROOM.left + ((event.clientX - box.left) / box.width) * (chartWide - ROOM.left - ROOM.right); };
    const title = (i) => `${data.point_words[i]}${data.point_old[i] ? `; ${OLD}` : ""}`;
    const open = (i) => { opened = i; scene.act("point", { number: i }); };
    // Budgets with one plan lie on top of each other: a click takes the next of them, a key its own.
    const along = (i) => { const pile = sizes.map((_, k) => k).filter((k) => Math.hypot(x(sizes[k]) - x(sizes[i]), y(times[k]) - y(times[i])) < NEAR); return [pile[(pile.indexOf(opened) + 1) % pile.length], pile]; };
    const point = (size, i) => {
      const [, pile] = along(i), words = pile.map(title).join("\n") + (pile.length > 1 ? "\n(a click takes the next of these)" : ""), { onkeydown } = pressed(() => open(i));
      return shape("circle", { cx: x(size), cy: y(times[i]), r: 5.5, fill: `var(--tg-${data.point_old[i] ? "soft" : "mark"})`, tabindex: 0, role: "button", class: `tg-point${data.point_old[i] ? " tg-old" : ""}`, "aria-label": title(i), onkeydown, onclick: () => open(along(i)[0]) }, shape("title", {}, words));
    };
    const points = sizes.map(point);
    const DIAMOND = "m0 -9l9 9l-9 9l-9 -9z", SQUARE = "m-8 -8h16v16h-16z";
    const mark = (where, form, name, title) => where && shape("path", { d: `M${x(where[0])} ${y(where[1])}${form}`, fill: "none", stroke: `var(--tg-${name})`, "stroke-width": 2.5, "pointer-events": "none" }, shape("title", {}, title));
    const isBeside = (where) => facts.now && Math.abs(y(where[1]) - y(facts.now[1])) < BESIDE; // no gain to tell
    const greedy = (where) => where && !isBeside(where) && shape("g", { "pointer-events": "none" }, shape("line", { x1: x(where[0]) - 12, x2: x(where[0]) + 12, y1: y(where[1]), y2: y(where[1]), stroke: "var(--tg-soft)", "stroke-width": 2 }), text(x(where[0]) - 14, y(where[1]) + 4, "end", "greedy", { "font-size": 10, ...legible }));
    const reference = (ns, name, colour, dash, up = 3) => ns > 0 && shape("g", { "pointer-events": "none" }, shape("line", { x1: ROOM.left, x2: chartWide - ROOM.right, y1: y(ns), y2: y(ns), stroke: `var(--tg-${colour})`, "stroke-dasharray": dash }), text(ROOM.left + 3, y(ns) - up, "start", name, { "font-size": 10, ...legible }));
    const lines = [
      ...ticks(least / 1e3, most / 1e3, 4).map((us) => us * 1e3).concat(most < 4e3 ? ticks(least, most, 3) : []).filter((ns, i, all) => all.indexOf(ns) === i && ns >= least && ns <= most)
        .map((ns) => shape("g", {}, shape("line", { x1: ROOM.left, x2: chartWide - ROOM.right, y1: y(ns), y2: y(ns), stroke: "var(--tg-line)" }), text(ROOM.left - 4, y(ns) + 4, "end", duration(ns)))),
      text(2, 9, "start", "mean run"), ...ends(smallest, largest, facts.now?.[0], x), text((chartWide + (facts.proposal ? 0 : ROOM.left)) / 2, CHART_HIGH - 3, "middle", keys(facts, sizes.length)),
    ];
    const budget = isOn(facts.budget) && shape("line", { x1: x(facts.budget), x2: x(facts.budget), y1: ROOM.top, y2: floor, stroke: "var(--tg-bad)", "stroke-dasharray": "6 3", "pointer-events": "none" });
    const focused = [...chart.querySelectorAll(".tg-point")].indexOf(document.activeElement);
    chart.replaceChildren(svg(CHART_HIGH, facts.label, ...lines,
      facts.refused > low && hatched(ROOM.left, ROOM.top, x(facts.refused) - ROOM.left, floor - ROOM.top),
      line(proved.flatMap((i, k) => [[x(budgets[proved[k - 1] ?? i]), y(bounds[i])], [x(budgets[i]), y(bounds[i])]]), "bad", { "stroke-dasharray": "5 3" }),
      line(fresh.flatMap((i, k) => [[x(sizes[i]), y(times[fresh[k - 1] ?? i])], [x(sizes[i]), y(times[i])]]), "mark"),
      greedy(facts.greedy), reference(facts.bound, "bound", "bad", "5 3", y(facts.bound) > floor - 14 ? 3 : -9), budget, field, pointer, told, ...points, mark(facts.now, DIAMOND, facts.is_unsearched ? "soft" : "ink", facts.is_unsearched ? `${facts.now_words}: ${UNSEARCHED}` : facts.now_words), mark(facts.proposal, SQUARE, "mark", "proposed")));
    points[focused]?.focus({ preventScroll: true });
    place.style.setProperty("--tg-chart", "1");
    slider(low, high, facts, ask);
  }

  // The same as a slider, for keys; it searches when it was let go for a moment: each key is a change.
  const range = make("input", { type: "range", min: 0, max: 100, class: "tg-budget", "data-asks": "", "aria-label": "memory budget", title: "searches within another budget, a moment after it was let go" });
  chart.after(range);
  let settles = 0;
  scene.dispose.push(() => clearTimeout(settles));
  function slider(low, high, facts, ask) {
    const sizeOf = (value) => low * (high / low) ** (value / 100);
    range.hidden = !facts.can_search;
    if (document.activeElement !== range) range.value = (100 * Math.log((facts.budget ?? facts.now?.[0] ?? high) / low)) / Math.log(high / low);
    range.oninput = () => { range.setAttribute("aria-valuetext", bytes(sizeOf(range.value))); scene.say(`budget ${bytes(sizeOf(range.value))}: let go to search within it`); };
    range.onchange = () => { const size = sizeOf(range.value); clearTimeout(settles); settles = setTimeout(() => ask(size), SETTLED_MS); };
  }

  // --- the search ---------------------------------------------------------------------------------

  // The last of it are left out where two lines have no room for them; the title has all.
  function tell(parts) {
    const told = (count) => parts.slice(0, count).join(" · ").replace(/(\d) (?=(ns|µs|ms|s)\b)/g, "$1\u00a0"); // a number and its unit on one line
    numbers.title = numbers.textContent = told(parts.length);
    for (let count = parts.length - 1; count && numbers.scrollHeight > numbers.clientHeight + 1; count--) numbers.textContent = told(count);
  }

  function progress(data) {
    const { facts } = data, seconds = [...data.told_seconds], best = [...data.told_best], bound = [...data.told_bound];
    run.hidden = !(seconds.at(-1) > seconds[0]) && !facts.is_running; // of one moment there is no line
    for (const one of [run, windows, list]) one.classList.toggle("tg-old", facts.is_old);
    const gap = facts.bound ? `gap ${(100 * Math.max(facts.best / facts.bound - 1, 0)).toFixed(1)}%` : "";
    const rate = facts.rate ? `${facts.rate.toFixed(1)} steps/s` : "", message = facts.message.replace(" a run", "");
    tell(facts.is_running ? [`${facts.phase}: ${message || "starting"}`, gap, rate].filter(Boolean) : [(facts.is_old ? `${OLD}: ` : "") + (facts.state || gap || scene.data.header?.facts.gap || "")]);
    if (!seconds.length) { run.replaceChildren(make("p", { class: "tg-soft" }, facts.is_running ? "the first plan is on its way" : "")); return; }
    const known = [...best, ...bound].filter((ns) => ns > 0), most = Math.max(...known), least = Math.min(...known, 0.75 * most), end = Math.max(seconds.at(-1), 1);
    const x = (s) => ROOM.left + (s / end) * (chartWide - ROOM.left - ROOM.right), y = (ns) => RUN_HIGH - RUN_ROOM - ((ns - least) / (most - least)) * (RUN_HIGH - RUN_ROOM - RUN_TOP);
    const stepped = (values) => values.flatMap((ns, i) => (ns > 0 ? [[x(seconds[i]), y(values[i - 1] > 0 ? values[i - 1] : ns)], [x(seconds[i]), y(ns)]] : []));
    const named = (up, name) => text(chartWide - ROOM.right, up, "end", name, { "font-size": 10, ...legible });
    const isApart = y(bound.at(-1)) - y(best.at(-1)) >= NAMED, names = best.at(-1) > 0 ? [named(y(best.at(-1)) - 5, facts.is_running ? "best plan so far" : "best plan"), bound.at(-1) > 0 ? named(y(bound.at(-1)) + (isApart ? -5 : 12), "bound: no plan is faster") : null] : [];
    const ended = facts.unit === "s" ? `${Number(end.toPrecision(3))} s` : counted(end, "step");
    const phases = [...data.phase_from].map((s, i) => shape("rect", { x: x(s), y: RUN_HIGH - 20, width: Math.max(x(data.phase_from[i + 1] ?? end) - x(s), 1), height: 6, fill: `var(--tg-${PHASE_COLOURS[data.phase[i]] ?? "soft"})` }, shape("title", {}, data.phase[i])));
    run.replaceChildren(svg(RUN_HIGH, `search: ${facts.state}`, text(ROOM.left - 4, y(most) + 4, "end", duration(most)), text(ROOM.left - 4, y(least) + 2, "end", duration(least)),
      line(stepped(bound), "bad", { "stroke-dasharray": "5 3" }), line(stepped(best), "mark"), ...names, ...phases,
      text(ROOM.left, RUN_HIGH - 3, "start", phasesIn([...new Set(data.phase)], ended)), text(chartWide - ROOM.right, RUN_HIGH - 3, "end", ended)));
  }

  // What it did, beside the time that it took; where that has no room, what it did last.
  function phasesIn(names, beside) {
    const letters = (chartWide - ROOM.left - ROOM.right) / LETTER_WIDE - beside.length - 2;
    return [" → ", " "].map((between) => names.join(between)).find((told) => told.length <= letters) ?? names.at(-1);
  }

  // A row a window, the last one on top: the values that were decided anew, where the graph has them.
  function neighbourhoods(data) {
    const count = data.window_end.length, rows = Math.min(count, MOST_ROWS), values = data.value_name.length;
    windows.hidden = !rows;
    if (!rows) return;
    const high = 14 + rows * ROW_HIGH, right = chartWide - 44, wide = Math.max((right - 4) / values, 1), most = Math.max(...data.window_gain, 1e-9);
    const freed = (i) => [...data.window_value.subarray(i ? data.window_end[i - 1] : 0, data.window_end[i])];
    const row = (i) => {
      const y = 14 + (count - 1 - i) * ROW_HIGH, gain = data.window_gain[i], words = data.window_words[i];
      const colour = gain > 0 ? `color-mix(in srgb, var(--tg-retained) ${Math.round(55 + (45 * gain) / most)}%, var(--tg-paper))` : "color-mix(in srgb, var(--tg-soft) 45%, var(--tg-paper))";
      const marks = freed(i).map((v) => `M${(4 + (v * (right - 4)) / values).toFixed(1)} ${y + 1}h${wide.toFixed(1)}v${ROW_HIGH - 2}h${-wide.toFixed(1)}z`).join("");
      return shape("g", { tabindex: 0, role: "button", class: "tg-window", "aria-label": words, ...pressed(() => { scene.say(words); scene.choose(freed(i).map((v) => data.value_name[v])); }) },
        shape("rect", { class: "tg-row", x: 0, y, width: chartWide, height: ROW_HIGH, fill: "transparent" }), shape("path", { d: marks, fill: colour }), shape("title", {}, words),
        gain > 0 && text(chartWide - 2, y + ROW_HIGH - 1, "end", `−${(100 * gain).toPrecision(2)}%`, { "font-size": 9 }));
    };
    const titled = (one, words) => { one.append(shape("title", {}, words)); return one; };
    const shown = Array.from({ length: rows }, (_, k) => row(count - 1 - k));
    windows.replaceChildren(svg(high, `values decided anew: ${count} windows`, titled(text(4, 10, "start", "looked at again; the latest on top", { "font-size": 10 }), WINDOWS), ...shown));
  }

  // Plans that were laid out: a click proposes one. The best one is marked, and why it counts as better
  // than faster ones stands below.
  function candidates(data) {
    const rows = [...data.try_time.keys()], by = { time: data.try_time, size: data.try_size, kept: data.try_kept, parts: data.try_parts }[order];
    list.hidden = !rows.length;
    rows.sort((a, b) => by[a] - by[b]);
    const whys = [...new Set(rows.map((i) => data.try_why[i]).filter(Boolean))], noted = (i) => (data.try_best[i] ? "✓" : data.try_why[i] ? NOTES[whys.indexOf(data.try_why[i])] : "");
    const time = (i) => {
      const number = data.try_number[i], words = `${aligned(duration(data.try_time[i]))}${noted(i)}`, isBest = data.try_best[i];
      if (number < 0) return make("span", { title: "the best plan; it was laid out anew" }, words);
      return make("button", { type: "button", class: "tg-open", title: data.try_why[i] ? `faster, and not taken: ${data.try_why[i]}` : isBest ? "the best plan" : "propose this plan", onclick: () => scene.act("candidate", { number }) }, words);
    };
    const head = (name, key) => make("th", { "aria-sort": order === key ? "ascending" : "none" }, make("button", { type: "button", onclick: () => { order = key; candidates(data); } }, name));
    refill(list, make("table", { class: "tg-matrix tg-candidates" }, make("caption", { class: "tg-soft" }, "plans that were laid out; ✓ the best"), make("tr", {}, head("mean run", "time"), head("arena", "size"), head("kept", "kept"), head("parts", "parts")),
      ...rows.map((i) => make("tr", data.try_best[i] ? { class: "tg-best" } : {}, make("td", {}, time(i)),
        make("td", {}, aligned(bytes(data.try_size[i]))), make("td", {}, String(data.try_kept[i])), make("td", {}, String(data.try_parts[i]))))),
      ...whys.map((why, k) => make("p", { class: "tg-soft tg-note" }, `${NOTES[k]} not taken: ${why}`)));
  }

  const fitting = () => Math.min(Math.max(chart.clientWidth || chartWide, LEAST_WIDE), MOST_WIDE);
  // A press ends on what it began on: a search tells of itself ten times a second, and what is drawn
  // anew between down and up is not clicked.
  let isPressed = false, isDue = false;
  place.addEventListener("pointerdown", () => { isPressed = true; });
  const released = () => { isPressed = false; setTimeout(() => { if (isDue) load(); }); };
  for (const event of ["pointerup", "pointercancel"]) {
    addEventListener(event, released);
    scene.dispose.push(() => removeEventListener(event, released));
  }

  function load() {
    const data = scene.data.frontier;
    isDue = isPressed;
    if (isDue) return;
    place.hidden = !data;
    if (!data) return;
    chartWide = fitting();
    const { facts } = data;
    controls.hidden = !facts.can_search;
    start.hidden = facts.is_running;
    start.textContent = facts.is_new ? "search" : "resume";
    stop.disabled = scene.isLost || !facts.is_running;
    fork.disabled = scene.isLost || facts.is_new;
    frontier(data);
    progress(data);
    neighbourhoods(data);
    candidates(data);
  }
  scene.on("frontier", load);
  const sized = new ResizeObserver(framed(() => { if (fitting() !== chartWide) load(); }));
  sized.observe(place);
  scene.dispose.push(() => sized.disconnect());
  load();
}
