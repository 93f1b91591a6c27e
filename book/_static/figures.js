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
      sliderDefaults: {
        bgcolor: border,
        bordercolor: muted,
        activebgcolor: muted,
        tickcolor: muted,
        pad: { b: 8 }, // room for the outline of the focus
      },
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
      // On paper, a figure is an image, which has one text.
      if (layout.sliders && !matchMedia("print").matches) addSliderKeys(canvas);
      figure.classList.add("drawn");
    });
  }

  // Plotly's sliders follow only a pointer. This lets the keyboard move them, and names them.
  function addSliderKeys(canvas) {
    canvas.setAttribute("role", "group"); // what is in an image is hidden from the keyboard
    const groups = () => [...canvas.querySelectorAll(".slider-group")];
    const sliders = () => canvas.layout.sliders ?? [];

    // Plotly draws them again after each change.
    function describe() {
      groups().forEach((group, i) => {
        const { steps, active = 0, currentvalue } = sliders()[i];
        const state = {
          role: "slider",
          tabindex: 0,
          "aria-label": (currentvalue?.prefix ?? "position").replace(/:?\s*$/, ""),
          "aria-valuemin": 0,
          "aria-valuemax": steps.length - 1,
          "aria-valuenow": active,
          "aria-valuetext": steps[active].label.replace(/<sup>(.*?)<\/sup>/g, "^$1"),
        };
        for (const [name, value] of Object.entries(state)) group.setAttribute(name, value);
      });
    }

    async function move(i, position) {
      const step = sliders()[i].steps[position];
      await Plotly[step.method](canvas, ...step.args);
      await Plotly.relayout(canvas, { [`sliders[${i}].active`]: position });
      describe();
      groups()[i].focus();
    }

    canvas.addEventListener("keydown", (event) => {
      const i = groups().indexOf(event.target);
      if (i < 0 || event.ctrlKey || event.altKey || event.metaKey) return;
      const { steps, active = 0 } = sliders()[i];
      const last = steps.length - 1;
      const towards = {
        ArrowLeft: active - 1,
        ArrowDown: active - 1,
        ArrowRight: active + 1,
        ArrowUp: active + 1,
        Home: 0,
        End: last,
      }[event.key];
      if (towards === undefined) return;
      event.preventDefault();
      const position = Math.min(Math.max(towards, 0), last);
      if (position !== active) move(i, position);
    });
    canvas.on("plotly_afterplot", describe);
    canvas.on("plotly_sliderchange", describe);
    describe();
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
