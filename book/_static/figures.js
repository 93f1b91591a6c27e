// Draws the Plotly figures of a page, and redraws them when the reader changes the theme.
"use strict";

(() => {
  // The theme's own colours, so that axes and text match the page around them.
  function themeLayout() {
    const page = getComputedStyle(document.documentElement);
    const colour = (name) => page.getPropertyValue(name).trim();
    const text = colour("--pst-color-text-base");
    const muted = colour("--pst-color-text-muted");
    const border = colour("--pst-color-border");
    const surface = colour("--pst-color-surface");
    const axis = { gridcolor: border, zerolinecolor: border, linecolor: muted, tickcolor: muted };
    return {
      font: { color: text, family: getComputedStyle(document.body).fontFamily },
      xaxis: axis,
      yaxis: axis,
      hoverlabel: { bgcolor: surface, bordercolor: muted, font: { color: text } },
      sliderDefaults: { bgcolor: border, bordercolor: muted, activebgcolor: muted, tickcolor: muted },
    };
  }

  function merged(base, over) {
    const result = { ...base };
    for (const [key, value] of Object.entries(over)) {
      const both = value && result[key] && typeof value === "object" && !Array.isArray(value);
      result[key] = both ? merged(result[key], value) : value;
    }
    return result;
  }

  function withTheme(layout) {
    const { sliderDefaults, ...theme } = themeLayout();
    const template = layout.template || {};
    const themed = merged(layout, {
      template: { ...template, layout: merged(template.layout || {}, theme) },
    });
    // The page shows the title, as text above the plot: there is no need to keep room for it.
    themed.template.layout.margin = { ...themed.template.layout.margin, t: 8 };
    themed.margin = { ...themed.margin, t: 8 };
    if (layout.sliders) {
      themed.sliders = layout.sliders.map((slider) => merged(slider, sliderDefaults));
    }
    return themed;
  }

  const drawn = [];

  function draw(figure) {
    const canvas = figure.querySelector(".plotly-canvas");
    const { data, layout, config } = JSON.parse(figure.querySelector("script").textContent);
    const themed = withTheme(layout);
    canvas.style.height = `${layout.height ?? 400}px`;
    const pending = Plotly.newPlot(canvas, data, themed, config);
    drawn.push({ canvas, layout });
    return pending.then(() => {
      addSliderKeys(canvas);
      figure.classList.add("drawn");
    });
  }

  function retheme() {
    for (const { canvas, layout } of drawn) {
      const themed = withTheme(layout);
      const change = { template: themed.template };
      (themed.sliders || []).forEach((slider, i) => {
        // Colours alone: the position is the reader's.
        for (const key of ["bgcolor", "bordercolor", "activebgcolor", "tickcolor"]) {
          change[`sliders[${i}].${key}`] = slider[key];
        }
      });
      Plotly.relayout(canvas, change);
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("figure.plotly-figure").forEach(draw);
    new MutationObserver(retheme).observe(document.documentElement, {
      attributeFilter: ["data-theme"],
    });
    // A figure inside a closed <details> or tab has no width until it opens.
    const resized = new ResizeObserver((entries) => {
      for (const { target, contentRect } of entries) {
        if (contentRect.width > 0) Plotly.Plots.resize(target);
      }
    });
    drawn.forEach(({ canvas }) => resized.observe(canvas));
  });
})();
