// What the page shows of a run below the editor: picture, steps, counts, and table.
import { h, plural } from "./dom.js";
import { Picture } from "./picture.js";
import { Steps, offered, other } from "./steps.js";
import { algorithms, counts, table } from "./table.js";

export class View {
  // `showRanks(places, scroll)` shows ranks at their lines in the editor.
  constructor(parent, showRanks) {
    this.parent = parent;
    this.showRanks = showRanks;
    this.inTime = false;
    addEventListener("resize", () => this.figure?.clientWidth !== this.room && this.draw());
  }

  clear() {
    this.parent.hidden = true;
    this.parent.replaceChildren();
    this.showRanks(new Map());
  }

  // `note` says which of several calls of the function the events are from.
  show(events, size, page, note) {
    this.clear();
    this.steps = new Steps(events, size);
    const calls = this.steps.events;
    if (!calls.length) return;
    this.index = null;
    this.figure = h("div", {
      class: "scroll figure",
      tabindex: 0,
      role: "region",
      "aria-label": "Picture of the messages",
    });
    this.step = h("div", { class: "step", role: "status", "aria-live": "polite" });
    const parts = [
      h("h2", {}, "Messages in time"),
      note && h("p", {}, note, synchronous(calls)),
      legend(),
      this.figure,
      this.controls(),
      this.step,
      counts(calls, size, page, Boolean(note)),
      algorithms(calls, page.algorithms),
      table(calls),
    ];
    this.parent.append(...parts.filter(Boolean));
    this.parent.hidden = false;
    this.draw();
  }

  controls() {
    const button = (text, action) => h("button", { type: "button", onclick: action }, text);
    const time = h("input", {
      type: "checkbox",
      onchange: (event) => {
        this.inTime = event.target.checked;
        this.draw();
      },
    });
    time.checked = this.inTime;
    return h(
      "div",
      { class: "controls", role: "group", "aria-label": "Step through the run" },
      button("First", () => this.go(0)),
      button("Back", () => this.go((this.index ?? 0) - 1)),
      button("Next", () => this.go((this.index ?? -1) + 1)),
      button("Last", () => this.go(this.steps.moments.length - 1)),
      h("label", {}, time, " to scale, in milliseconds"),
    );
  }

  draw() {
    this.room = this.figure.clientWidth;
    this.picture = new Picture(this.steps, this.inTime, this.room);
    this.figure.replaceChildren(...this.picture.parts);
    if (this.index !== null) this.picture.point(this.steps.moments[this.index]);
  }

  go(index) {
    this.index = Math.max(0, Math.min(index, this.steps.moments.length - 1));
    const state = this.steps.at(this.index);
    this.picture.point(state.now);
    this.picture.cursor.scrollIntoView({ block: "nearest", inline: "nearest" }); // on a phone, it is outside
    const places = new Map();
    for (const { rank, line } of state.ranks) if (line) places.set(line, [...(places.get(line) ?? []), rank]);
    this.showRanks(places, true);
    this.step.replaceChildren(
      h("p", {}, `Step ${this.index + 1} of ${this.steps.moments.length}.`),
      h(
        "ul",
        {},
        state.ranks.map((one) => h("li", {}, place(one))),
      ),
      h("p", {}, flight(state.inFlight)),
    );
  }
}

// A check replaces the sends that may buffer, and their names in the picture differ from the program's.
const synchronous = (calls) =>
  calls.some(({ api }) => /^i?ssend/i.test(api))
    ? " No message is buffered, because a correct program does not depend on buffers: Send is Ssend, and Isend is Issend."
    : "";

function place({ rank, calls, line, before, after }) {
  if (!before) return after ? `rank ${rank} has not made its first call` : `rank ${rank} makes no calls`;
  if (!calls.length) return `rank ${rank} has left ${before.api} in line ${line}`;
  const names = calls.map((call) => `${call.api} ${other(call)}`);
  return `rank ${rank} is in ${names.join(" and in ")}, line ${line}`;
}

function flight(messages) {
  const left = offered(messages);
  const moving = messages.filter((send) => !left.includes(send));
  const list = (sends) => sends.map((send) => `${send.rank}\u00a0→\u00a0${send.peer} (${plural(send.bytes, "byte")})`).join(", ");
  const sentences = [
    moving.length && `${plural(moving.length, "message")} in flight: ${list(moving)}.`,
    left.length && `${plural(left.length, "message")} that no rank receives: ${list(left)}.`,
  ];
  return sentences.filter(Boolean).join(" ") || "No message is in flight.";
}

function legend() {
  const entry = (kind, text) => h("li", {}, h("span", { class: `key ${kind}`, "aria-hidden": "true" }), text);
  return h(
    "ul",
    { class: "legend" },
    entry("compute", "runs other code"),
    entry("idle", "waits for another rank"),
    entry("communication", "communicates"),
    entry("forever", "waits forever"),
    h("li", {}, "Sends are above a rank’s line, receives are below it, and collectives are on both sides."),
  );
}
