// Render the formulas of a page once it is there, also after instant navigation.
const render = () =>
  document.querySelectorAll(".arithmatex").forEach((element) => {
    const display = element.tagName === "DIV";
    const text = element.textContent.trim().replace(/^(\\\(|\\\[)/, "").replace(/(\\\)|\\\])$/, "");
    katex.render(text, element, { displayMode: display, throwOnError: false });
  });
typeof document$ === "undefined" ? document.addEventListener("DOMContentLoaded", render) : document$.subscribe(render);
