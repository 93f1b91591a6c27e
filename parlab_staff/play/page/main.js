// The page: connects editor, ranks, and what is shown of a run.
import { Ranks } from "../runtime/ranks.js";
import { element, h, plural } from "./dom.js";
import { Editor } from "./editor.js";
import { isolate } from "./isolate.js";
import { codeInLink, dropLink, keep, kept, linkOf } from "./store.js";
import { problems, verdict } from "./verdict.js";
import { View } from "./view.js";

const page = JSON.parse(element("data").textContent);
const SECONDS = 60; // for a program that never ends: a check on a slow computer needs more than 20
const MOST_LINES = 500; // of output, for each rank
const say = (text) => (element("status").textContent = text);
const buttons = (...ids) => ids.map(element).filter(Boolean);

let editor,
  view,
  ranks,
  starting, // the ranks of the latest start
  output = [], // of each rank
  drawn = 0, // the request to show the output, if there is one
  together = false, // show output once that all ranks have printed
  shared = false,
  running = false,
  stopped = false;

async function main() {
  const linked = await fromLink();
  shared = linked !== null;
  element("shared").hidden = !shared;
  editor = new Editor(element("editor"), {
    text: linked ?? kept(page.name) ?? page.program,
    onChange: changed,
    onRun: () => !running && ranks && run(false),
    onLeave: () => (element("run").disabled ? element("workshop") : element("run")).focus(),
  });
  view = new View(element("picture"), (places, scroll) => editor.showRanks(places, scroll));
  listen();
  if (window.playgroundMissing) return;
  if (!(await isolate())) return;
  await start();
  await keepFormulas().catch(() => {}); // offline, or without storage
}

// The service worker keeps what shows formulas, also if this page has none, so that all pages work offline.
async function keepFormulas() {
  const url = new URL(page.formulas, location.href).href;
  if (!(await caches.match(url))) await fetch(url);
}

async function fromLink() {
  try {
    return await codeInLink();
  } catch {
    element("verdict").textContent = "The program in this link is damaged. Ask for the link again.";
    dropLink();
    return null;
  }
}

function changed(text) {
  if (!shared) keep(page.name, text === page.program ? null : text);
}

// Start as many ranks as the reader has chosen, instead of those that run now.
async function start() {
  const size = Number(element("size").value);
  for (const button of buttons("run", "check")) button.disabled = true;
  element("size").disabled = false;
  say(`Starting Python on ${plural(size, "rank")}…`);
  ranks?.close();
  ranks = null;
  document.body.dataset.ready = "";
  const begun = performance.now();
  const made = (starting = new Ranks({ size, assets: page.assets, onOutput: received }));
  try {
    await made.start();
  } catch (error) {
    made.close();
    if (made === starting) window.playgroundProblem(explained(error, size));
    return;
  }
  if (made !== starting) return made.close(); // the reader has chosen another number since
  ranks = made;
  element("problem").hidden = true;
  for (const button of buttons("run", "check")) button.disabled = false;
  say(`${plural(size, "rank")} ready after ${duration(performance.now() - begun)}.`);
  document.body.dataset.ready = size;
}

const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

function explained(error, size) {
  const text = String(error.message ?? error);
  if (/memory|allocat/i.test(text))
    return `This device has too little free memory for ${plural(size, "rank")}. Choose fewer ranks, or close other pages.`;
  if (!navigator.onLine)
    return "Python could not be loaded, because there is no network. Open this page once while you are online.";
  return `The ranks could not start: ${text}`;
}

function received(rank, text) {
  output[rank] += text;
  drawn ||= requestAnimationFrame(showOutput);
}

function showOutput() {
  drawn = 0;
  const once = together && output.every((text) => text === output[0]);
  const blocks = once
    ? [printed("all ranks", output[0])]
    : output.map((text, rank) => printed(`rank ${rank}`, text));
  element("output").replaceChildren(...blocks.filter(Boolean));
}

async function run(checked) {
  running = true;
  stopped = false;
  const { size } = ranks;
  document.body.dataset.ready = "";
  for (const button of buttons("run", "check", "size", "reset")) button.disabled = true;
  element("stop").disabled = false;
  for (const id of ["verdict", "output"]) element(id).replaceChildren();
  view.clear();
  editor.mark([]);
  say("Running…");
  output = Array.from({ length: size }, () => "");
  together = false;
  const code = editor.text;
  try {
    const ended = await ranks.run({
      code,
      setup: setup(checked),
      check: checked ? page.check : "",
      seconds: SECONDS,
    });
    show(ended, code, checked);
  } catch (error) {
    window.playgroundProblem(explained(error, size));
  }
  for (const button of buttons("run", "check", "size", "reset")) button.disabled = false;
  element("stop").disabled = true;
  running = false;
  document.body.dataset.ready = size;
}

// The imports of the lab, and the functions of earlier exercises that this one calls: the reference if
// the page has it, or else the reader's own code.
function setup(checked) {
  const needed = page.needs.map(({ name, code, stub }) => code ?? kept(name) ?? stub);
  const name = checked ? "exercise" : "__main__";
  return ['__name__ = "needed"', page.setup, ...needed, `__name__ = "${name}"`].join("\n");
}

function show({ results, events, size, ms }, code, checked) {
  const bad = results.some(({ kind }) => kind !== "returned");
  say(`${bad ? "Ended with a problem" : "Done"} after ${duration(ms)}.`);
  element("verdict").replaceChildren(...verdict(results, { checked, stopped, seconds: SECONDS }));
  together = checked && size > 1;
  showOutput();
  editor.mark(problems(results));
  const original = !checked && calling(code) === calling(page.program);
  view.show(events, size, { ...page, costs: original ? page.costs : null }, checked && tried(bad, size));
}

// The lines that call the function, or the whole program of an example. The formula's numbers are those of
// the page's own call.
const calling = (code) => code.slice(Math.max(0, code.indexOf('if __name__ == "__main__":')));

// A check tries the function many times, and the picture shows one of them.
const tried = (bad, size) =>
  `The check tried several cases. This is the last one${bad ? "" : " on all ranks"}, with ${plural(size, "rank")}.`;

function printed(title, whole) {
  if (!whole) return null;
  const all = whole.replace(/\n$/, "").split("\n");
  const left = all.length - MOST_LINES;
  const text = all.slice(0, MOST_LINES).join("\n") + (left > 0 ? `\n… and ${plural(left, "more line")}` : "");
  return h("div", { class: "printed" }, h("h3", {}, title), h("pre", { tabindex: 0 }, text));
}

function listen() {
  const on = (id, action) => element(id)?.addEventListener("click", action);
  on("run", () => run(false));
  on("check", () => run(true));
  on("stop", () => {
    stopped = true;
    ranks.stop();
  });
  element("size").addEventListener("change", start);
  on("reset", () => {
    // With a link's program in the editor, nothing is saved, and the reader's own code is kept.
    editor.text = page.program;
    say(
      "The editor contains the page’s own program again. " +
        (shared ? "“Back to my code” brings yours back." : "Undo brings yours back."),
    );
  });
  on("share", share);
  on("keep-shared", () => {
    leaveLink();
    keep(page.name, editor.text);
  });
  on("leave-shared", () => {
    leaveLink();
    editor.text = kept(page.name) ?? page.program;
  });
  on("use-reference", () => {
    editor.text = page.reference;
    element("workshop").scrollIntoView();
    say("The editor contains the reference solution. Undo brings your code back.");
  });
  for (const button of buttons("reset", "share", "use-reference")) button.disabled = false;
  addEventListener("hashchange", () => location.hash.startsWith("#code=") && location.reload());
}

function leaveLink() {
  shared = false;
  element("shared").hidden = true;
  dropLink();
}

async function share() {
  const link = await linkOf(editor.text);
  try {
    await navigator.clipboard.writeText(link);
    say("The link to this program is on the clipboard.");
  } catch {
    prompt("Copy this link to your program:", link);
  }
}

main().catch((error) => window.playgroundProblem(`The page could not start: ${error.message ?? error}`));
