// A model as anywidget gives one, without a kernel: values, events, and what was sent.
export class FakeModel {
  constructor(state) {
    this.state = state;
    this.heard = new Map();
    this.sent = [];
    this.answers = {};
  }
  get(name) { return this.state[name]; }
  set(name, value) {
    this.state[name] = value;
    this.tell(`change:${name}`, value);
  }
  save_changes() {}
  on(event, call) {
    if (!this.heard.has(event)) this.heard.set(event, new Set());
    this.heard.get(event).add(call);
  }
  off(event, call) { this.heard.get(event)?.delete(call); }
  tell(event, value) { for (const call of [...(this.heard.get(event) ?? [])]) call(value); }
  send(message) {
    this.sent.push(message);
    const answer = this.answers[message.what];
    if (answer !== undefined) setTimeout(() => this.tell("msg:custom", { reply: message.ask, answer }), 0);
  }
  // Another buffer, with small values that are otherwise.
  put(name, facts) {
    const view = this.state[name], size = view.getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(view.buffer, view.byteOffset + 4, size)));
    const [kind, at, count] = header.facts, first = view.byteOffset + 4 + size + at;
    const found = JSON.parse(new TextDecoder().decode(new Uint8Array(view.buffer, first, count)));
    const text = new TextEncoder().encode(JSON.stringify({ ...found, ...facts }));
    header.facts = [kind, at, text.length];
    let head = JSON.stringify(header);
    head += " ".repeat((8 - ((head.length + 4) % 8)) % 8);
    const body = new Uint8Array(view.buffer, view.byteOffset + 4 + size, at), bytes = new TextEncoder().encode(head);
    const whole = new Uint8Array(4 + bytes.length + at + text.length);
    new DataView(whole.buffer).setUint32(0, bytes.length, true);
    whole.set(bytes, 4);
    whole.set(body, 4 + bytes.length);
    whole.set(text, 4 + bytes.length + at);
    this.set(name, new DataView(whole.buffer));
  }
}
