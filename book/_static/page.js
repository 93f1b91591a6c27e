// What every page of the book needs.
"use strict";

// A browser lets no page of a folder on disk read another: search there without excerpts.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// A table that scrolls anyway need not squeeze its texts into columns as narrow as a word. On a larger
// window, long code may break, so that the table fits.
const SENTENCE = 20; // characters
const LONG_CODE = 30;
const widen = (table) => {
  for (const cell of table.querySelectorAll("td")) {
    cell.classList.toggle("sentence", cell.textContent.length > SENTENCE);
  }
  for (const code of table.querySelectorAll("td code")) {
    code.classList.toggle("long", code.textContent.length > LONG_CODE);
  }
};

// The keyboard must reach what scrolls sideways. Its width changes with the window.
document.addEventListener("DOMContentLoaded", () => {
  const wide = ".bd-article :is(table, pre, mjx-container[display], div.cell_output, div.math)";
  const check = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth + 1) {
        target.tabIndex = 0;
        if (target.matches("table")) widen(target);
      } else target.removeAttribute("tabindex");
    }
  });
  const observe = () => document.querySelectorAll(wide).forEach((element) => check.observe(element));
  observe();
  // MathJax draws its formulas later.
  window.MathJax?.startup?.promise?.then(observe);
});
