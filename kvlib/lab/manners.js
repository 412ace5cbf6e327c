// What a panel's controls, pictures and status line tell assistive technology and JupyterLab.
// ipywidgets offers no attributes to Python, so they are set on the page, and again when it changes.

function set(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

function labelOf(control) {
  return control.closest(".jupyter-widgets")?.querySelector(".widget-label")?.innerText.trim() ?? "";
}

function tend(panel, words) {
  // "m", "x" and "d d" typed in a control are JupyterLab's shortcuts for cells unless this stops them.
  for (const control of panel.querySelectorAll("select, input, textarea, button, [role=slider], [contenteditable]"))
    set(control, "data-lm-suppress-shortcuts", "true");
  for (const group of panel.querySelectorAll(".widget-toggle-buttons")) {
    set(group, "role", "group");
    set(group, "aria-label", labelOf(group));
    for (const button of group.querySelectorAll("button"))
      set(button, "aria-pressed", String(button.classList.contains("mod-active")));
  }
  for (const option of panel.querySelectorAll("button.kvlib-option"))
    set(option, "aria-pressed", String(option.classList.contains("kvlib-chosen")));
  for (const slider of panel.querySelectorAll("[role=slider]")) {
    set(slider, "aria-label", labelOf(slider));
    const readout = slider.closest(".jupyter-widgets")?.querySelector(".widget-readout");
    if (!readout) continue;
    set(slider, "aria-valuetext", readout.innerText.trim());
    set(readout, "role", "textbox");
    set(readout, "aria-label", `${labelOf(slider)}, as a number`);
  }
  for (const bar of panel.querySelectorAll(".widget-progress .progress")) {
    set(bar, "role", "img");
    set(bar, "aria-label", labelOf(bar) || "progress");
  }
  for (const line of panel.querySelectorAll(".kvlib-status .widget-html-content")) {
    set(line, "role", "status"); // this node stays, its text changes: that is what is announced
    set(line, "aria-live", "polite");
  }
  panel.querySelectorAll("img.kvlib-figure").forEach((image, i) => set(image, "alt", words[i] ?? words[0] ?? ""));
  for (const box of panel.querySelectorAll(".kvlib-scroll")) {
    if (box.scrollWidth > box.clientWidth) {
      set(box, "tabindex", "0"); // the keyboard scrolls it
      set(box, "role", "group");
      set(box, "aria-label", "picture, scrolls sideways");
    } else if (box.hasAttribute("tabindex")) {
      for (const name of ["tabindex", "role", "aria-label"]) box.removeAttribute(name);
    }
  }
}

export default {
  render({ model, el }) {
    let changes, sizes, ended = false;
    function start() {
      const panel = el.closest(".kvlib-panel");
      if (ended) return;
      if (!panel) return void requestAnimationFrame(start);
      const again = () => tend(panel, model.get("words"));
      changes = new MutationObserver(again);
      changes.observe(panel, { subtree: true, childList: true, characterData: true, attributeFilter: ["class"] });
      sizes = new ResizeObserver(again);
      sizes.observe(panel);
      model.on("change:words", again);
      again();
    }
    start();
    return () => {
      ended = true;
      changes?.disconnect();
      sizes?.disconnect();
    };
  },
};
