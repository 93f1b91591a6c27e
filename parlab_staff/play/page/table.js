// The calls of a run as a table, and the count of messages with the formula of the exercise.
import { h, plural } from "./dom.js";
import { isCollective, neverEnds, other, sent } from "./steps.js";

const MOST = 300;

export function table(events) {
  const head = ["rank", "line", "call", "other side", "tag", "bytes", "time in the call"];
  const rows = events.slice(0, MOST).map((event) =>
    h(
      "tr",
      {},
      [
        event.rank,
        event.line,
        event.api,
        other(event),
        isCollective(event) ? "" : event.tag < 0 ? "any" : event.tag,
        event.bytes.toLocaleString("en-US"),
        neverEnds(event) ? "waits forever" : `${(event.t1 - event.t0).toFixed(2)} ms`,
      ].map((cell) => h("td", {}, String(cell))),
    ),
  );
  const left = events.length - rows.length;
  return h(
    "details",
    { class: "calls" },
    h("summary", {}, `Table of ${plural(events.length, "call")}`),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of calls" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            head.map((name) => h("th", { scope: "col" }, name)),
          ),
        ),
        h("tbody", {}, rows),
      ),
    ),
    left > 0 && h("p", {}, `The table leaves out ${plural(left, "later call")}.`),
  );
}

// `formula` is the exercise's text, and `costs` its values for 1, 2, … ranks with the page's own data.
export function counts(events, size, { formula, costs }, original) {
  const total = sent(events, size);
  const sum = (name) => total.reduce((all, one) => all + one[name], 0);
  const most = {
    messages: Math.max(...total.map((one) => one.messages)),
    bytes: Math.max(...total.map((one) => one.bytes)),
  };
  const amounts = ({ messages, bytes }) =>
    `${plural(messages, "message")} and ${plural(Math.round(bytes), "byte")}`;
  const collectives = events.filter(isCollective).length;
  const lines = [];
  if (events.some((event) => !isCollective(event)))
    lines.push(
      h("li", {}, `All ranks together sent ${amounts({ messages: sum("messages"), bytes: sum("bytes") })}.`),
      h("li", {}, `A rank sent at most ${amounts(most)}.`),
    );
  if (collectives)
    lines.push(
      h("li", {}, `${plural(collectives, "collective call")}: the library's own messages are not counted.`),
    );
  if (formula) {
    const numbers =
      original && costs.length ? `: ${amounts(costs[size - 1])} on ${plural(size, "rank")}` : "";
    lines.push(h("li", {}, `The formula of the book is ${formula}${numbers}.`));
  }
  return h("ul", { class: "counts" }, lines);
}
