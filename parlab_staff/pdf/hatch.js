// Draws the hatches of figures as lines. Chromium prints an area with a pattern as a coarse bitmap.
() => {
  function element(name, attributes, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  // The lines of a path that may touch the rectangle from `start` to `end`.
  function near(path, start, end) {
    if (/[a-y]/.test(path)) return path; // relative coordinates, which only small tiles have
    const lines = path.split(/(?=M)/).filter((line) => {
      const numbers = line.match(/-?[\d.]+/g)?.map(Number) ?? [];
      const xs = numbers.filter((_, i) => i % 2 === 0);
      const ys = numbers.filter((_, i) => i % 2 === 1);
      return (
        Math.min(...xs) <= end.x && Math.max(...xs) >= start.x &&
        Math.min(...ys) <= end.y && Math.max(...ys) >= start.y
      );
    });
    return lines.join("");
  }

  // Copies of one part of a pattern that cover the rectangle from `start` to `end`.
  function repeated(part, size, start, end) {
    // Lines of neighboring tiles overlap, so they become transparent only as a group.
    const opacity = part.getAttribute("opacity");
    const group = element("g", opacity === null ? {} : { opacity });
    for (let x = Math.floor(start.x / size.x) * size.x; x < end.x; x += size.x) {
      for (let y = Math.floor(start.y / size.y) * size.y; y < end.y; y += size.y) {
        const tile = part.cloneNode();
        tile.removeAttribute("opacity");
        tile.setAttribute("transform", `translate(${x} ${y})`);
        if (tile.hasAttribute("d")) {
          const [from, to] = [start, end].map((p) => ({ x: p.x - x, y: p.y - y }));
          tile.setAttribute("d", near(tile.getAttribute("d"), from, to));
        }
        group.append(tile);
      }
    }
    return group;
  }

  let count = 0;
  for (const shape of document.querySelectorAll('svg [style*="url("]')) {
    const name = shape.style.fill.match(/url\(["']?[^"'#]*#([^"')]+)/)?.[1];
    const pattern = name && document.getElementById(name);
    if (pattern?.localName !== "pattern" || shape.closest("defs")) continue;

    const size = { x: pattern.width.baseVal.value, y: pattern.height.baseVal.value };
    const matrix = pattern.patternTransform.baseVal.consolidate()?.matrix ?? new DOMMatrix();
    const toTiles = DOMMatrix.fromMatrix(matrix).inverse();
    const box = shape.getBBox();
    const start = new DOMPoint(box.x, box.y).matrixTransform(toTiles);
    const end = new DOMPoint(box.x + box.width, box.y + box.height).matrixTransform(toTiles);
    const [background, ...lines] = [...pattern.children];

    const id = `hatch-${++count}`;
    const outline = element("clipPath", { id }, shape.cloneNode());
    // Chromium paints a part twice if the outline of its clip is clipped itself.
    const around = shape.getAttribute("clip-path");
    outline.firstChild.removeAttribute("clip-path");
    const hatch = element(
      "g",
      { transform: `${shape.getAttribute("transform") ?? ""} ${matrixText(matrix)}` },
      ...lines.map((part) => repeated(part, size, start, end)),
    );
    const border = shape.cloneNode();
    border.style.fill = "none";
    shape.style.fill = getComputedStyle(background).fill;
    const clipped = element("g", { "clip-path": `url(#${id})` }, hatch);
    shape.after(outline, element("g", around ? { "clip-path": around } : {}, clipped), border);
  }

  function matrixText({ a, b, c, d, e, f }) {
    return `matrix(${[a, b, c, d, e, f]})`;
  }

  return count;
}
