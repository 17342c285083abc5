"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const table = document.getElementById("trials");
  const hint = document.getElementById("hint");
  document.documentElement.classList.add("scripted");

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

  const place = (box) => {
    const width = hint.offsetWidth, height = hint.offsetHeight, gap = 10;
    const left = Math.min(Math.max(gap, box.left + box.width / 2 - width / 2), innerWidth - width - gap);
    const above = box.top - height - gap;
    hint.style.left = left + "px";
    hint.style.top = (above > gap ? above : box.bottom + gap) + "px";
  };

  all("[data-hint]").forEach((item) => {
    const enter = () => {
      hint.textContent = item.dataset.hint;
      hint.hidden = false;
      place((item.querySelector(".track") || item).getBoundingClientRect());
    };
    const leave = () => { hint.hidden = true; };
    item.addEventListener("mouseenter", enter);
    item.addEventListener("mouseleave", leave);
    item.addEventListener("focus", enter);
    item.addEventListener("blur", leave);
    item.addEventListener("click", () => {
      const body = document.getElementById("trial-" + item.dataset.trial);
      if (!body) return;
      leave();
      body.hidden = false;
      show(body, true);
      body.scrollIntoView({ block: "center" });
      body.querySelector(".open").focus({ preventScroll: true });
    });
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hint.hidden = true; });

  all(".copy").forEach((button) => {
    button.addEventListener("click", async () => {
      const text = button.parentElement.querySelector("pre").textContent;
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(button.parentElement.querySelector("pre"));
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  });
})();
