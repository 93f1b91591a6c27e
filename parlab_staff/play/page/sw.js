// The build puts VERSION (a hash of all files), LARGE (Pyodide's folder, named by its version), and
// SHELL (the small files of all pages) above these lines.
//
// This worker adds the headers that isolate a page, and keeps what it served for reading offline.
// Addresses of scripts contain a hash, so an old page never gets new scripts. Pages themselves come
// from the network if there is one.
"use strict";

// Another edition of the book on the same host has its own caches.
const PREFIX = `parlab-play ${new URL(self.registration.scope).pathname} `;
const CACHE = PREFIX + VERSION;
const LARGE_CACHE = PREFIX + LARGE;

// These addresses contain a hash, so what is kept is never out of date.
const isImmutable = (path) => /^(assets|course|pyodide)-/.test(path);

self.addEventListener("install", (event) => {
  const wanted = SHELL.map((path) => new Request(path, isImmutable(path) ? {} : { cache: "no-cache" }));
  // A new version waits until the pages of the old one are closed, and then replaces its cache.
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(wanted)));
});

self.addEventListener("activate", (event) => {
  const outdated = (name) => name.startsWith(PREFIX) && ![CACHE, LARGE_CACHE].includes(name);
  event.waitUntil(
    caches.keys().then((names) => Promise.all(names.filter(outdated).map((name) => caches.delete(name)))),
  );
});

self.addEventListener("fetch", (event) => {
  const request = event.request;
  if (request.method !== "GET" || new URL(request.url).origin !== location.origin) return;
  if (request.cache === "only-if-cached" && request.mode !== "same-origin") return;
  event.respondWith(answer(request, event));
});

async function answer(request, event) {
  const path = new URL(request.url).pathname.slice(new URL(self.registration.scope).pathname.length);
  const cache = await caches.open(path.startsWith(LARGE + "/") ? LARGE_CACHE : CACHE);
  const immutable = isImmutable(path);
  const kept = immutable ? await cache.match(request.url) : undefined;
  if (kept) return isolated(kept);
  // A page may be in the browser's own cache, where it could be older than this worker.
  const wanted = immutable ? request : new Request(request.url, { cache: "no-cache" });
  return isolated(await fetched(wanted, cache, event));
}

async function fetched(request, cache, event) {
  try {
    const response = await fetch(request);
    // The disk may be full. The page works without a copy.
    if (response.ok) event.waitUntil(cache.put(request.url, response.clone()).catch(() => {}));
    return response;
  } catch (error) {
    const kept = await cache.match(request.url, { ignoreSearch: true });
    if (kept) return kept;
    throw error;
  }
}

function isolated(response) {
  if (response.status === 0) return response;
  const headers = new Headers(response.headers);
  headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Resource-Policy", "same-origin");
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}
