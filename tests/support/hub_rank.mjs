// A rank under Node: a thread that uses the hub of the playground. Tests give it a list of actions:
//   ["send", peer, tag, value]   ["receive", peer, tag]   wait for their end
//   ["begin send", …]  ["begin receive", …]  ["wait"]     wait for the oldest that was begun
//   ["probe", peer, tag]  ["take", peer, tag]  ["cancel"]  ["sleep", seconds]  ["inside", yes]
//   ["context", number]   ["try", action]   receives -1 if the action is stuck
// and get, for each rank, what it received, and where and why it ended early.
import { isMainThread, parentPort, Worker, workerData } from "node:worker_threads";
import { DEADLOCK, Hub, INTERRUPTED, makeShared, RECEIVE, reset, SEND, wake } from "../../parlab_staff/play/runtime/hub.js";

const REASONS = { [DEADLOCK]: "deadlock", [INTERRUPTED]: "interrupted", [-3]: "no slot", [-4]: "no memory" };
class Stopped extends Error {}
const checked = (answer) => { if (answer < 0) throw new Stopped(REASONS[answer]); return answer; };

function perform(hub, actions) {
  const begun = [], received = [];
  let at = 0, context = 0;
  const post = (name, peer, tag, value) => name.endsWith("send")
    ? checked(hub.post(SEND, context, peer, tag, Array.isArray(value) ? new Uint8Array(value[0]) : new Uint8Array(Int32Array.of(value).buffer)))
    : checked(hub.post(RECEIVE, context, peer, tag, null, 4));
  const end = (name, slot) => {
    checked(hub.waitAny([slot]));
    if (name.endsWith("send")) return hub.endSend(slot);
    const message = hub.received(slot);
    received.push(message.bytes === 4 ? new Int32Array(hub.memory(message, 4).slice().buffer)[0] : message.bytes);
    hub.freeReceive(slot);
  };
  const act = ([name, peer, tag, value]) => {
    if (name === "send" || name === "receive") end(name, post(name, peer, tag, value));
    else if (name.startsWith("begin")) begun.push([name, post(name, peer, tag, value)]);
    else if (name === "wait") end(...begun.shift());
    else if (name === "cancel") hub.cancel(begun.shift()[1]);
    else if (name === "probe") received.push(hub.describe(checked(hub.waitForSend(context, peer, tag))).source);
    else if (name === "take") end("receive", hub.take(checked(hub.waitForSend(context, peer, tag))));
    else if (name === "sleep") checked(hub.sleep(peer));
    else if (name === "inside") hub.setInside(peer);
    else if (name === "context") context = peer;
    else if (name === "try") {
      try { act(peer); } catch (error) {
        if (!(error instanceof Stopped)) throw error;
        received.push(-1);
      }
    } else throw new Error(`no action ${name}`);
  };
  hub.begin();
  try {
    for (const action of actions) { act(action); at++; }
    return { received, at: null };
  } catch (error) {
    if (!(error instanceof Stopped)) throw error;
    return { received, at, why: error.message };
  } finally { hub.end(); }
}

if (!isMainThread && workerData?.shared) {
  const { shared, rank, interrupt } = workerData;
  parentPort.on("message", (actions) => {
    parentPort.postMessage(perform(new Hub(shared, rank, interrupt), actions));
  });
}

/** Ranks that run one program after the other: a list of actions for each rank. */
export class NodeRanks {
  constructor(size) {
    this.shared = makeShared(size);
    this.interrupts = Array.from({ length: size }, () => new Uint8Array(new SharedArrayBuffer(1)));
    this.workers = this.interrupts.map((interrupt, rank) =>
      new Worker(new URL(import.meta.url), { workerData: { shared: this.shared, rank, interrupt } }));
  }
  /** Return the results of all ranks; `this.results` has a promise for each rank. */
  run(program) {
    reset(this.shared);
    for (const interrupt of this.interrupts) interrupt[0] = 0;
    this.results = this.workers.map((worker, rank) => new Promise((resolve, reject) => {
      worker.removeAllListeners();
      worker.once("message", resolve).once("error", reject);
      worker.postMessage(program[rank]);
    }));
    return Promise.all(this.results);
  }
  stop(rank) {
    this.interrupts[rank][0] = 2;
    wake(this.shared, rank);
  }
  close() { return Promise.all(this.workers.map((worker) => worker.terminate())); }
}

// As a program, it runs what is on standard input: {size, programs}.
if (isMainThread && process.argv[2] === "run") {
  const chunks = [];
  for await (const chunk of process.stdin) chunks.push(chunk);
  const { size, programs } = JSON.parse(Buffer.concat(chunks));
  const ranks = new NodeRanks(size), results = [];
  for (const program of programs) results.push(await ranks.run(program));
  await ranks.close();
  console.log(JSON.stringify(results));
}
