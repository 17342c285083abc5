"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const table = document.getElementById("trials");

  const show = (body, open) => {
    body.classList.toggle("shown", open);
    body.querySelector(".open").setAttribute("aria-expanded", String(open));
  };

  all(".open", table).forEach((button) => {
    const body = button.closest("tbody");
    button.addEventListener("click", () => show(body, !body.classList.contains("shown")));
  });

  const key = (body, name) => {
    const value = body.getAttribute("data-" + (name === "outcome" ? "kind" : name));
    return value === null || name === "recipe" ? value : Number(value);
  };

  const sort = (name, direction) => {
    const bodies = all("tbody", table);
    bodies.sort((a, b) => {
      const x = key(a, name), y = key(b, name);
      if (x === null || y === null) return (x === null) - (y === null);
      return direction * (typeof x === "string" ? x.localeCompare(y) : x - y);
    });
    table.append(...bodies);
  };

  all("[data-sort]", table).forEach((button) => {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const up = head.getAttribute("aria-sort") !== "ascending";
      all("th[aria-sort]", table).forEach((th) => th.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      sort(button.dataset.sort, up ? 1 : -1);
    });
  });

  all(".filters button").forEach((button) => {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      all("tbody", table).forEach((body) => {
        if (body.dataset.outcome === button.dataset.outcome) body.hidden = !on;
      });
    });
  });

  all("[data-trial]").forEach((item) => {
    item.addEventListener("click", () => {
      const body = document.getElementById("trial-" + item.dataset.trial);
      if (!body) return;
      document.getElementById("hint").hidden = true;
      body.hidden = false;
      show(body, true);
      body.scrollIntoView({ block: "center" });
      body.querySelector(".open").focus({ preventScroll: true });
    });
  });
})();
