// The build puts VERSION (a hash of all files), LARGE (Pyodide's folder, named by its version), and
// SHELL (the small files of all pages) above these lines.
//
// This worker adds the headers that isolate a page, and keeps what it served for reading offline.
// Addresses of scripts contain a hash, so an old page never gets new scripts. Pages themselves come
// from the network if there is one.
"use strict";

const PREFIX = "parlab-play-";
const CACHE = PREFIX + VERSION;
const LARGE_CACHE = PREFIX + LARGE;

self.addEventListener("install", (event) => {
  // A new version waits until the pages of the old one are closed, and then replaces its cache.
  event.waitUntil(
    caches
      .open(CACHE)
      .then((cache) => cache.addAll(SHELL.map((path) => new Request(path, { cache: "no-cache" })))),
  );
});

self.addEventListener("activate", (event) => {
  const outdated = (name) =>
    name.startsWith(PREFIX) && ![CACHE, LARGE_CACHE].includes(name) && !name.startsWith(PREFIX + "snapshot");
  event.waitUntil(
    caches.keys().then((names) => Promise.all(names.filter(outdated).map((name) => caches.delete(name)))),
  );
});

self.addEventListener("fetch", (event) => {
  const request = event.request;
  if (request.method !== "GET" || new URL(request.url).origin !== location.origin) return;
  if (request.cache === "only-if-cached" && request.mode !== "same-origin") return;
  event.respondWith(answer(request));
});

async function answer(request) {
  const path = new URL(request.url).pathname.slice(new URL(self.registration.scope).pathname.length);
  const cache = await caches.open(path.startsWith(LARGE + "/") ? LARGE_CACHE : CACHE);
  const immutable = /^(assets|course|pyodide)-/.test(path);
  const kept = immutable ? await cache.match(request.url) : undefined;
  if (kept) return isolated(kept);
  // A page may be in the browser's own cache, where it could be older than this worker.
  const wanted = immutable ? request : new Request(request.url, { cache: "no-cache" });
  return isolated(await fetched(wanted, cache));
}

async function fetched(request, cache) {
  try {
    const response = await fetch(request);
    // The disk may be full. The page works without a copy.
    if (response.ok) await cache.put(request.url, response.clone()).catch(() => {});
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
