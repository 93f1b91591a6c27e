// Waits for formulas and fonts, and prepares the page for paper. Its figures are drawn already.
async () => {
  await MathJax.startup.promise;
  await document.fonts.ready;
  // Only the canvas of a figure is a picture, which has a description.
  for (const part of document.querySelectorAll("figure, figcaption")) part.role = "none";
  // Code in a table is broken within words only if the table is too wide otherwise.
  for (const table of document.querySelectorAll("table")) {
    table.classList.toggle("wide", table.offsetWidth > table.parentElement.offsetWidth);
  }
  // Only code that takes more than half of a page may continue on the next one.
  for (const code of document.querySelectorAll("div.highlight")) {
    code.classList.toggle("long", code.offsetHeight > 450);
  }
  for (const { math, typesetRoot } of MathJax.startup.document.math) {
    typesetRoot.querySelector("mjx-assistive-mml")?.remove();
    // The tags of a PDF have no MathML: a formula is a picture that is described by its TeX.
    const formula = typesetRoot.querySelector("svg");
    formula.setAttribute("aria-label", math.trim());
    formula.removeAttribute("aria-hidden");
    const room = typesetRoot.parentElement.getBoundingClientRect().width;
    if (typesetRoot.getAttribute("display") && formula.getBoundingClientRect().width > room) {
      formula.style.width = `${room}px`;
      formula.style.height = "auto";
    }
  }
}
