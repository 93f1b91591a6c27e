// The hub of the playground under Node. `test_play_hub.py` runs this.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { SLOTS } from "../../parlab_staff/play/runtime/hub.js";
import { NodeRanks } from "../support/hub_rank.mjs";

const fits = "growable" in SharedArrayBuffer.prototype; // not in Node before version 20: the room has 16 MB
const ANY = -1, ranks = { 2: new NodeRanks(2), 3: new NodeRanks(3) };
after(() => Promise.all(Object.values(ranks).map((set) => set.close())));

const run = (...program) => ranks[program.length].run(program);
const ended = (received) => ({ received, at: null });
const stuck = (at, received = []) => ({ received, at, why: "deadlock" });

test("a message arrives, no matter which rank comes first", async () => {
  for (const late of [0, 1]) {
    const program = [[["send", 1, 5, 17]], [["receive", 0, 5]]];
    program[late].unshift(["sleep", 0.05]);
    assert.deepEqual(await run(...program), [ended([]), ended([17])]);
  }
});
test("messages between two ranks stay in order, and a tag chooses among them", async () => {
  const sends = [1, 2, 3].map((value) => ["begin send", 1, value % 2, value]);
  const receives = [["sleep", 0.1], ["receive", 0, 0], ["receive", 0, ANY], ["receive", 0, 1]];
  assert.deepEqual((await run([...sends, ["wait"], ["wait"], ["wait"]], receives))[1], ended([2, 1, 3]));
});
test("messages of another communicator are not taken", async () => {
  const program = [[["begin send", 1, 0, 1], ["context", 2], ["send", 1, 0, 2], ["wait"]], [["context", 2], ["receive", 0, 0], ["context", 0], ["receive", 0, 0]]];
  assert.deepEqual(await run(...program), [ended([]), ended([2, 1])]);
});
test("a receive from any rank takes the message that was sent first", async () => {
  // Rank 1 sends after rank 2 has, and rank 0 receives after both have.
  const program = [
    [["receive", 1, 9], ["receive", ANY, 0], ["receive", ANY, 0]],
    [["receive", 2, 9], ["begin send", 0, 0, 1], ["send", 0, 9, 5], ["wait"]],
    [["begin send", 0, 0, 2], ["send", 1, 9, 5], ["wait"]],
  ];
  assert.deepEqual((await run(...program))[0], ended([5, 2, 1]));
});
test("a rank may send to itself", async () => {
  assert.deepEqual((await run([["begin send", 0, 0, 9], ["receive", 0, 0], ["wait"]], []))[0], ended([9]));
});
test("ranks that wait in a circle are stuck, each in its line", async () => {
  const send = (peer) => [["sleep", 0.02 * peer], ["send", peer, 0, 1], ["receive", ANY, 0]];
  assert.deepEqual(await run(send(1), send(2), send(0)), [stuck(1), stuck(1), stuck(1)]);
});
test("a rank that waits for one that has ended is stuck", async () => {
  assert.deepEqual(await run([["receive", 1, 0]], [["sleep", 0.05]], []), [stuck(0), ended([]), ended([])]);
});
test("a tag that no message has is a deadlock", async () => {
  assert.deepEqual(await run([["send", 1, 1, 5]], [["receive", 0, 2]]), [stuck(0), stuck(0)]);
});
test("ranks are not stuck while one of them sleeps", async () => {
  const program = [[["receive", 1, 0]], [["receive", 2, 0], ["send", 0, 0, 4]], [["sleep", 0.2], ["send", 1, 0, 3]]];
  assert.deepEqual(await run(...program), [ended([4]), ended([3]), ended([])]);
});
test("a deadlock frees only ranks in the reader's code, and the check goes on", async () => {
  const reader = [["inside", 1], ["try", ["receive", 1, 0]], ["inside", 0], ["send", 1, 7, 5]];
  assert.deepEqual(await run(reader, [["receive", 0, 7]]), [ended([-1]), ended([5])]);
});
test("what a rank has begun before a deadlock is taken back", async () => {
  const reader = [["inside", 1], ["begin receive", 1, 3], ["try", ["receive", 1, 0]], ["inside", 0], ["send", 1, 7, 5], ["receive", 1, 3]];
  assert.deepEqual(await run(reader, [["receive", 0, 7], ["send", 0, 3, 6]]), [ended([-1, 6]), ended([5])]);
});
test("a probe waits for a message and leaves it, and take gets that one", async () => {
  const program = [[["probe", ANY, 3], ["take", ANY, 3], ["receive", 1, 2]], [["begin send", 0, 2, 20], ["send", 0, 3, 30], ["wait"]]];
  assert.deepEqual((await run(...program))[0], ended([1, 30, 20]));
});
test("a probe for a message that never comes is a deadlock", async () => {
  assert.deepEqual(await run([["probe", 1, 0]], []), [stuck(0), ended([])]);
});
test("a receive that was taken back gets no message", async () => {
  const program = [[["begin receive", 1, 0], ["cancel"], ["send", 1, 0, 1], ["receive", 1, 0]], [["receive", 0, 0], ["send", 0, 0, 2]]];
  assert.deepEqual(await run(...program), [ended([2]), ended([1])]);
});
test("a rank stops while it waits or sleeps", async () => {
  for (const waits of [["receive", 1, 0], ["sleep", 60]]) {
    const going = run([waits], [["sleep", 60]]), stopped = { received: [], at: 0, why: "interrupted" };
    setTimeout(() => ranks[2].stop(0), 100);
    assert.deepEqual(await ranks[2].results[0], stopped);
    ranks[2].stop(1);
    assert.deepEqual(await going, [stopped, stopped]);
  }
});
test("the memory of messages is used again, and grows for a large one", async () => {
  const many = Array.from({ length: 300 }, (_, i) => i);
  const big = 50 << 20;
  const sends = [...many.map((value) => ["send", 1, 0, value]), ["send", 1, 0, [big]], ["send", 1, 0, [3]]];
  const [sender, receiver] = await run(sends, [...many, 0, 0].map(() => ["receive", 0, 0]));
  if (fits) assert.deepEqual(receiver, ended([...many, big, 3]));
  const second = [["begin send", 1, 0, [40 << 20]], ["begin send", 1, 0, 7], ["wait"], ["send", 1, 1, [40 << 20]], ["wait"]];
  if (fits) assert.deepEqual((await run(second, [["receive", 0, 0], ["receive", 0, 1], ["receive", 0, 0]]))[1], ended([40 << 20, 40 << 20, 7]));
  else assert.equal(sender.why, "no memory");
});
test("a large message waits until a receiver has copied those before it", { skip: !fits }, async () => {
  const sends = [["begin send", 1, 0, [40 << 20]], ["begin send", 1, 1, [40 << 20]]];
  const copiesLate = [["begin receive", 0, 0], ["send", 0, 2, 1], ["sleep", 0.05], ["wait"], ["receive", 0, 1]];
  const program = [[["begin receive", 1, 2], ["wait"], ...sends], copiesLate];
  assert.deepEqual(await run(...program), [ended([1]), ended([40 << 20, 40 << 20])]);
  const copiesNever = [["begin receive", 0, 0], ["send", 0, 2, 1], ["receive", 0, 1]];
  assert.deepEqual(await run(program[0], copiesNever), [{ received: [1], at: 3, why: "no memory" }, stuck(2)]);
  const stopped = { received: [1], at: 3, why: "interrupted" };
  const going = run(program[0], [["begin receive", 0, 0], ["send", 0, 2, 1], ["sleep", 60]]);
  setTimeout(() => ranks[2].stop(0), 100);
  assert.deepEqual(await ranks[2].results[0], stopped);
  ranks[2].stop(1);
  await going;
});
test("too many messages under way, or too large ones, are refused", async () => {
  const many = Array.from({ length: SLOTS + 1 }, () => ["begin send", 1, 0, 1]);
  assert.deepEqual((await run(many, []))[0], { received: [], at: SLOTS, why: "no slot" });
  assert.deepEqual((await run([["begin send", 1, 0, [65 << 20]]], []))[0], { received: [], at: 0, why: "no memory" });
});
test("a program may follow one that was stuck", async () => {
  await run([["send", 1, 0, 1]], [["send", 0, 0, 1]]);
  assert.deepEqual(await run([["send", 1, 0, 8]], [["receive", 0, 0]]), [ended([]), ended([8])]);
});
