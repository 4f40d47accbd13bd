// The screen without a kernel: what depends on the choice is written down beside it, node by node and class by class.
import { showScreen } from "./screen.js";

const ALONE_HERE = "no kernel listens here; open the plan in a notebook: tgbench.views.explore(\"plan.json\")";

class Recorded {
  constructor({ state, nodes, classes, answers }) {
    Object.assign(this, { state, nodes, classes, answers, heard: new Map() });
    for (const [name, value] of Object.entries(state.buffers)) state[name] = unpacked(value);
  }
  get(name) { return this.state[name]; }
  set(name, value) {
    this.state[name] = value;
    this.tell(`change:${name}`);
    const found = name === "selected" ? this.nodes[value[0] ?? ""] : name === "bucket" ? this.classes[value] : null;
    for (const [panel, text] of Object.entries(found ?? {})) this.set(panel, unpacked(text));
  }
  save_changes() {}
  on(event, call) { this.heard.set(event, [...(this.heard.get(event) ?? []), call]); }
  off(event, call) { this.heard.set(event, (this.heard.get(event) ?? []).filter((one) => one !== call)); }
  tell(event, value) { for (const call of this.heard.get(event) ?? []) call(value); }
  send({ ask: number, what }) {
    const answer = this.answers[what];
    setTimeout(() => this.tell("msg:custom", answer === undefined ? { reply: number, error: ALONE_HERE } : { reply: number, answer }), 0);
  }
}

function unpacked(text) { return new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer); }

export function openPage(place, written) { return showScreen({ model: new Recorded(written), el: place, isWhole: true }); }

const written = document.getElementById("written");
if (written) openPage(document.getElementById("screen"), JSON.parse(written.textContent));
