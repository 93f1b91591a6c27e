// What this browser lacks, in one sentence. A classic script, because a browser loads no modules from a
// folder on disk.
"use strict";

window.playgroundProblem = (text) => {
  const problem = document.getElementById("problem");
  problem.textContent = text;
  problem.hidden = false;
  document.getElementById("status").textContent = "The ranks cannot start.";
};

(() => {
  const missing = () => {
    if (location.protocol === "file:")
      return (
        "This page was opened from a folder on disk, and needs a server. Run " +
        "“python -m http.server” in the book’s folder, and open the address that it prints."
      );
    if (typeof WebAssembly !== "object")
      return (
        "This browser has no WebAssembly, or it is turned off. Use a current Firefox, Chrome, " +
        "Edge, or Safari."
      );
    if (!window.isSecureContext)
      return (
        "A browser runs ranks only on pages with an https address, or on this computer " +
        "(localhost). Ask for the book’s https address."
      );
    if (!("serviceWorker" in navigator) && !window.crossOriginIsolated)
      return (
        "This browser has no service workers here, as in some private windows. Open the page in " +
        "an ordinary window."
      );
    return "";
  };
  window.playgroundMissing = missing();
  if (window.playgroundMissing) window.playgroundProblem(window.playgroundMissing);
})();
