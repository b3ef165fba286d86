"use strict";
(() => {
  const FIRST_ROWS = 50;
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const isDark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
  });

  const valueOf = (row, column) => {
    const cell = row.cells[column];
    const value = cell.dataset.v ?? cell.textContent;
    const number = Number(value);
    return value !== "" && !Number.isNaN(number) ? number : value;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));

  for (const box of document.querySelectorAll(".tabular")) {
    const body = box.querySelector("tbody");
    const heads = [...box.querySelectorAll("th")];
    const search = box.querySelector("input");
    const rows = [...body.rows];
    let shown = FIRST_ROWS;
    const more = document.createElement("button");
    more.type = "button";
    more.className = "all";
    box.querySelector(".scroll").after(more);
    const draw = () => {
      const wanted = search ? search.value.trim().toLowerCase() : "";
      let count = 0;
      for (const row of body.rows) {
        const matches = !wanted || row.textContent.toLowerCase().includes(wanted);
        if (matches) count += 1;
        row.hidden = !matches || count > shown;
      }
      more.hidden = count <= shown;
      more.textContent = `Show all ${count.toLocaleString("en")}`;
    };
    more.addEventListener("click", () => { shown = Infinity; draw(); });
    if (search) search.addEventListener("input", draw);
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const isNumber = head.classList.contains("n");
        const next = before
          ? (before === "descending" ? "ascending" : "descending")
          : (isNumber ? "descending" : "ascending");
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", next);
        const sign = next === "ascending" ? 1 : -1;
        rows.sort((a, b) => sign * compare(valueOf(a, column), valueOf(b, column)));
        body.append(...rows);
        draw();
      });
    });
    if (rows.length > shown) draw(); else more.hidden = true;
  }

  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.classList.remove("here");
      links.get(entry.target.id)?.classList.add("here");
    }
  }, { rootMargin: "-10% 0px -80% 0px" });
  for (const section of document.querySelectorAll("section")) seen.observe(section);
})();
