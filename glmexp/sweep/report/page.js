"use strict";
for (const figure of JSON.parse(document.getElementById("figures").textContent)) {
  Plotly.newPlot(figure.id, figure.data, figure.layout, {
    responsive: true, displaylogo: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  });
}

const table = document.getElementById("trials");
if (table) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const chips = [...document.querySelectorAll(".chip")];
  const filter = document.getElementById("filter");

  // Empty cells come last in both directions.
  const sortBy = (column, descending) => {
    const key = (row) => {
      const cell = row.cells[column];
      return cell.dataset.order === undefined ? cell.textContent.trim() : Number(cell.dataset.order);
    };
    const rows = [...body.rows].map((row) => [key(row), row]);
    rows.sort(([one], [other]) => {
      if (one === "" || other === "") return (one === "") - (other === "");
      const both = typeof one === "number" && typeof other === "number";
      const order = both ? one - other : String(one).localeCompare(String(other), undefined, { numeric: true });
      return descending ? -order : order;
    });
    body.append(...rows.map(([, row]) => row));
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  };
  heads.forEach((head, column) =>
    head.querySelector("button").addEventListener("click", () =>
      sortBy(column, head.getAttribute("aria-sort") === "ascending")));

  const show = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hidden = chips.filter((chip) => chip.getAttribute("aria-pressed") === "false").map((chip) => chip.dataset.state);
    let shown = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = hidden.includes(row.dataset.state) || !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    document.getElementById("shown").textContent = shown;
  };
  filter.addEventListener("input", show);
  chips.forEach((chip) =>
    chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") === "false"));
      show();
    }));
}
