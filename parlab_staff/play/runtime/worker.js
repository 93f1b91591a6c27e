// One rank: a worker with its own Python, whose `mpi4py` sends messages through the hub.
import { Hub, RECEIVE, SEND } from "./hub.js";

const MOST_EVENTS = 5000; // more than a picture can show
const MOST_MEMORY = 512 << 20; // bytes of a rank; more raises MemoryError
let python, hub, rank, runProgram, begun = 0;
// What a picture shows: the calls of this rank, and which of how many ranks it is. A check tries its function
// in many cases, which number their ranks anew. `current` is the latest case, `full` the latest on all ranks.
const newCase = (number = -1, size = 0) => ({ events: [], number, size });
let current = newCase(), full = null;
const say = (message, transfer = []) => self.postMessage({ rank, ...message }, transfer);
const now = () => performance.timeOrigin + performance.now(); // the same clock on all ranks

/** Return memory of Python. It is valid until that memory grows. */
const memory = (address, bytes) => python._module.HEAPU8.subarray(address, address + bytes);

// What Python imports as `_hub`. Ranks are those of the page. Arguments are only numbers and text: Pyodide
// converts other objects by calling Python, and an interrupt there would raise its ConversionError.
const bridge = {
  now,
  new_context: () => hub.newContext(),
  set_inside: (inside) => hub.setInside(inside),
  // Interrupt this rank after so many seconds; 0 for never.
  set_limit: (seconds) => hub.setLimit(seconds && Math.ceil(now() - begun + 1000 * seconds)),
  others_wait: () => hub.othersWait(),
  next_case: () => { if (current.size === hub.size) full = current; current = newCase(); },
  take_part: (number, size) => { current.number = number; current.size = size; },
  sleep: (seconds) => hub.sleep(seconds),
  post_send: (context, peer, tag, address, bytes, detached) =>
    hub.post(SEND, context, peer, tag, memory(address, bytes), 0, detached),
  post_receive: (context, peer, tag, capacity) => hub.post(RECEIVE, context, peer, tag, null, capacity),
  ready: (slot) => hub.ready(slot),
  wait_any: (...slots) => hub.waitAny(slots),
  wait: (slot) => hub.waitAny([slot]),
  find_send: (context, peer, tag) => hub.findSend(context, peer, tag),
  wait_for_send: (context, peer, tag) => hub.waitForSend(context, peer, tag),
  take: (send) => hub.take(send),
  cancel: (slot) => hub.cancel(slot),
  end_send: (slot) => hub.endSend(slot),
  // [source, tag, bytes, order] of a send, or of the send that a receive has got
  describe: (send) => { const m = hub.describe(send); return [m.source, m.tag, m.bytes, m.order]; },
  received: (slot) => { const m = hub.received(slot); return [m.source, m.tag, m.bytes, m.order]; },
  copy: (slot, address, bytes) => memory(address, bytes).set(hub.memory(hub.received(slot), bytes)),
  free_receive: (slot) => hub.freeReceive(slot),
  // Python raises KeyboardInterrupt itself. `line` is 0 outside of the reader's code.
  interrupted: (line) => { hub.interrupt[0] = 0; if (line) hub.setLine(line); },
  write: (text) => say({ output: text }),
  event: (api, kind, peer, bytes, tag, t0, line, order) => {
    if (current.events.length < MOST_EVENTS) current.events.push({ rank, api, kind, peer, bytes, tag, t0, t1: now(), line, order });
  },
};

// A program that takes all memory would end the page, or slow down the reader's machine.
const grow = WebAssembly.Memory.prototype.grow;
WebAssembly.Memory.prototype.grow = function (pages) {
  if (this.buffer.byteLength + 65536 * pages > MOST_MEMORY) throw new RangeError("too much memory");
  return grow.call(this, pages);
};

/** Start Python. The page has compiled it once for all ranks: `module`. */
async function loadPython({ pyodide, module, lock, snapshot, makeSnapshot }) {
  const { loadPyodide } = await import(pyodide + "pyodide.mjs");
  const fetchFile = self.fetch, instantiate = WebAssembly.instantiateStreaming;
  self.fetch = (url, ...rest) =>
    String(url.url ?? url).endsWith("pyodide.asm.wasm") ? Promise.resolve(new Response("")) : fetchFile(url, ...rest);
  WebAssembly.instantiateStreaming = async (_, imports) => ({ module, instance: await WebAssembly.instantiate(module, imports) });
  try {
    const options = { indexURL: pyodide, lockFileContents: lock, packageBaseUrl: pyodide, stdout: () => {}, stderr: () => {} };
    if (snapshot) options._loadSnapshot = snapshot.slice(); // a copy: TextDecoder refuses shared memory
    if (makeSnapshot) options._makeSnapshot = true;
    return await loadPyodide(options);
  } finally {
    self.fetch = fetchFile;
    WebAssembly.instantiateStreaming = instantiate;
  }
}

async function start(message) {
  rank = message.rank;
  python = await loadPython(message);
  if (message.makeSnapshot) {
    const snapshot = python.makeMemorySnapshot();
    return say({ snapshot }, [snapshot.buffer]);
  }
  await python.loadPackage("numpy", { messageCallback: () => {}, errorCallback: () => {} });
  hub = new Hub(message.shared, rank, message.interrupt);
  python.setInterruptBuffer(message.interrupt);
  python.registerJsModule("_hub", bridge);
  // Where packages are installed, so that lines there do not count as the reader's.
  const folder = python.runPython("import sysconfig; sysconfig.get_path('purelib')") + "/";
  for (const [name, text] of Object.entries(message.files)) {
    const path = folder + name;
    python.FS.mkdirTree(path.slice(0, path.lastIndexOf("/")));
    python.FS.writeFile(path, text);
  }
  runProgram = python.runPython("import importlib; importlib.invalidate_caches(); import rank_program; rank_program.run_program");
  say({ ready: true, heap: python._module.HEAPU8.length });
}

function run({ code, setup, check, begun: runBegun }) {
  current = newCase(rank, hub.size);
  full = null;
  begun = runBegun;
  let result, broken = false;
  hub.begin();
  try {
    result = JSON.parse(runProgram(code, setup, check, rank, hub.size));
  } catch (error) { // a second interrupt, or the end of Python itself
    broken = error.type !== "KeyboardInterrupt";
    result = broken ? { kind: "raised", error: String(error.message ?? error).trim().split("\n").at(-1), line: 0, text: "" }
      : { kind: "interrupted", error: "", line: 0, text: "" };
  }
  hub.end();
  // Of a check that has passed, show a case in which all ranks took part.
  const { events, number } = result.kind === "returned" && full && current.size < hub.size ? full : current;
  say({ done: result, events, number, heap: python._module.HEAPU8.length, broken });
}

self.onmessage = ({ data }) => {
  if (data.do === "start") start(data).catch((error) => say({ failed: String(error.message ?? error) }));
  else run(data);
};
