// Two plans: their memory side by side, and what is decided otherwise by what it costs.
import { bytes, duration, fitted, framed, make, named, refill } from "./common.js";
import { KIND_TEXTURES } from "./memory.js";

export function comparePanel(scene, place) {
  const kinds = Object.keys(KIND_TEXTURES), sides = ["before", "after"].map(() => ({ head: make("div", { class: "tg-line" }), canvas: make("canvas", { role: "img", style: "height:190px" }) }));
  const key = make("ul", { class: "tg-legend" }), list = make("ol", { class: "tg-list tg-scroll tg-grow" });
  place.append(make("div", { class: "tg-two" }, ...sides.map(({ head, canvas }) => make("div", {}, head, canvas))), key, list);
  const fits = sides.map(({ canvas }) => fitted(canvas, () => draw(), scene.dispose));
  const draw = framed(paint);

  function load() {
    const data = scene.data.compare;
    if (!data) return;
    data.facts.sides.forEach(([name, time, size], i) => {
      sides[i].head.replaceChildren(make("b", {}, name), make("span", { class: "tg-soft" }, ` ${time} · ${size}`));
      sides[i].canvas.setAttribute("aria-label", `memory of ${name}: ${size}`);
    });
    refill(list, ...data.facts.rows.map(([what, words, node, ns]) => make("li", {}, make("button", { type: "button", title: words, onclick: () => node && scene.choose([node]) },
      make("span", { class: "tg-what" }, what), node ? named(words) : make("span", {}, words), make("span", {}, Number(ns) > 0 ? `${duration(Number(ns))} a run` : "")))),
      ...(data.facts.rows.length ? [] : [make("li", { class: "tg-soft" }, "nothing is decided otherwise")]));
    const there = new Set([...data.before_kind, ...data.after_kind]), item = (style, words) => make("li", {}, make("i", { style }), words);
    key.replaceChildren(...kinds.flatMap((kind, k) => (there.has(k) ? [item(`background:var(--tg-${kind})`, kind)] : [])),
      item("background:color-mix(in srgb,var(--tg-soft) 35%,var(--tg-paper))", "pale: the same in both"), item("height:2px;vertical-align:4px;background:var(--tg-ink)", "where the arena ends"));
    draw();
  }

  function paint() {
    const data = scene.data.compare;
    if (!data) return;
    const most = Math.max(...data.facts.sides.map(([, , , size]) => size), 1);
    sides.forEach((_, i) => {
      const { pen, width, height } = fits[i](), side = ["before", "after"][i], own = new Map(data[`${["after", "before"][i]}_name`].map((name, k) => [name, data[`${["after", "before"][i]}_kind`][k]]));
      if (!width) return;
      const x = (step) => (step / data.facts.steps) * width, y = (size) => height - (size / most) * (height - 4);
      pen.clearRect(0, 0, width, height);
      data[`${side}_name`].forEach((name, k) => {
        const kind = data[`${side}_kind`][k], from = data[`${side}_offset`][k], at = [x(data[`${side}_start`][k]), y(from + data[`${side}_size`][k])];
        const box = [...at, Math.max(x(data[`${side}_stop`][k]) - at[0], 1), Math.max(y(from) - at[1], 1)];
        pen.fillStyle = scene.colours.colour(kinds[kind]);
        pen.globalAlpha = own.get(name) === kind ? 0.35 : 1; // what is the same in both is pale
        pen.fillRect(...box);
        pen.globalAlpha = 1;
        pen.strokeStyle = scene.colours.colour(scene.nodes.includes(name) ? "ink" : "paper");
        pen.lineWidth = scene.nodes.includes(name) ? 2 : 0.5;
        pen.strokeRect(...box);
      });
      const size = data.facts.sides[i][3];
      pen.strokeStyle = pen.fillStyle = scene.colours.colour("ink");
      pen.lineWidth = 1;
      pen.beginPath(); pen.moveTo(0, y(size)); pen.lineTo(width, y(size)); pen.stroke();
      pen.font = "12px system-ui, sans-serif";
      pen.strokeStyle = scene.colours.colour("paper"); // over what is live there
      pen.lineWidth = 3;
      pen.strokeText(bytes(size), 4, y(size) + 14);
      pen.fillText(bytes(size), 4, y(size) + 14);
    });
  }
  scene.on("compare", load);
  scene.on("chosen theme", () => draw());
  load();
}
