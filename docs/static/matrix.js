// Filters the table of docs/sitemaker/matrix.py. Without JavaScript the form stays hidden, and the table is whole.
const form = document.getElementById("filter");
if (form) {
  const rows = [...document.querySelectorAll("table.matrix tbody tr")];
  const [search, upstream, fix] = form.querySelectorAll("input, select");
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const [release, needs] = [...row.cells].map((cell) => cell.textContent.trim());
      const text = row.textContent.toLowerCase();
      row.hidden =
        !words.every((word) => text.includes(word)) ||
        (upstream.value && release.split(" ")[0] !== upstream.value) ||
        (fix.value && !needs.split(", ").includes(fix.value));
    }
    form.querySelector("output").value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  };
  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
}
