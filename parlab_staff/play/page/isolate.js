// Shared memory needs a page that is isolated from other sites. Static hosts do not send the two headers
// for that, so a service worker adds them, and the page is loaded once more.

const MARK = "parlab-play-reloaded";

// Resolves to true on an isolated page, and to false if the page reloads. Throws an Error that says why the
// page cannot be isolated.
export async function isolate() {
  const worker = await registered();
  if (window.crossOriginIsolated) {
    forget();
    return true;
  }
  if (!worker)
    throw new Error(
      "The service worker of this page could not start. Allow site data for this " + "page, and reload it.",
    );
  // One reload. The mark remains until a page was isolated, so a browser that never isolates a page
  // gets the message below, and no loop.
  if (!remember())
    throw new Error(
      "This browser does not isolate the page, so the ranks have no shared memory. " +
        "Use a current Firefox, Chrome, Edge, or Safari, in an ordinary window.",
    );
  location.reload();
  return false;
}

async function registered() {
  if (!("serviceWorker" in navigator)) return null;
  try {
    const registration = await navigator.serviceWorker.register("sw.js");
    if (registration.active) return registration.active;
    return await activated(registration.installing ?? registration.waiting);
  } catch {
    // Offline, an earlier version of the worker continues. Otherwise, the caller reports it.
    return navigator.serviceWorker.controller;
  }
}

// Resolves to the worker, or to null if it could not load its files.
function activated(worker) {
  return new Promise((resolve) => {
    const look = () => {
      if (worker.state === "activated") resolve(worker);
      if (worker.state === "redundant") resolve(null);
    };
    worker.addEventListener("statechange", look);
    look();
  });
}

function remember() {
  try {
    if (sessionStorage.getItem(MARK)) return false;
    sessionStorage.setItem(MARK, "1");
    return true;
  } catch {
    return false; // without storage, nothing would end a loop
  }
}

function forget() {
  try {
    sessionStorage.removeItem(MARK);
  } catch {
    // It was never set.
  }
}
