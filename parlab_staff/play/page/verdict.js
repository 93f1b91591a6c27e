// How a run ended, in sentences: for the whole program, and for each rank that did not end normally.
import { h } from "./dom.js";

const at = ({ line }) => (line ? ` at line ${line}` : "");
const where = (result) => (result.line ? [`${at(result)}: `, h("code", {}, result.text)] : []);

function waiting(result) {
  const waits = result.waits;
  if (!waits) return "waits";
  if (waits.kind === "collective")
    return `waits in ${waits.api}` + (waits.peer < 0 ? "" : ` for rank ${waits.peer}`);
  if (waits.kind === "send") return `waits for rank ${waits.peer} to receive`;
  return waits.peer < 0 ? "waits for a message from any rank" : `waits for a message from rank ${waits.peer}`;
}

function sentence(result, rank) {
  const did = {
    returned: () => ["has ended"],
    stuck: () => [waiting(result), ...where(result)],
    raised: () => [`raised an error${at(result)}: ${result.error}`],
    interrupted: () => ["was stopped", ...where(result)],
    killed: () => [result.error, ...where(result), ". It was started again."],
    failed: () => ["failed the check"],
  }[result.kind];
  return [`rank ${rank} `, ...(did ? did() : [result.kind])];
}

// Returns elements for the verdict.
export function verdict(results, { checked, stopped, seconds }) {
  const of = (kind) => results.filter((result) => result.kind === kind);
  const list = () =>
    h(
      "ul",
      {},
      results.map((result, rank) => h("li", {}, sentence(result, rank))),
    );
  if (of("failed").length) {
    const { error, name } = of("failed")[0];
    return [
      h("p", { class: "bad", "data-mistake": name }, "The check found a problem."),
      h("pre", { class: "message", tabindex: 0 }, error),
    ];
  }
  if (of("stuck").length) {
    const why = of("raised").length
      ? "A rank raised an error, so no rank can continue."
      : "Deadlock: no rank can continue.";
    return [h("p", { class: "bad" }, why), list()];
  }
  if (of("raised").length) {
    return same(results) ?? [h("p", { class: "bad" }, "The program raised an error."), list()];
  }
  if (of("interrupted").length || of("killed").length) {
    const why = stopped ? "You stopped the program." : `The program was stopped after ${seconds} seconds.`;
    return [h("p", { class: "bad" }, why), list()];
  }
  if (checked) return [h("p", { class: "good" }, "The check passed. Well done.")];
  return [];
}

// The error, once, if all ranks raised the same one.
function same(results) {
  const [first] = results;
  const equal = results.every(
    ({ kind, error, line }) => kind === first.kind && error === first.error && line === first.line,
  );
  if (!equal) return null;
  const who = results.length > 1 ? "All ranks" : "The program";
  return [
    h("p", { class: "bad" }, `${who} raised an error${at(first)}.`),
    h("pre", { class: "message", tabindex: 0 }, first.error),
  ];
}

// The problems that the editor marks: {line, text} with all ranks of a line.
export function problems(results) {
  const found = new Map();
  results.forEach((result, rank) => {
    if (!["stuck", "raised", "interrupted", "killed"].includes(result.kind) || !result.line) return;
    const text = sentence(result, rank)
      .filter((part) => typeof part === "string")
      .join("")
      .replace(/ at line \d+(: (?=$|\.))?/, "");
    found.set(result.line, [...(found.get(result.line) ?? []), text]);
  });
  return [...found].map(([line, texts]) => ({ line, text: texts.join("\n") }));
}
