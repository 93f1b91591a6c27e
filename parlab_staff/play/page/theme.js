// The theme that the reader has chosen in the book, before anything is drawn.
"use strict";

(() => {
  let mode = "auto";
  try {
    mode = localStorage.getItem("mode") || "auto";
  } catch {
    // Without storage, the page looks as the system asks.
  }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const theme = mode === "auto" ? (dark.matches ? "dark" : "light") : mode;
    document.documentElement.dataset.theme = theme;
  };
  dark.addEventListener("change", apply);
  apply();
})();

// The page has few formulas, and needs no menu, which would offer add-ons from elsewhere.
window.MathJax = { options: { enableMenu: false }, tex: { inlineMath: [["\\(", "\\)"]] } };
