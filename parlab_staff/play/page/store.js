// Keeps each page's code in the browser, and puts code into links.

const key = (name) => `parlab-play:${name}`;

export function kept(name) {
  try {
    return localStorage.getItem(key(name));
  } catch {
    return null; // no storage here: each visit begins with the page's own program
  }
}

export function keep(name, code) {
  try {
    if (code === null) localStorage.removeItem(key(name));
    else localStorage.setItem(key(name), code);
  } catch {
    // The page works without it.
  }
}

// The code goes into the part of the address after #, which no server gets.
export async function linkOf(code) {
  const packed = await through(new Blob([code]), new CompressionStream("deflate-raw"));
  const text = btoa(String.fromCharCode(...packed));
  const address = new URL(location.href);
  address.hash = "code=" + text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return address.href;
}

// Returns null if the address contains no code. Throws if the code is damaged.
export async function codeInLink() {
  const found = location.hash.match(/^#code=([\w-]+)$/);
  if (!found) {
    if (location.hash.startsWith("#code=")) throw new Error("damaged");
    return null;
  }
  const bytes = Uint8Array.from(atob(found[1].replaceAll("-", "+").replaceAll("_", "/")), (c) =>
    c.charCodeAt(0),
  );
  return new TextDecoder().decode(await through(new Blob([bytes]), new DecompressionStream("deflate-raw")));
}

export function dropLink() {
  history.replaceState(null, "", location.pathname + location.search);
}

async function through(blob, stream) {
  return new Uint8Array(await new Response(blob.stream().pipeThrough(stream)).arrayBuffer());
}
