// Draws the cells of heatmaps as areas. Plotly draws a bitmap, which is coarse on paper.
async () => {
  const SVG = "http://www.w3.org/2000/svg";

  function element(name, attributes) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  // The areas of one color in a bitmap: rows of equal pixels, and equal rows below each other.
  function* areas({ data, width, height }) {
    const colors = new Uint32Array(data.buffer);
    let above = new Map();
    for (let y = 0; y < height; y++) {
      const row = new Map();
      for (let x = 0, end; x < width; x = end) {
        const color = colors[y * width + x];
        for (end = x + 1; end < width && colors[y * width + end] === color; end++);
        const key = `${x} ${end} ${color}`;
        const [red, green, blue, alpha] = data.slice(4 * (y * width + x), 4 * (y * width + x) + 4);
        const area = above.get(key) ?? { x, y, width: end - x, height: 0 };
        area.height++;
        area.fill = `rgb(${red} ${green} ${blue} / ${alpha / 255})`;
        if (alpha) row.set(key, area);
      }
      for (const [key, area] of above) if (!row.has(key)) yield area;
      above = row;
    }
    yield* above.values();
  }

  for (const bitmap of document.querySelectorAll(".heatmaplayer image")) {
    const picture = new Image();
    picture.src = bitmap.href.baseVal;
    await picture.decode();
    const canvas = new OffscreenCanvas(picture.width, picture.height);
    const context = canvas.getContext("2d");
    context.drawImage(picture, 0, 0);
    const pixels = context.getImageData(0, 0, picture.width, picture.height);
    const { x, y, width, height } = bitmap.getBBox();
    const scale = `scale(${width / picture.width} ${height / picture.height})`;
    const drawn = element("g", { transform: `translate(${x} ${y}) ${scale}` });
    for (const area of areas(pixels)) drawn.append(element("rect", area));
    bitmap.replaceWith(drawn);
  }
}
