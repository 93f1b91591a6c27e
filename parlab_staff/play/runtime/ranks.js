// Starts ranks in this page, and runs programs on them.
//
//     const ranks = new Ranks({ size: 4, assets: { pyodide, files }, onOutput: (rank, text) => … });
//     await ranks.start();
//     const { results, events, size, ms } = await ranks.run({ code, setup, check, seconds: 20 });
//
// `events` are the calls of the program, or of one case of the check, which had `size` ranks and numbered them.
// `pyodide` is the address of the folder with Python, and `files` that of a JSON file with the
// course's Python files. Both have a version or a hash in their names, which name the snapshot, too.
import { interruptedLine, makeShared, overdue, reset, wake } from "./hub.js";

const GRACE = 3000; // milliseconds until a rank that does not stop is replaced, unless a page asks for more
const LARGEST_HEAP = 400 << 20; // bytes; Python cannot give memory back, so a larger rank is replaced
const AGAIN = 300; // milliseconds between interrupts: Python ignores one that comes in a destructor
const LOOK = 200; // milliseconds between two searches for ranks whose time is over
const SNAPSHOTS = "parlab-snapshots";

export class Ranks {
  constructor({ size, assets, onOutput = () => {}, grace = GRACE }) {
    this.size = size; this.onOutput = onOutput; this.grace = grace;
    this.assets = Object.fromEntries(Object.entries(assets).map(([name, url]) => [name, new URL(url, document.baseURI).href]));
    this.workers = []; this.interrupts = []; this.heaps = [];
    this.current = null; // the run in progress
  }

  /** Start all ranks. Raises an Error that says why they cannot start. */
  async start() {
    this.shared = makeShared(this.size);
    reset(this.shared);
    this.loaded = await load(this.assets);
    this.loaded.snapshot = await snapshot(this.loaded);
    await Promise.all(Array.from({ length: this.size }, (_, rank) => this._startRank(rank)));
  }

  /** Run `setup` and then `code` on all ranks, and then `check`: Python code of the lab. */
  async run({ code, setup = "", check = "", seconds = 20 }) {
    if (this.current) throw new Error("The ranks are still running.");
    const run = this.current = { code, results: [], events: [], numbers: [], waiting: this.size, broken: new Set() };
    try {
      try { await this.restarted; } catch { this._replace(this.replaced); await this.restarted; }
      reset(this.shared);
      for (const interrupt of this.interrupts) interrupt[0] = 0;
      const begun = performance.now();
      const timer = setTimeout(() => this.stop(), 1000 * seconds);
      const look = setInterval(() => overdue(this.shared, performance.now() - begun).forEach((rank) => this._interrupt(rank)), LOOK);
      await new Promise((resolve) => {
        run.resolve = resolve;
        for (const worker of this.workers) worker.postMessage({ do: "run", code, setup, check, begun: performance.timeOrigin + begun });
        if (run.stopFirst) this.stop();
      });
      clearTimeout(timer);
      clearInterval(look);
      clearInterval(run.stopping);
      const ms = performance.now() - begun, events = run.events.sort((a, b) => a.t0 - b.t0);
      const first = events[0]?.t0 ?? 0;
      for (const event of events) {
        event.t0 -= first; event.t1 -= first;
        event.rank = run.numbers[event.rank];
        if (event.peer >= 0) event.peer = run.numbers[event.peer] ?? event.peer;
      }
      this._replace(run.broken);
      return { results: run.results, events, size: run.numbers.filter((number) => number >= 0).length, ms };
    } finally { this.current = null; }
  }

  /** Interrupt the run. It ends at the latest after the grace period. */
  stop() {
    const run = this.current;
    if (!run) return;
    if (!run.resolve) { run.stopFirst = true; return; } // while ranks start again
    const interrupt = () => { for (let rank = 0; rank < this.size; rank++) if (!run.results[rank]) this._interrupt(rank); };
    interrupt();
    run.stopping ??= setInterval(interrupt, AGAIN);
    setTimeout(() => {
      if (this.current !== run) return;
      for (let rank = 0; rank < this.size; rank++)
        if (!run.results[rank]) this._lost(rank, { kind: "killed", error: "did not react" });
    }, this.grace);
  }

  /** End all ranks. */
  close() {
    for (const worker of this.workers) worker.terminate();
    this.workers = [];
  }

  _interrupt(rank) {
    this.interrupts[rank][0] = 2; // SIGINT: Python raises KeyboardInterrupt
    wake(this.shared, rank);
  }
  _startRank(rank) {
    this.workers[rank]?.terminate();
    const interrupt = this.interrupts[rank] = new Uint8Array(new SharedArrayBuffer(1));
    return new Promise((resolve, reject) => {
      const worker = this.workers[rank] = startWorker(`rank ${rank}`);
      worker.onmessage = ({ data }) => {
        if (data.ready) { this.heaps[rank] = data.heap; resolve(); }
        else if (data.failed) reject(new Error(data.failed));
        else if (data.output !== undefined) this.onOutput(rank, data.output);
        else this._ended(rank, data);
      };
      worker.onerror = (event) => {
        event.preventDefault();
        reject(new Error(event.message || "A rank could not start."));
        if (this.current) this._lost(rank, { kind: "killed", error: `ended (${event.message || "without a message"})` });
      };
      worker.postMessage({ do: "start", rank, shared: this.shared, interrupt, ...this.loaded });
    });
  }
  _ended(rank, { done, events, number, heap, broken }) {
    const run = this.current;
    if (!run || run.results[rank]) return;
    this.heaps[rank] = heap;
    run.results[rank] = this._placed(rank, done);
    run.events.push(...events);
    run.numbers[rank] = number;
    if (broken || heap > LARGEST_HEAP) run.broken.add(rank);
    if (--run.waiting === 0) run.resolve();
  }
  /** Count a rank that will not answer as ended. The others may wait for it, so stop them, too. */
  _lost(rank, result) {
    const run = this.current;
    if (run.results[rank]) return;
    this.workers[rank].terminate();
    run.results[rank] = this._placed(rank, result);
    run.numbers[rank] = rank;
    run.broken.add(rank);
    if (--run.waiting === 0) run.resolve();
    else if (!run.stopping) this.stop();
  }
  /** Add where a rank was that was interrupted: its own report may be late, or interrupted again. */
  _placed(rank, result) {
    const { code, stopping } = this.current;
    // A rank that misses an interrupt may then wait for one that has stopped.
    const kind = result.kind === "stuck" && stopping ? "interrupted" : result.kind;
    if (kind !== "interrupted" && kind !== "killed") return result;
    const line = result.line || interruptedLine(this.shared, rank);
    return { ...result, kind, line, text: (code.split("\n")[line - 1] ?? "").trim() };
  }
  /** Start ranks again. The next run waits for them. */
  _replace(ranks) {
    if (!ranks.size) return;
    this.replaced = ranks;
    this.restarted = Promise.all([...ranks].map((rank) => this._startRank(rank)));
  }
}

function startWorker(name) {
  return new Worker(new URL("./worker.js", import.meta.url), { type: "module", name });
}

async function fetched(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url.split("/").at(-1)} could not be loaded (${response.status}).`);
  return response;
}

/** Load and compile what all ranks need. */
async function load({ pyodide, files }) {
  const [packed, lock, course] = await Promise.all(
    [pyodide + "pyodide.asm.wasm.packed", pyodide + "pyodide-lock.json", files].map(fetched));
  const stream = packed.body.pipeThrough(new DecompressionStream("gzip"));
  const module = await WebAssembly.compileStreaming(new Response(stream, { headers: { "Content-Type": "application/wasm" } }));
  return { pyodide, module, lock: await lock.text(), files: await course.json() };
}

/** Return the memory of a Python that has just started, for all ranks. The browser keeps it, so that
 *  the next visit starts faster. */
async function snapshot(loaded) {
  const cache = await caches.open(SNAPSHOTS).catch(() => null); // none in some private windows
  const kept = await cache?.match(loaded.pyodide + "snapshot");
  const bytes = kept ? new Uint8Array(await kept.arrayBuffer()) : await makeSnapshot(loaded);
  if (!kept && cache) {
    for (const old of await cache.keys()) await cache.delete(old);
    await cache.put(loaded.pyodide + "snapshot", new Response(bytes)).catch(() => {}); // the disk may be full
  }
  const shared = new Uint8Array(new SharedArrayBuffer(bytes.length));
  shared.set(bytes);
  return shared;
}

function makeSnapshot(loaded) {
  return new Promise((resolve, reject) => {
    const worker = startWorker("first Python");
    worker.onerror = (event) => reject(new Error(event.message || "Python could not start."));
    worker.onmessage = ({ data }) => {
      worker.terminate();
      if (data.failed) reject(new Error(data.failed)); else resolve(data.snapshot);
    };
    worker.postMessage({ do: "start", rank: -1, makeSnapshot: true, ...loaded });
  });
}
