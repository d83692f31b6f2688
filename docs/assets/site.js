// What scrolls sideways can be reached by keyboard, and the buttons of code blocks have names that differ.
function tidy() {
  const wide = ".md-typeset__scrollwrap, .flowchart, .md-typeset p:has(> img[src*='pictures/'])";
  for (const element of document.querySelectorAll(wide)) {
    if (element.scrollWidth > element.clientWidth) {
      element.tabIndex = 0;
    } else {
      element.removeAttribute("tabindex");
    }
  }
  document.querySelectorAll(".md-code__nav").forEach((nav, at) => nav.setAttribute("aria-label", `Code block ${at + 1}`));
}
window.addEventListener("load", () => setTimeout(tidy, 200));
window.addEventListener("resize", tidy);
