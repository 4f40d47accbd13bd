// The screen: panels in a grid over one scene. Who is chosen is kept here once; panels hear of it.
import { UNSEARCHED, alternative, ask, copied, decoded, framed, keepKeys, listen, make, refill, theme } from "./common.js";
import { classesPanel } from "./classes.js";
import { comparePanel } from "./compare.js";
import { frontierPanel } from "./frontier.js";
import { graphPanel } from "./graph.js";
import { inspectorPanel } from "./inspector.js";
import { memoryPanel, stepOf } from "./memory.js";
import { pathsPanel } from "./paths.js";
import { programPanel } from "./program.js";

const BUFFERS = ["header", "memory", "fates", "graph", "program", "paths", "compare", "frontier", "inspector", "classes"];
const AREAS = { left: ["frontier"], centre: ["memory", "graph", "program", "paths", "compare"], bottom: ["classes"], right: ["inspector"] };
const DRAWN = { memory: memoryPanel, graph: graphPanel, program: programPanel, paths: pathsPanel, compare: comparePanel, frontier: frontierPanel, inspector: inspectorPanel, classes: classesPanel };
const GONE = "the kernel that made this view is gone; run its cell again";
const HIGHEST = 720, ALONE = 520, LOW = 380, SNUG = 1400, NARROW = 900, SLIM = 560; // LOW: the frontier alone, in three columns; SNUG: below that what is said has a line of its own

// What panels share: buffers, colours, who is chosen, questions, the line that says what came of one.
function sceneOf(model, root, said, dispose) {
  const calls = new Map();
  const put = (values) => { for (const [name, value] of Object.entries(values)) model.set(name, value); model.save_changes(); };
  const scene = {
    model, root, dispose, data: {}, fateOf: new Map(), wanted: "",
    get nodes() { return model.get("selected") ?? []; },
    get step() { return model.get("step") ?? -1; },
    get bucket() { return model.get("bucket") ?? ""; },
    choose: (nodes, step = stepOf(scene, nodes[0])) => put({ selected: nodes, step }),
    at: (step) => put({ step }),
    during: (bucket) => put({ bucket }),
    find(text) { scene.wanted = text.trim().toLowerCase(); scene.tell("wanted"); },
    isWanted: (name) => !scene.wanted || name.toLowerCase().includes(scene.wanted),
    on(events, call) { for (const event of events.split(" ")) calls.set(event, [...(calls.get(event) ?? []), call]); },
    tell(event) { for (const call of calls.get(event) ?? []) call(); },
    say(words, kind = "") { said.textContent = words; said.className = `tg-said${kind ? ` tg-${kind}` : ""}`; said.title = words; },
    // Without a kernel nobody answers: what would ask is switched off, and says why.
    isLost: false,
    lose() { scene.isLost = true; root.classList.add("tg-lost"); for (const one of root.querySelectorAll("[data-asks]")) one.disabled = true; },
    ask: (what, request) => (scene.isLost ? Promise.reject(new Error(GONE)) : ask(model, what, request)),
    asking: (name, title, call) => make("button", { type: "button", title, "data-asks": "", disabled: scene.isLost, onclick: call }, name),
    // A gesture: what comes of it is said.
    act(what, request = {}) {
      scene.say("…");
      return scene.ask(what, request).then((answer) => {
        const isVerdict = answer?.is_valid !== undefined;
        scene.say(isVerdict ? answer.words : String(answer), isVerdict ? (answer.is_valid ? "yes" : "no") : "");
        return answer;
      }, (error) => { scene.say(error.message, "no"); });
    },
  };
  const load = (name) => {
    scene.data[name] = decoded(model.get(name));
    if (name === "fates") {
      const { name: names = [], fate = [], facts } = scene.data.fates ?? {};
      scene.fateOf = new Map(names.map((one, i) => [one, facts.fates[fate[i]]]));
    }
  };
  for (const name of BUFFERS) {
    load(name);
    listen(model, `change:${name}`, () => { load(name); scene.tell(name); }, dispose);
  }
  listen(model, "change:selected change:step change:bucket", framed(() => scene.tell("chosen")), dispose);
  listen(model, "change:remark", () => scene.say(model.get("remark")), dispose);
  scene.colours = theme(root, () => scene.tell("theme"), dispose);
  return scene;
}

// --- the header -----------------------------------------------------------------------------------

function headerPanel(scene, place, said) {
  const numbers = make("div", { class: "tg-numbers" });
  const button = scene.asking;
  const search = make("input", { type: "search", placeholder: "find nodes", "aria-label": "find nodes", oninput: () => scene.find(search.value), onkeydown: (event) => {
    if (event.key === "Escape") { search.value = ""; scene.find(""); }
    if (event.key === "Enter") { const all = scene.data.memory?.name ?? scene.data.graph?.member ?? [], found = all.find((name) => name.toLowerCase() === scene.wanted) ?? all.find(scene.isWanted); if (found) scene.choose([found]); }
  } });
  scene.search = search;
  const use = button("use it", "put the proposed plan in force", () => scene.act("use"));
  const dismiss = button("dismiss", "do not propose it any more", () => scene.act("dismiss"));
  const undo = button("undo", "take the last change back; or put the plan in force again that was before", () => scene.act("undo"));
  const save = button("export", "the plan as a file", () => scene.ask("json").then(({ name, text }) => {
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    scene.say(`${name}: ${text.length} characters`);
  }, (error) => scene.say(error.message, "no")));
  const code = button("code", "what was done here, as Python", () => scene.ask("code").then((text) => copied(text, scene.say), (error) => scene.say(error.message, "no")));
  const beside = button("beside", "show this screen beside the notebook too", () => scene.act("beside"));
  place.append(numbers, said, search, use, dismiss, undo, save, code, beside);
  const draw = () => {
    const facts = scene.data.header?.facts;
    place.hidden = !facts;
    if (!facts) return;
    const soft = (text) => make("span", { class: "tg-soft" }, text), bold = (text, of, title) => make("span", { title }, make("b", {}, text), soft(of));
    const parts = [facts.time && bold(facts.time, facts.stale ? " modelled" : " expected", `a mean run as the plan expects it, of ${facts.stale || "measured calls"} alone; what runs took, with some 10 to 30 µs beside their calls, is in the table of classes`), facts.size && bold(facts.size, "", "memory that runs write to, of the budget"), facts.gap && make("span", { title: facts.is_unsearched ? UNSEARCHED : "how far from the best that is known to be possible" }, facts.gap)];
    refill(numbers, ...parts.filter(Boolean).flatMap((one, i) => (i ? [soft(" · "), one] : [one])),
      make("span", { class: `tg-badge${facts.is_proposal ? " tg-proposed" : ""}`, title: facts.words }, facts.state),
      ...(facts.faster ? [soft(` ${facts.faster}, ${facts.smaller}`)] : []));
    use.hidden = !facts.is_proposal || !facts.can_use;
    dismiss.hidden = !facts.is_proposal;
    undo.hidden = !facts.can_undo;
    save.hidden = !facts.time;
    code.hidden = beside.hidden = !facts.is_live;
  };
  scene.on("header", draw);
  draw();
}

// --- the grid -------------------------------------------------------------------------------------

function centrePanel(scene, place, names) {
  const tabs = make("div", { class: "tg-tabs", role: "tablist" }), made = new Map();
  if (names.length > 1) place.append(tabs);
  let shown = names[0];
  const show = (name) => {
    shown = name;
    for (const [one, { tab, page }] of made) { page.hidden = one !== name; tab.setAttribute("aria-selected", String(one === name)); tab.tabIndex = one === name ? 0 : -1; }
  };
  for (const name of names) {
    const page = make("div", { class: "tg-page", role: "tabpanel", "aria-label": name });
    const tab = make("button", { type: "button", role: "tab", onclick: () => show(name), onkeydown: (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key], there = [...made].filter(([, { tab: one }]) => !one.hidden).map(([one]) => one);
      if (!by) return;
      const next = there[(there.indexOf(name) + by + there.length) % there.length];
      show(next);
      made.get(next).tab.focus();
    } }, name);
    made.set(name, { tab, page });
    tabs.append(tab);
    place.append(page);
    DRAWN[name](scene, page);
  }
  const offer = () => { // a comparison is there as long as something is proposed
    const there = Boolean(scene.data.compare);
    made.get("compare").tab.hidden = !there;
    if (!there && shown === "compare") show("memory");
  };
  if (made.has("compare")) { scene.on("compare", offer); offer(); }
  show(shown);
}

function sized(root, el, isBench, isWhole, dispose) {
  const fit = framed(() => { if (root.clientWidth) set(); }), watch = new ResizeObserver(fit);
  let frame = null; // known once the view stands in the page
  const set = () => {
    if (!frame && (frame = root.closest(".jp-WindowedPanel-outer, .jp-Notebook, .jp-LinkedOutputView"))) watch.observe(frame);
    const high = Math.max((frame?.clientHeight || innerHeight) - (isWhole ? 0 : 12), 320), wide = root.clientWidth || el.clientWidth || SLIM;
    const isSlim = isBench && wide < SLIM;
    root.classList.toggle("tg-slim", isSlim);
    root.classList.toggle("tg-strait", wide < NARROW);
    root.classList.toggle("tg-snug", NARROW <= wide && wide < SNUG);
    root.classList.toggle("tg-narrow", isBench && !isSlim && wide < NARROW);
    const most = isBench ? HIGHEST : root.classList.contains("tg-alone-left") && wide >= NARROW ? LOW : ALONE;
    root.style.height = isSlim ? "" : `${isWhole ? high : Math.min(most, high)}px`;
  };
  set(); // at once, so that the first picture has its size
  watch.observe(root);
  addEventListener("resize", fit);
  dispose.push(() => { watch.disconnect(); removeEventListener("resize", fit); });
}

// Not named after what anywidget calls: it takes that from the default export alone. `isWhole`: it is
// all that its page has, and as high as the window.
export function showScreen({ model, el, isWhole = false }) {
  const dispose = [], panels = model.get("panels") ?? [], isBench = panels.length > 3;
  const root = make("div", { class: `tg-view${isBench ? " tg-bench" : ""}`, role: "group" });
  const gone = make("p", { class: "tg-gone", role: "status", hidden: true }), table = make("div", { class: "tg-hidden" });
  const said = make("span", { class: "tg-said", role: "status", "aria-live": "polite" });
  el.replaceChildren(root);
  keepKeys(root, dispose);
  const scene = sceneOf(model, root, said, dispose);
  const head = make("div", { class: "tg-head" });
  root.append(head);
  headerPanel(scene, head, said);
  head.hidden = !panels.includes("header");
  for (const [area, names] of Object.entries(AREAS)) {
    const there = names.filter((name) => panels.includes(name));
    if (!there.length) continue;
    const place = make("div", { class: `tg-area tg-${area}` });
    root.append(place);
    if (area === "centre") centrePanel(scene, place, there);
    else for (const name of there) DRAWN[name](scene, place);
  }
  if (!panels.length) root.append(make("p", { class: "tg-empty" }, "There is nothing to show here yet."));
  const describe = () => { root.setAttribute("aria-label", model.get("label")); table.replaceChildren(alternative(model.get("label"), model.get("table"))); };
  listen(model, "change:label change:table", describe, dispose);
  describe();
  const lost = () => { gone.textContent = "The kernel that made this view is gone. The picture still moves; run its cell again for answers."; gone.hidden = false; scene.lose(); };
  listen(model, "comm_live_update", (now) => { if (!now || now.comm_live === false) lost(); }, dispose);
  listen(model, "comm:close", lost, dispose);
  root.classList.toggle("tg-alone-left", Boolean(root.querySelector(":scope > .tg-left:nth-child(2):nth-last-child(1)")));
  root.append(gone, table);
  sized(root, el, isBench, isWhole, dispose);
  return () => dispose.forEach((end) => end());
}

export default { render: showScreen };
