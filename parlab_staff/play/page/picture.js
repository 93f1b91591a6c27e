// The picture of a run: one row for each rank, time from left to right, an arrow for each message.
// Colors and patterns are those of the course: a call waits for other ranks (idle, dots) and then
// communicates (orange, strokes). Between calls, a rank runs other code (blue, a thin line).
import { plural, svg } from "./dom.js";
import { isCollective, isSend, neverEnds, other } from "./steps.js";

const SMALLEST = 500, // of a picture to scale
  MOMENT = 12, // what a moment needs to be seen; with less room, the picture scrolls
  ROW = 52,
  NAMES = 58, // stay in view while the picture scrolls
  LEFT = 4,
  RIGHT = 14,
  TOP = 12,
  BAR = 9;
const MOST = 1000; // calls that one picture shows

export class Picture {
  // `room` is the width that a reader sees at once.
  constructor(steps, inTime, room) {
    this.steps = steps;
    this.width = Math.max(room - NAMES, inTime ? SMALLEST : LEFT + RIGHT + MOMENT * steps.moments.length);
    this.inTime = inTime;
    this.height = TOP + steps.size * ROW + 26;
    this.place = new Map(steps.moments.map((moment, index) => [moment, index]));
    this.shown = steps.events.slice(0, MOST);
    this.cursor = svg("line", { class: "cursor", y1: TOP, y2: this.height - 22, visibility: "hidden" });
    this.parts = [
      this.part(NAMES, { class: "names", "aria-hidden": "true" }, this.names()),
      this.part(
        this.width,
        { role: "img", "aria-label": this.description() },
        patterns(),
        this.rows(),
        this.steps.between().map((gap) => this.between(gap)),
        this.shown.flatMap((event) => this.bars(event)),
        this.arrows(),
        this.axis(),
        this.cursor,
      ),
    ];
  }

  part(width, attributes, ...children) {
    return svg("svg", { width, height: this.height, ...attributes }, ...children);
  }

  description() {
    const stuck = this.shown.filter(neverEnds).length;
    const waits = stuck ? ` ${plural(stuck, "call")} never end.` : "";
    return `${plural(this.steps.events.length, "call")} on ${plural(this.steps.size, "rank")} in time.${waits} The table below lists them.`;
  }

  x(moment) {
    const { first, last, moments } = this.steps;
    const share = this.inTime
      ? (moment - first) / (last - first)
      : (this.place.get(moment) ?? moments.length) / Math.max(1, moments.length);
    return LEFT + Math.min(1, share) * (this.width - LEFT - RIGHT);
  }

  y(rank) {
    return TOP + rank * ROW + ROW / 2;
  }

  names() {
    return this.ranks((rank) => svg("text", { x: 2, y: this.y(rank) + 4 }, `rank ${rank}`));
  }

  rows() {
    return this.ranks((rank) =>
      svg("line", { class: "row", x1: LEFT, x2: this.width - RIGHT, y1: this.y(rank), y2: this.y(rank) }),
    );
  }

  ranks(draw) {
    return Array.from({ length: this.steps.size }, (_, rank) => draw(rank));
  }

  between({ rank, from, to }) {
    const x = this.x(from);
    return svg("rect", {
      class: "compute",
      x,
      y: this.y(rank) - 2.5,
      width: Math.max(0, this.x(to) - x),
      height: 5,
    });
  }

  // Sends are above a rank's line, receives below it, and collectives on both sides.
  bars(event) {
    const waits = this.steps.waitsUntil(event),
      end = this.steps.end(event);
    const from = this.x(event.t0);
    const until = neverEnds(event) ? this.width - RIGHT : Math.max(this.x(end), from + 3);
    const middle = neverEnds(event) ? until : Math.min(until, Math.max(from, this.x(waits)));
    const both = isCollective(event);
    const y = this.y(event.rank) + (isSend(event) || both ? -BAR - 1 : 1);
    const height = both ? 2 * BAR + 2 : BAR;
    const bar = (left, right, kind) =>
      right - left > 0.3 &&
      svg(
        "rect",
        { x: left, y, width: right - left, height, class: kind, fill: `url(#${kind})` },
        svg("title", {}, describe(event)),
      );
    const idle = neverEnds(event) ? "forever" : "idle";
    return [bar(from, middle, idle), bar(middle, until, "communication")].filter(Boolean);
  }

  arrows() {
    return this.shown
      .filter((event) => isSend(event) && this.steps.partner(event))
      .map((send) => {
        const receive = this.steps.partner(send);
        const down = receive.rank > send.rank ? 1 : -1;
        return svg("line", {
          class: "arrow",
          "marker-end": "url(#head)",
          x1: this.x(send.t0),
          y1: this.y(send.rank) + down * 2,
          x2: this.x(receive.t1),
          y2: this.y(receive.rank) - down * 3,
        });
      });
  }

  axis() {
    const { first, last } = this.steps;
    const y = this.height - 6;
    const left = this.inTime ? "0 ms" : "first call";
    const right = this.inTime ? `${(last - first).toFixed(1)} ms` : "last call";
    return [
      svg("text", { x: LEFT, y }, left),
      svg("text", { x: this.width - RIGHT, y, "text-anchor": "end" }, right),
    ];
  }

  // Draw a line at a moment, or none.
  point(moment) {
    if (moment === null) return this.cursor.setAttribute("visibility", "hidden");
    const x = this.x(moment) + 1;
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    this.cursor.setAttribute("visibility", "visible");
  }
}

export function describe(event) {
  const time = neverEnds(event) ? "waits forever" : `${(event.t1 - event.t0).toFixed(2)} ms`;
  return `rank ${event.rank}, line ${event.line}: ${event.api} ${other(event)}, ${plural(event.bytes, "byte")}, ${time}`;
}

// Each kind has a color and a pattern, so the picture is readable without color.
function patterns() {
  const box = { width: 6, height: 6, patternUnits: "userSpaceOnUse" };
  const ground = (kind) => svg("rect", { width: 6, height: 6, class: `ground-${kind}` });
  return svg(
    "defs",
    {},
    svg(
      "pattern",
      { id: "communication", ...box },
      ground("communication"),
      svg("path", { d: "M-1 7 7 -1M-1 1 1 -1M5 7 7 5", class: "stroke" }),
    ),
    svg(
      "pattern",
      { id: "idle", ...box },
      ground("idle"),
      svg("circle", { cx: 3, cy: 3, r: 1, class: "dot" }),
    ),
    svg(
      "pattern",
      { id: "forever", ...box },
      ground("forever"),
      svg("path", { d: "M0 0 6 6M0 6 6 0", class: "stroke" }),
    ),
    svg(
      "marker",
      { id: "head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      svg("path", { d: "M0 0 8 4 0 8z", class: "head" }),
    ),
  );
}
