// The calls of a run as a table, and the count of messages with the formulas of the book.
import { h, plural } from "./dom.js";
import { bytesOf, isCollective, neverEnds, offered, other, sent } from "./steps.js";

const MOST = 300;
const RECORDED = 5000; // calls of a rank that are recorded: MOST_EVENTS in worker.js

export function table(events) {
  const head = ["rank", "line", "call", "other side", "tag", "bytes", "time in the call"];
  const rows = events.slice(0, MOST).map((event) => [
    event.rank,
    event.line,
    event.api,
    other(event),
    isCollective(event) ? "" : event.tag < 0 ? "any" : event.tag,
    event.bytes.toLocaleString("en-US"),
    neverEnds(event) ? "waits forever" : `${(event.t1 - event.t0).toFixed(2)} ms`,
  ]);
  const left = events.length - rows.length;
  return h(
    "details",
    { class: "calls" },
    h("summary", {}, `Table of ${plural(events.length, "call")}`),
    scrolled("Table of calls", head, rows),
    left > 0 && h("p", {}, `The table leaves out ${plural(left, "later call")}.`),
  );
}

// `formula` is the text of the page's formula, and `costs` its values for 1, 2, … ranks if the program calls the
// function as the page does. A case of a check may call it several times.
export function counts(events, size, { formula, costs }, checked) {
  const total = sent(events, size);
  const sum = (name) => total.reduce((all, one) => all + one[name], 0);
  const most = {
    messages: Math.max(...total.map((one) => one.messages)),
    bytes: Math.max(...total.map((one) => one.bytes)),
  };
  const collectives = events.filter(isCollective).length;
  const lines = [];
  const calls = Array.from({ length: size }, (_, rank) => events.filter((event) => event.rank === rank).length);
  if (Math.max(...calls) >= RECORDED)
    lines.push(h("li", {}, `Only the first ${RECORDED.toLocaleString("en-US")} calls of each rank are recorded and counted.`));
  if (events.some((event) => !isCollective(event)))
    lines.push(
      h("li", {}, `All ranks together sent ${amounts({ messages: sum("messages"), bytes: sum("bytes") })}.`),
      h("li", {}, `A rank sent at most ${amounts(most)}.`),
    );
  const left = offered(events);
  if (left.length) {
    const bytes = plural(left.reduce((all, one) => all + one.bytes, 0), "byte");
    lines.push(h("li", {}, `No rank received ${plural(left.length, "more message")} (${bytes}).`));
  }
  if (collectives)
    lines.push(
      h("li", {}, `${plural(collectives, "collective call")}: the library's own messages are not counted.`),
    );
  if (formula) {
    const numbers = costs?.length ? `: ${amounts(costs[size - 1])} on ${plural(size, "rank")}` : "";
    const call = checked ? " for one call" : "";
    lines.push(h("li", {}, `The formula of the book${call} is ${formula}${numbers}.`));
  }
  return h("ul", { class: "counts" }, lines);
}

const amounts = ({ messages, bytes }) =>
  `${plural(messages, "message")} and ${plural(Math.round(bytes), "byte")}`;

// What the algorithms of the book send for the collectives of a run. `known` has, for each collective, the
// algorithm, its formula, and its costs for one byte on 1, 2, … ranks.
export function algorithms(events, known) {
  const calls = new Map();
  for (const event of events)
    if (isCollective(event) && event.api in known && !neverEnds(event))
      calls.set(event.order, [...(calls.get(event.order) ?? []), event]);
  if (!calls.size) return null;
  const rows = new Map(); // equal calls share a row, which counts them
  const total = { messages: 0, bytes: 0 };
  for (const call of calls.values()) {
    const { algorithm, formula, costs } = known[call[0].api];
    const { messages, bytes } = costs[call.length - 1];
    const size = bytesOf(call);
    const row = [call[0].api, size, `${algorithm}: ${formula}`, messages, Math.round(size * bytes)];
    rows.set(String(row), [(rows.get(String(row))?.[0] ?? 0) + 1, ...row]);
    total.messages += messages;
    total.bytes += size * bytes;
  }
  return h(
    "details",
    { class: "algorithms" },
    h("summary", {}, "Costs of these collectives by the book’s formulas"),
    scrolled(
      "Table of algorithms",
      ["calls", "name", "S in bytes", "algorithm and its formula", "rounds", "bytes"],
      [...rows.values()],
    ),
    h(
      "p",
      {},
      "The time depends on the rounds, and on the bytes along the slowest chain of messages: " +
        `${plural(total.messages, "round")} and ${plural(Math.round(total.bytes), "byte")} for all calls together.`,
    ),
  );
}

function scrolled(name, head, rows) {
  const cells = (tag, row, attributes = {}) => row.map((cell) => h(tag, attributes, String(cell)));
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": name },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, cells("th", head, { scope: "col" }))),
      h("tbody", {}, rows.map((row) => h("tr", {}, cells("td", row)))),
    ),
  );
}
