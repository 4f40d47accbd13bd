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
}
