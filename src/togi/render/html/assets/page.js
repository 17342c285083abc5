"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const hint = document.getElementById("hint");
  document.documentElement.classList.add("scripted");

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
