"use strict";
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  root.classList.add("js");

  // Light or dark: what the reader chose, else what the system says.
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const shown = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const name = () => { button.textContent = shown() === "dark" ? "Light" : "Dark"; };
  button.addEventListener("click", () => { root.dataset.theme = shown() === "dark" ? "light" : "dark"; name(); });
  dark.addEventListener("change", name);
  name();
  button.hidden = false;

  // Titles of marks as a tip that appears at once, also under a finger.
  const tip = document.getElementById("tip");
  const hide = () => tip.classList.remove("on");
  const show = (text, event) => {
    tip.textContent = text;
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const y = event.clientY - box.height - 12;
    tip.style.transform = `translate(${Math.max(8, x)}px, ${y < 8 ? event.clientY + 18 : y}px)`;
    tip.classList.add("on");
  };
  for (const title of document.querySelectorAll("svg title")) {
    title.parentNode.setAttribute("data-tip", title.textContent);
    title.remove();
  }
  const grids = {};
  for (const [key, grid] of Object.entries(data.grids)) grids[key] = { ...grid, bytes: atob(grid.values) };
  const cell = (mark, event) => {
    const grid = grids[mark.dataset.grid];
    const box = mark.getBoundingClientRect();
    const place = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
    const row = place((event.clientY - box.top) / box.height, grid.rows.length);
    const column = place((event.clientX - box.left) / box.width, grid.columns.length);
    const code = grid.bytes.charCodeAt(row * grid.columns.length + column);
    const [low, high] = grid.span;
    const value = code === 255 ? "–" : (low + (code / 250) * (high - low)).toFixed(high > 1 ? 1 : 2) + grid.unit;
    return `${grid.rows[row]} · ${grid.columns[column]}: ${value}`;
  };
  const point = (event) => {
    const mark = event.target;
    if (!(mark instanceof Element)) return hide();
    if (mark.dataset.grid) return show(cell(mark, event), event);
    const holder = mark.closest("[data-tip]");
    return holder ? show(holder.dataset.tip, event) : hide();
  };
  addEventListener("pointermove", point);
  addEventListener("pointerdown", point);
  addEventListener("scroll", hide, { passive: true });

  // Tables sort by a click on a heading; numbers as numbers.
  for (const table of document.querySelectorAll("table.sort")) {
    table.querySelectorAll("thead th").forEach((heading, place) => {
      const sorter = document.createElement("button");
      sorter.type = "button";
      sorter.append(...heading.childNodes);
      heading.append(sorter);
      sorter.addEventListener("click", () => {
        const up = heading.getAttribute("aria-sort") !== "ascending";
        table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", up ? "ascending" : "descending");
        const key = (row) => row.cells[place].dataset.value ?? row.cells[place].textContent.trim();
        const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
        const numeric = rows.every(([text]) => text === "" || !Number.isNaN(Number(text)));
        rows.sort(([a], [b]) => (numeric ? Number(a) - Number(b) : a.localeCompare(b)) * (up ? 1 : -1));
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  }

  // The way of the samples, round by round.
  const slider = document.getElementById("round");
  if (slider) {
    const points = [...document.querySelectorAll(".points")].flatMap((group) => {
      const places = group.dataset.places ? group.dataset.places.split(" ").map(Number) : null;
      return [...group.children].map((mark, i) => [mark, places ? places[i] : i, mark.getAttribute("fill-opacity")]);
    });
    const numbers = document.querySelectorAll(".numbers");
    const step = () => {
      const at = Number(slider.value);
      const last = at === data.stages.length - 1;
      const stage = data.stages[at];
      for (const [mark, place, faint] of points) {
        const label = stage.labels[place];
        mark.setAttribute("class", label < 0 ? "none" : data.classes[label]);
        mark.setAttribute("fill-opacity", last ? faint : "0.85");
      }
      numbers.forEach((group) => { group.style.display = last ? "" : "none"; });
      document.getElementById("stage").textContent = stage.name;
    };
    slider.addEventListener("input", step);
    const play = document.getElementById("play");
    let timer = 0;
    const stop = () => { clearInterval(timer); timer = 0; play.textContent = "Play"; };
    play.addEventListener("click", () => {
      if (timer) return stop();
      if (Number(slider.value) === data.stages.length - 1) slider.value = "0";
      step();
      play.textContent = "Stop";
      timer = setInterval(() => {
        slider.value = String(Number(slider.value) + 1);
        step();
        if (Number(slider.value) === data.stages.length - 1) stop();
      }, 900);
    });
    slider.addEventListener("pointerdown", stop);
    slider.value = String(data.stages.length - 1);
    step();
  }
})();
