// What is shown: the comparisons of the chosen data and sample, and one method in detail.
(() => {
  const choices = ["data", "sample"].map((name) => [name, document.getElementById(`choose-${name}`)]);
  const method = document.getElementById("choose-method");
  const status = document.getElementById("status");

  function filter() {
    const wanted = choices.filter(([, select]) => select && select.value !== "").map(([name, select]) => [name, select.value]);
    let count = 0;
    for (const each of document.querySelectorAll("[data-data]")) {
      each.hidden = !wanted.every(([name, value]) => !(name in each.dataset) || each.dataset[name] === value);
      if (!each.hidden && each.matches("article")) count += 1;
    }
    const none = document.getElementById("none-match");
    if (none) none.hidden = count > 0;
    status.textContent = `${count} comparison${count === 1 ? "" : "s"} shown`;
  }
  for (const [, select] of choices) if (select) select.addEventListener("change", filter);

  function showMethod() {
    for (const group of document.querySelectorAll("article")) {
      const parts = [...group.querySelectorAll("[data-method]")];
      const trained = parts.some((part) => part.dataset.method === method.value);
      for (const part of parts) part.hidden = trained ? part.dataset.method !== method.value : !("first" in part.dataset);
    }
  }
  if (method) {
    method.addEventListener("change", showMethod);
    showMethod();
  }

  // One of several pictures: the forest plots of the metrics.
  for (const box of document.querySelectorAll("[data-switch]")) {
    const buttons = [...box.querySelectorAll("button.choice")];
    const pictures = [...box.querySelectorAll("[data-picture]")];
    buttons.forEach((button, at) =>
      button.addEventListener("click", () => {
        buttons.forEach((each, other) => each.setAttribute("aria-pressed", String(other === at)));
        pictures.forEach((each, other) => (each.hidden = other !== at));
      }),
    );
  }
  for (const each of document.querySelectorAll("[data-script]")) each.hidden = false;
})();
