// Plotly's sliders follow only a pointer. This lets the keyboard move them, and names them.
"use strict";

function addSliderKeys(canvas) {
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
        "aria-valuetext": steps[active].label,
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
