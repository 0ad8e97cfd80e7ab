// Gives each box of code a button that copies it. Without JavaScript there is none, and the box is as it was.
for (const box of document.querySelectorAll("[role=main] div.highlight")) {
  const button = document.createElement("button");
  button.className = "copy";
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const text = box.querySelector("pre").innerText.replace(/\n$/, "");
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(box.querySelector("pre")); // no permission: the reader copies by keys
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  box.append(button);
}
