// The plan in force in a few words, as a file, and what was done here as Python.
import { ask, copied, listen, make, theme, view } from "./common.js";

export default view((model, root, dispose) => {
  theme(root, () => {}, dispose);
  const words = make("pre", { class: "tg-words" }), seen = make("p", { class: "tg-seen", role: "status" });
  const failed = (error) => { seen.textContent = error.message; };
  const button = (name, title, call) => make("button", { type: "button", title, onclick: call }, name);
  const save = button("export plan JSON", "the plan as a file", () => ask(model, "json").then(({ name, text }) => {
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    seen.textContent = `${name}: ${text.length} characters`;
  }, failed));
  const copy = button("copy as Python", "what was done here, as code", () => ask(model, "code").then((text) => copied(text, seen), failed));
  const use = button("use the plan of the timeline", "put the changes of the memory timeline in force", () =>
    ask(model, "use").then((text) => { seen.textContent = text; }, failed));
  root.append(make("div", { class: "tg-bar" }, save, copy, use), words, seen);
  const load = () => {
    words.textContent = model.get("facts").words;
    use.hidden = !model.get("facts").can_use;
  };
  listen(model, "change:facts", load, dispose);
  load();
});
