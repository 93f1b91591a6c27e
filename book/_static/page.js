// What every page of the book needs.
"use strict";

// A browser lets no page of a folder on disk read another: search there without excerpts.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// The keyboard must reach what scrolls sideways. Its width changes with the window.
document.addEventListener("DOMContentLoaded", () => {
  const wide = ".bd-article :is(table, pre, mjx-container[display], div.cell_output, div.math)";
  const check = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth + 1) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  const observe = () => document.querySelectorAll(wide).forEach((element) => check.observe(element));
  observe();
  // MathJax draws its formulas later.
  window.MathJax?.startup?.promise?.then(observe);
});
