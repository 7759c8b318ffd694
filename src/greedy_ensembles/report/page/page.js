"use strict";
// The page is whole without this script: it sorts tables, shows one picture at a time and switches lines off.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  const sortBy = (table, column, heading) => {
    const body = table.tBodies[0];
    const descending = heading.getAttribute("aria-sort") === "ascending";
    const sign = descending ? -1 : 1;
    const keyed = [...body.rows].map((row) => {
      const cell = row.cells[column];
      const text = cell.dataset.value;
      return { row, empty: text === "", key: cell.classList.contains("number") ? Number(text) : text };
    });
    keyed.sort((a, b) => {
      if (a.empty || b.empty) return a.empty - b.empty; // what is missing comes last, whichever way
      if (typeof a.key === "number" && typeof b.key === "number") return sign * (a.key < b.key ? -1 : a.key > b.key ? 1 : 0);
      return sign * String(a.key).localeCompare(String(b.key), undefined, { numeric: true });
    });
    body.append(...keyed.map((entry) => entry.row));
    all("th", table).forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  };

  for (const table of all("table.sortable")) {
    all("th", table).forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = heading.textContent;
      button.addEventListener("click", () => sortBy(table, column, heading));
      heading.replaceChildren(button);
    });
  }

  for (const group of all(".switched")) {
    for (const key of all(".key", group)) {
      const own = all("[data-series]", group).filter((line) => line.dataset.series === key.dataset.key);
      const point = (at) => {
        group.classList.toggle("dimmed", at && key.getAttribute("aria-pressed") === "true");
        own.forEach((line) => line.classList.toggle("lit", at));
      };
      key.addEventListener("click", () => {
        const shown = key.getAttribute("aria-pressed") === "false";
        key.setAttribute("aria-pressed", String(shown));
        own.forEach((line) => line.toggleAttribute("hidden", !shown));
        point(false);
      });
      key.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") point(true); });
      key.addEventListener("pointerleave", () => point(false));
    }
  }

  const showOne = (items, chosen) => items.forEach((item, index) => { item.hidden = index !== chosen; });

  for (const section of all(".planes")) {
    const slides = all(".slide", section);
    const [label, slider, output] = [".slider", "input", "output"].map((selector) => section.querySelector(selector));
    const move = () => {
      showOne(slides, Number(slider.value));
      output.textContent = slides[slider.value].dataset.label;
      slider.setAttribute("aria-valuetext", output.textContent);
    };
    slider.addEventListener("input", move);
    label.hidden = slides.length < 2;
    move();
  }

  for (const section of all(".sets")) {
    const views = all(".view", section);
    const select = section.querySelector("select");
    select.addEventListener("change", () => showOne(views, select.selectedIndex));
    section.querySelector(".chooser").hidden = views.length < 2;
    showOne(views, 0);
  }

  const theme = document.getElementById("theme");
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (prefersDark.matches ? "dark" : "light")) === "dark";
  const name = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; name(); });
  prefersDark.addEventListener("change", name);
  theme.hidden = false;
  name();
})();
