(() => {
  const hint = document.getElementById("hint");
  const unit = (bytes) => {
    const names = ["B", "KiB", "MiB", "GiB", "TiB"];
    let n = 0;
    while (bytes >= 1023.5 && n < names.length - 1) { bytes /= 1024; n += 1; }
    return (n && bytes < 100 ? bytes.toPrecision(3) : bytes.toFixed(0)) + " " + names[n];
  };
  document.querySelectorAll("[data-timeline]").forEach((figure) => {
    const { ms, series } = JSON.parse(figure.dataset.timeline);
    const area = figure.querySelector(".area"), cursor = figure.querySelector(".cursor");
    const last = ms[ms.length - 1] || 1;
    let at = 0;
    const show = () => {
      const box = area.getBoundingClientRect();
      const rows = Object.entries(series).map(([name, values]) => [name, values[at]]).filter(([, value]) => value > 0);
      const total = rows.reduce((sum, [, value]) => sum + value, 0);
      hint.textContent = [ms[at].toFixed(1) + " ms: " + unit(total), ...rows.map(([n, v]) => unit(v) + " " + n)].join("\n");
      hint.hidden = cursor.hidden = false;
      const left = ms[at] / last * box.width;
      cursor.style.left = left + "px";
      const beside = left > box.width / 2 ? box.left + left - hint.offsetWidth - 12 : box.left + left + 12;
      hint.style.left = Math.max(4, beside) + "px";
      hint.style.top = Math.max(4, box.top + 8) + "px";
    };
    const hide = () => { hint.hidden = cursor.hidden = true; };
    const nearest = (when) => {
      let low = 0, high = ms.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (ms[middle] <= when) low = middle; else high = middle - 1;
      }
      return low;
    };
    area.addEventListener("pointermove", (event) => {
      const box = area.getBoundingClientRect();
      at = nearest((event.clientX - box.left) / box.width * last);
      show();
    });
    area.addEventListener("pointerleave", hide);
    area.addEventListener("blur", hide);
    area.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      at = Math.min(ms.length - 1, Math.max(0, at + step));
      show();
    });
  });
})();
