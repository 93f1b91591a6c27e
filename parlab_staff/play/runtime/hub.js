// Messages between ranks. All state is in shared memory, so every rank may block.
//
// A rank that blocks notes which of its wake-ups it has seen. Everything that could let it continue
// sends it another one. So if each rank has ended or waits, and each has seen all of its wake-ups,
// no rank can ever continue. The rank that blocks last finds this out at once, without a timeout.
const LOCK = 0, ORDERS = 1, CONTEXTS = 2, BEGUN = 3, HEADER = 16;
// Numbers of each rank. INSIDE: it runs the reader's code, and not the check around it. LIMIT: the
// millisecond of the run at which the page interrupts it, or 0. LINE: the line of the reader's code at
// which it was interrupted last, or 0. The page reads it even if the rank never reports.
const STATE = 0, WAKE = 1, SEEN = 2, FREED = 3, INSIDE = 4, LIMIT = 5, LINE = 6, RANK_FIELDS = 8;
const RUNNING = 0, WAITING = 1, ENDED = 2;
// Numbers of each slot, which holds a send or a receive. REFS: who still needs the slot.
const USE = 0, KIND = 1, CONTEXT = 2, PEER = 3, TAG = 4, BYTES = 5, OFFSET = 6, MATCH = 7, ORDER = 8,
  REFS = 9, SLOT_FIELDS = 10;
const FREE = 0, POSTED = 1, MATCHED = 2;
export const SEND = 1, RECEIVE = 2, ANY = -1;
// Answers of `waitAny`, `waitForSend`, and `sleep`, and of `post` if it is stopped or has no slot or no memory.
export const DEADLOCK = -1, INTERRUPTED = -2, NO_SLOT = -3, NO_MEMORY = -4;

export const SLOTS = 256; // unfinished sends and receives of a rank
export const ROOM = 64 << 20; // bytes of a rank's unfinished sends
const FIRST_ROOM = 1 << 20;

/** Return the memory that `size` ranks share. Its rooms grow when a message needs it. */
export function makeShared(size) {
  const numbers = HEADER + size * (RANK_FIELDS + SLOTS * SLOT_FIELDS);
  const growable = "growable" in SharedArrayBuffer.prototype;
  const room = () => growable ? new SharedArrayBuffer(FIRST_ROOM, { maxByteLength: ROOM }) : new SharedArrayBuffer(ROOM / 4);
  return { size, control: new SharedArrayBuffer(4 * numbers), rooms: Array.from({ length: size }, room) };
}

/** Forget all messages. No rank may be running. */
export function reset(shared) {
  const c = new Int32Array(shared.control);
  c.fill(0);
  c[CONTEXTS] = 4; // those before belong to COMM_WORLD and COMM_SELF
}

/** Let a waiting rank look around, after its interrupt was set. */
export function wake(shared, rank) {
  const c = new Int32Array(shared.control), at = HEADER + rank * RANK_FIELDS + WAKE;
  Atomics.add(c, at, 1);
  Atomics.notify(c, at);
}

/** Return the ranks whose time limit is over, and remove these limits. */
export function overdue(shared, milliseconds) {
  const c = new Int32Array(shared.control);
  return [...Array(shared.size).keys()].filter((rank) => {
    const at = HEADER + rank * RANK_FIELDS + LIMIT, limit = Atomics.load(c, at);
    return limit > 0 && limit < milliseconds && Atomics.compareExchange(c, at, limit, 0) === limit;
  });
}

/** Return the line at which a rank was interrupted, or 0. */
export function interruptedLine(shared, rank) {
  return Atomics.load(new Int32Array(shared.control), HEADER + rank * RANK_FIELDS + LINE);
}

/** One rank's view. `interrupt` is an array whose first number is not 0 while the rank is to stop. */
export class Hub {
  constructor(shared, rank, interrupt) {
    this.c = new Int32Array(shared.control);
    this.rooms = shared.rooms.map((room) => new Uint8Array(room)); // their length follows the room's
    this.shared = shared; this.size = shared.size; this.rank = rank; this.interrupt = interrupt;
  }
  _rank(rank) { return HEADER + rank * RANK_FIELDS; }
  _slot(slot) { return HEADER + this.size * RANK_FIELDS + slot * SLOT_FIELDS; }
  _lock() { while (Atomics.compareExchange(this.c, LOCK, 0, 1) !== 0) Atomics.wait(this.c, LOCK, 1); }
  _unlock() { Atomics.store(this.c, LOCK, 0); Atomics.notify(this.c, LOCK, 1); }

  /** Wait until all ranks begin, so that the first one does not wait for messages of the last. */
  begin() {
    Atomics.add(this.c, BEGUN, 1);
    Atomics.notify(this.c, BEGUN);
    for (let n; (n = Atomics.load(this.c, BEGUN)) < this.size && !this.interrupt[0];) Atomics.wait(this.c, BEGUN, n, 50);
  }
  /** End this rank's part of the run. */
  end() {
    this._lock();
    this.c[this._rank(this.rank) + STATE] = ENDED;
    this._freeDeadlocked();
    this._unlock();
  }
  /** Note whether this rank runs the reader's code. A deadlock frees only those that do. */
  setInside(inside) {
    Atomics.store(this.c, this._rank(this.rank) + INSIDE, inside ? 1 : 0);
    if (inside) this.setLine(0); // of an earlier call that had a limit
  }
  setLine(line) { Atomics.store(this.c, this._rank(this.rank) + LINE, line); }
  setLimit(milliseconds) { Atomics.store(this.c, this._rank(this.rank) + LIMIT, milliseconds); }
  /** Return two numbers that mark the messages of a new communicator: this one and the next. */
  newContext() { return Atomics.add(this.c, CONTEXTS, 2); }
  /** Return whether each other rank waits or has ended. */
  othersWait() {
    this._lock();
    const wait = this._everyRank((r, at) => r === this.rank || this._waits(at) || this.c[at + STATE] === ENDED);
    this._unlock();
    return wait;
  }

  /** Post a send of `data`, or a receive of at most `capacity` bytes. Return its slot.
   *  Nothing waits for a `detached` send: its memory is freed after it was received. */
  post(kind, context, peer, tag, data, capacity = 0, detached = false) {
    const c = this.c, slot = this._freeSlot();
    if (slot < 0) return NO_SLOT;
    const at = this._slot(slot), bytes = kind === SEND ? data.length : capacity;
    if (kind === SEND) {
      let offset = this._memory(bytes);
      if (offset < 0) {
        // Messages that a receiver still copies give their memory back soon.
        const copied = () => this._sends().some((at) => this.c[at + USE] === MATCHED);
        const answer = this._block(() => (offset = this._memory(bytes)) < 0 && copied() ? -1 : 0, () => {});
        if (answer === INTERRUPTED) return INTERRUPTED;
        if (offset < 0) return NO_MEMORY;
      }
      this.rooms[this.rank].set(data, offset);
      c[at + OFFSET] = offset;
    }
    this._lock();
    c[at + KIND] = kind; c[at + CONTEXT] = context; c[at + PEER] = peer; c[at + TAG] = tag;
    c[at + BYTES] = bytes; c[at + MATCH] = -1; c[at + ORDER] = ++c[ORDERS];
    c[at + REFS] = kind === SEND && !detached ? 2 : 1; // the sender, and the receiver who copies
    Atomics.store(c, at + USE, POSTED);
    const other = kind === SEND ? this._receiveFor(at) : this._sendFor(context, peer, tag);
    if (other >= 0) this._pair(slot, other);
    else if (kind === SEND) this._wake(peer); // it may wait in a probe
    this._unlock();
    return slot;
  }
  _freeSlot() {
    for (let i = this.rank * SLOTS; i < (this.rank + 1) * SLOTS; i++)
      if (Atomics.load(this.c, this._slot(i) + USE) === FREE) return i;
    return -1;
  }
  /** Return this rank's unfinished sends whose memory is in use. */
  _sends() {
    return Array.from({ length: SLOTS }, (_, i) => this._slot(this.rank * SLOTS + i)).filter((at) =>
      Atomics.load(this.c, at + USE) !== FREE && this.c[at + KIND] === SEND && Atomics.load(this.c, at + BYTES));
  }
  /** Return where `bytes` fit between this rank's unfinished sends, or -1. */
  _memory(bytes) {
    const taken = this._sends().map((at) => [this.c[at + OFFSET], this.c[at + OFFSET] + this.c[at + BYTES]]);
    let begin = 0;
    for (const [from, to] of taken.sort((a, b) => a[0] - b[0])) {
      if (from - begin >= bytes) break;
      begin = Math.max(begin, to);
    }
    const room = this.shared.rooms[this.rank], end = begin + bytes;
    if (end > room.byteLength) {
      if (!room.growable || end > room.maxByteLength) return -1;
      room.grow(Math.min(room.maxByteLength, Math.max(end, 2 * room.byteLength)));
    }
    return begin;
  }
  _receiveFor(send) {
    const c = this.c, peer = c[send + PEER];
    return this._oldest(peer, (at) => c[at + KIND] === RECEIVE && c[at + CONTEXT] === c[send + CONTEXT]
      && (c[at + PEER] === ANY || c[at + PEER] === this.rank) && (c[at + TAG] === ANY || c[at + TAG] === c[send + TAG]));
  }
  _sendFor(context, peer, tag) {
    const c = this.c, ranks = peer === ANY ? [...Array(this.size).keys()] : [peer];
    const fits = (at) => c[at + KIND] === SEND && c[at + CONTEXT] === context && c[at + PEER] === this.rank
      && (tag === ANY || c[at + TAG] === tag);
    const found = ranks.map((r) => this._oldest(r, fits)).filter((slot) => slot >= 0);
    return found.length ? found.reduce((a, b) => c[this._slot(a) + ORDER] < c[this._slot(b) + ORDER] ? a : b) : -1;
  }
  _oldest(rank, fits) {
    let oldest = -1;
    for (let i = rank * SLOTS; i < (rank + 1) * SLOTS; i++) {
      const at = this._slot(i);
      if (this.c[at + USE] === POSTED && fits(at) && (oldest < 0 || this.c[at + ORDER] < this.c[this._slot(oldest) + ORDER])) oldest = i;
    }
    return oldest;
  }
  _pair(slot, other) {
    for (const [one, two] of [[slot, other], [other, slot]]) {
      this.c[this._slot(one) + MATCH] = two;
      Atomics.store(this.c, this._slot(one) + USE, MATCHED);
    }
    this._wake(Math.floor(other / SLOTS));
  }
  _wake(rank) {
    const at = this._rank(rank) + WAKE;
    Atomics.add(this.c, at, 1);
    Atomics.notify(this.c, at);
  }

  ready(slot) { return Atomics.load(this.c, this._slot(slot) + USE) === MATCHED; }
  /** Wait until one of the slots is matched. Return its place in the list, or a negative answer. */
  waitAny(slots) {
    return this._block(() => slots.findIndex((slot) => this.ready(slot)));
  }
  /** Return the slot of a send that waits for this rank, or -1. It stays where it is. */
  findSend(context, peer, tag) {
    this._lock();
    const found = this._sendFor(context, peer, tag);
    this._unlock();
    return found;
  }
  waitForSend(context, peer, tag) { return this._block(() => this._sendFor(context, peer, tag)); }
  /** Take a send that `findSend` found: return the slot of a receive that is paired with it. */
  take(send) {
    const slot = this._freeSlot();
    if (slot < 0) return NO_SLOT;
    const c = this.c, at = this._slot(slot);
    this._lock();
    c[at + KIND] = RECEIVE; c[at + BYTES] = 0; c[at + REFS] = 1; c[at + ORDER] = ++c[ORDERS];
    this._pair(slot, send);
    this._unlock();
    return slot;
  }
  /** Wait until `look` finds something. In a deadlock, call `freed` and return DEADLOCK. */
  _block(look, freed = () => this._withdraw()) {
    const c = this.c, own = this._rank(this.rank);
    for (;;) {
      this._lock();
      let answer = look();
      const seen = Atomics.load(c, own + WAKE);
      if (answer < 0) {
        c[own + STATE] = WAITING; c[own + SEEN] = seen;
        this._freeDeadlocked();
        if (this.interrupt[0]) answer = INTERRUPTED; // first: what it waits for may have been stopped, too
        else if (c[own + FREED]) { answer = DEADLOCK; freed(); }
        else answer = undefined;
      }
      if (answer !== undefined) { c[own + STATE] = RUNNING; c[own + FREED] = 0; }
      this._unlock();
      if (answer !== undefined) return answer;
      Atomics.wait(c, own + WAKE, seen);
    }
  }
  _waits(at) { return this.c[at + STATE] === WAITING && this.c[at + SEEN] === Atomics.load(this.c, at + WAKE); }
  _everyRank(test) { return this.rooms.every((_, r) => test(r, this._rank(r))); }
  /** Free the ranks that wait in the reader's code, if no rank can continue. The others then go on.
   *  If all wait in the check itself, free all. */
  _freeDeadlocked() {
    if (!this._everyRank((_, at) => this.c[at + STATE] === ENDED || this._waits(at))) return;
    const waiting = [...this.rooms.keys()].filter((r) => this.c[this._rank(r) + STATE] === WAITING);
    const inside = waiting.filter((r) => this.c[this._rank(r) + INSIDE]);
    for (const r of inside.length ? inside : waiting) {
      this.c[this._rank(r) + FREED] = 1;
      if (r !== this.rank) this._wake(r);
    }
  }
  /** Take back what this rank has posted: its program does not continue after a deadlock. */
  _withdraw() {
    for (let i = this.rank * SLOTS; i < (this.rank + 1) * SLOTS; i++)
      if (this.c[this._slot(i) + USE] === POSTED) this.c[this._slot(i) + USE] = FREE;
  }
  /** Take back one send or receive. Return whether it was not matched yet. */
  cancel(slot) {
    this._lock();
    const posted = this.c[this._slot(slot) + USE] === POSTED;
    if (posted) this.c[this._slot(slot) + USE] = FREE;
    this._unlock();
    return posted;
  }
  /** Sleep, and return 0, or INTERRUPTED. */
  sleep(seconds) {
    const own = this._rank(this.rank) + WAKE, until = performance.now() + 1000 * seconds;
    for (let left; (left = until - performance.now()) > 0;) {
      const seen = Atomics.load(this.c, own);
      if (this.interrupt[0]) return INTERRUPTED;
      Atomics.wait(this.c, own, seen, left);
    }
    return 0;
  }

  // A matched slot: what it holds, and giving it back.
  endSend(slot) {
    const order = this.c[this._slot(slot) + ORDER];
    this._release(slot);
    return order;
  }
  /** Describe the message of a matched receive. `bytes` stay in memory until `freeReceive`. */
  received(slot) { return this.describe(this.c[this._slot(slot) + MATCH]); }
  describe(send) {
    const c = this.c, at = this._slot(send);
    return { send, source: Math.floor(send / SLOTS), tag: c[at + TAG], bytes: c[at + BYTES], order: c[at + ORDER], offset: c[at + OFFSET] };
  }
  memory(message, bytes) { return this.rooms[message.source].subarray(message.offset, message.offset + bytes); }
  freeReceive(slot) {
    const send = this.c[this._slot(slot) + MATCH];
    this._lock();
    this.c[this._slot(send) + BYTES] = 0; // its memory is free, even if the sender never waits
    this._wake(Math.floor(send / SLOTS)); // it may wait for memory
    this._unlock();
    this._release(send);
    this._release(slot);
  }
  _release(slot) {
    const at = this._slot(slot);
    if (Atomics.sub(this.c, at + REFS, 1) === 1) Atomics.store(this.c, at + USE, FREE);
  }
}
