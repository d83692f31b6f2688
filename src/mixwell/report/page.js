"use strict";
// The scheme button: as the system has it, light, dark.
(() => {
  const button = document.getElementById("theme");
  if (!button) return;
  const kinds = ["auto", "light", "dark"];
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = kinds[(kinds.indexOf(document.documentElement.dataset.theme || "auto") + 1) % kinds.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    button.querySelector("span").textContent = next;
  });
})();
// Tables whose heads have buttons can be sorted; a cell's data-value counts, else its text.
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, at) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const number = head.dataset.kind === "number";
      const first = number && head.dataset.low !== "better" ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const now = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((each) => each.hasAttribute("aria-sort") && each.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", now);
      const sign = now === "ascending" ? 1 : -1;
      const value = (row) => row.cells[at].dataset.value ?? row.cells[at].textContent;
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (!number) return sign * x.localeCompare(y);
        if (x === "" || y === "") return (x === "") - (y === "");
        return sign * (Number(x) - Number(y));
      });
      table.tBodies[0].append(...rows);
      const status = document.getElementById("status");
      if (status) status.textContent = `sorted by ${button.textContent}, ${now}`;
    });
  });
}
