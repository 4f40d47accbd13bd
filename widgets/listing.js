// The smallest view: names in a list; a click, or Enter, chooses one everywhere.
import { columns, listen, make, selection, view } from "./common.js";

export default view((model, root, dispose) => {
  const { name = [] } = columns(model.get("data"));
  const chosen = selection(model);
  const items = name.map((text) => make("li", {}, make("button", { onclick: () => chosen.choose([text]) }, text)));
  const mark = () => items.forEach((item, i) =>
    item.firstChild.setAttribute("aria-pressed", String(chosen.nodes.includes(name[i]))));
  root.append(items.length ? make("div", { class: "tg-side" }, make("ol", {}, ...items)) : make("p", { class: "tg-empty" }, "nothing to list"));
  listen(model, "change:selected", mark, dispose);
  mark();
});
