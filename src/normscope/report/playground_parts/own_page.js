// The playground as a page of its own: themes, and the state in the address.
const page = document.documentElement;
const button = document.getElementById("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (page.dataset.theme ? page.dataset.theme === "dark" : dark.matches);
const name = () => (button.textContent = isDark() ? "Light" : "Dark");
button.addEventListener("click", () => {
  page.dataset.theme = isDark() ? "light" : "dark";
  name();
});
dark.addEventListener("change", name);
name();
let own = location.hash.slice(1);
const write = (link) => {
  own = link;
  history.replaceState(null, "", link ? `#${link}` : location.pathname + location.search);
};
const playground = normscopePlayground.init(document.querySelector("main > .ns-playground"), {
  read: () => own,
  write
});
addEventListener("hashchange", () => {
  if (location.hash.slice(1) !== own) playground.open(location.hash.slice(1));
});
Object.assign(normscopePlayground, playground);
