// The page: puts view, layers, charts and the search form together.

import { Charts, duration } from "./charts.js";
import { Layers, THEMES } from "./layers.js";
import { listen, View } from "./view.js";

const $ = (id) => document.getElementById(id);
const count = (number) => number.toLocaleString("en");
const SIDES = ["x0", "y0", "x1", "y1"];
const SEARCHES_SHOWN = 6;

let frame = 0;
let timer = 0;
let drawing = false;
let known = null; // where the rectangles are, once there are some

const view = new View($("map"), () => changed());
const layers = new Layers(view);
const charts = new Charts();

function draw() {
  if (frame) return;
  frame = requestAnimationFrame(() => {
    frame = 0;
    layers.draw();
  });
}

function changed() {
  draw();
  document.body.dataset.fetched = "no";
  clearTimeout(timer);
  timer = setTimeout(fetchAll, 70);
}

async function fetchAll() {
  try {
    if (!(await layers.refresh())) return;
    layers.draw();
    document.body.dataset.fetched = "yes"; // what is seen is what there is
    document.body.dataset.kind = layers.content.facts.kind;
  } catch (error) {
    if (error.name !== "AbortError") state("lost", "no answer");
  }
}

// ---- the tree ------------------------------------------------------------------------------------

async function readInfo() {
  const info = await (await fetch("/api/info")).json();
  $("entries").textContent = count(info.entries);
  $("height").textContent = info.levels.length;
  $("mode").textContent = `${info.mode} mode over ${info.transport}`;
  const first = info.bounds && !known;
  if (info.bounds) known = view.home = info.bounds;
  if (first) view.fit();
  showLevels(info.levels);
  return info;
}

function showLevels(counts) {
  const buttons = counts.map((nodes, index) => {
    const level = index + 1;
    layers.colours.set(level, counts.length - level);
    const name = level === counts.length ? "root" : level === 1 ? "leaves" : `level ${level - 1}`;
    const button = document.createElement("button");
    button.className = "level";
    button.dataset.level = level;
    button.setAttribute("aria-pressed", layers.levels.has(level));
    button.innerHTML = `<svg aria-hidden="true" viewBox="0 0 14 14"><rect x="1" y="1" width="12" height="12" rx="2.5"/></svg><span></span><span></span>`;
    const [, label, number] = button.children;
    label.textContent = name;
    number.textContent = `${count(nodes)} ${nodes === 1 ? "node" : "nodes"}`;
    button.addEventListener("click", () => toggleLevel(level, button));
    return button;
  });
  $("levels").replaceChildren(...buttons.reverse());
  paintLevels();
}

function paintLevels() {
  for (const button of $("levels").children) {
    button.style.setProperty("--shade", layers.colourOf(Number(button.dataset.level)));
  }
}

function toggleLevel(level, button) {
  if (layers.levels.has(level)) layers.levels.delete(level);
  else layers.levels.set(level, null);
  button.setAttribute("aria-pressed", layers.levels.has(level));
  changed();
}

// ---- searching -----------------------------------------------------------------------------------

function fillForm(box) {
  const digits = Math.max(0, Math.min(12, Math.ceil(Math.log10(view.scale)) + 1));
  SIDES.forEach((side, index) => ($(side).value = box[index].toFixed(digits)));
}

async function search(box) {
  layers.selection = box;
  setDrawing(false);
  fillForm(box);
  draw();
  const query = new URLSearchParams(Object.fromEntries(SIDES.map((side, index) => [side, box[index]])));
  try {
    const response = await fetch(`/api/search?${query}`);
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    layers.selection = null;
    layers.found = box;
    showAnswer(answer);
  } catch (error) {
    const text = document.createElement("p");
    text.className = "error";
    text.textContent = error.message;
    $("result").replaceChildren(text);
  }
  draw();
}

function showAnswer(answer) {
  const head = document.createElement("p");
  const number = document.createElement("b");
  number.textContent = count(answer.count);
  const took = document.createElement("span");
  took.textContent = `found in ${duration(answer.took_us)}`;
  head.append(number, " ", took, " ", pathOf(answer));
  const ids = document.createElement("p");
  ids.className = "ids";
  ids.textContent = answer.ids.join(" ") + (answer.count > answer.ids.length ? " …" : "");
  $("result").replaceChildren(head, ids);
  const row = document.createElement("tr");
  const cells = [count(answer.count), pathOf(answer), duration(answer.took_us)].map((content) => {
    const cell = document.createElement("td");
    cell.append(content);
    return cell;
  });
  row.append(...cells);
  const body = $("searches").tBodies[0];
  body.prepend(row);
  while (body.rows.length > SEARCHES_SHOWN) body.lastElementChild.remove();
  $("searches").hidden = false;
}

function pathOf(answer) {
  const path = document.createElement("span");
  path.className = `path ${answer.path}`;
  path.textContent = answer.path;
  path.title = `over ${answer.transport}`;
  return path;
}

function clear() {
  layers.found = layers.selection = null;
  setDrawing(false);
  $("result").replaceChildren();
  draw();
}

function setDrawing(on) {
  drawing = on;
  $("draw").setAttribute("aria-pressed", on);
  $("map").classList.toggle("drawing", on);
}

$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const [x0, y0, x1, y1] = SIDES.map((side) => Number($(side).value.trim() || NaN));
  if (![x0, y0, x1, y1].every(Number.isFinite)) {
    $("result").innerHTML = '<p class="error">Four numbers are wanted.</p>';
    return;
  }
  search([Math.min(x0, x1), Math.min(y0, y1), Math.max(x0, x1), Math.max(y0, y1)]);
});
$("use-view").addEventListener("click", () => search(view.window()));

// ---- controls, theme, life -----------------------------------------------------------------------

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  layers.setTheme(THEMES[name]);
  paintLevels();
  draw();
}

const preferred = window.matchMedia("(prefers-color-scheme: light)");
setTheme(localStorage.getItem("theme") ?? (preferred.matches ? "light" : "dark"));
preferred.addEventListener("change", () => {
  if (!localStorage.getItem("theme")) setTheme(preferred.matches ? "light" : "dark");
});
$("theme").addEventListener("click", () => {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", name);
  setTheme(name);
});
$("zoom-in").addEventListener("click", () => view.zoomBy(1.6));
$("zoom-out").addEventListener("click", () => view.zoomBy(1 / 1.6));
$("fit").addEventListener("click", () => view.fit());
$("draw").addEventListener("click", () => setDrawing(!drawing));
window.addEventListener("resize", () => {
  view.resize();
  changed();
});

listen(view, {
  hover: (x, y) => {
    const digits = Math.max(0, Math.min(12, Math.ceil(Math.log10(view.scale)) + 1));
    $("place").textContent = `${x.toFixed(digits)}  ${y.toFixed(digits)}`;
  },
  box: (box) => {
    layers.selection = box;
    draw();
  },
  search,
  clear,
  drawing: () => drawing,
});

function state(kind, text) {
  $("state").className = `state ${kind}`;
  $("state").textContent = text;
}

function watch() {
  const events = new EventSource("/api/live");
  let entries = null;
  events.addEventListener("history", (event) => {
    charts.samples = [];
    charts.add(JSON.parse(event.data));
    state("live", "live");
  });
  events.addEventListener("sample", async (event) => {
    const sample = JSON.parse(event.data);
    charts.add([sample]);
    state("live", "live");
    const grew = entries !== null && sample.entries !== entries;
    entries = sample.entries;
    if (grew) {
      await readInfo();
      changed();
    }
  });
  events.addEventListener("error", () => state("lost", "lost, trying again"));
}

const info = await readInfo();
const middle = info.levels.findLastIndex((nodes) => nodes > 8 && nodes <= 400);
if (middle >= 0) layers.levels.set(middle + 1, null);
showLevels(info.levels);
view.fit();
watch();
