"""The page of `attention_html`: its frame, its style and its script."""

import string

# The policy allows only the style and the script with these hashes, and loads nothing.
PAGE = string.Template(
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
style-src 'sha256-$style_hash'; script-src 'sha256-$script_hash'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
</head>
<body>
<main>
<header>
<h1>$title</h1>
<div class="choice">
<label>Layer <select id="layer"></select></label>
<label>Head <select id="head"></select></label>
</div>
</header>
<section aria-labelledby="source-title">
<h2 id="source-title">Source, attended to</h2>
<div class="tokens" id="source" role="toolbar" aria-labelledby="source-title"></div>
</section>
<section aria-labelledby="target-title">
<h2 id="target-title">Target, attending</h2>
<div class="tokens" id="target" role="toolbar" aria-labelledby="target-title"></div>
</section>
<p id="said" aria-live="polite"></p>
<p class="hint">Point at a token, or move with Tab and the arrow keys. A target token
shows what it attends to, a source token what attends to it. Enter or a click keeps the
choice.</p>
<section id="overview" aria-labelledby="overview-title">
<h2 id="overview-title">Layers and heads</h2>
<div class="scroll"><table id="maps"></table></div>
<p class="hint">Each map has a row for a target token and a column for a source token;
the darker, the larger the weight.</p>
</section>
<noscript><p>This page needs JavaScript to show the weights.</p></noscript>
</main>
<script type="application/json" id="data">$data</script>
<script>$script</script>
</body>
</html>
"""
)

STYLE = """
:root { --ink: #1e293b; --faint: #64748b; --line: #e2e8f0; --blue: #1d4ed8;
  --mark: #c2410c; }
* { box-sizing: border-box; }
body { margin: 0; background: #f8fafc; color: var(--ink);
  font: 16px/1.5 system-ui, "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 1.5rem; }
header { display: flex; flex-wrap: wrap; gap: 0.5rem 2rem; align-items: baseline;
  justify-content: space-between; margin-bottom: 1rem; }
h1 { font-size: 1.3rem; font-weight: 600; margin: 0; }
h2 { font-size: 0.8rem; font-weight: 600; color: var(--faint); margin: 0 0 0.4rem; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px;
  padding: 0.8rem 1rem 1rem; margin-bottom: 0.8rem; }
.choice { display: flex; gap: 1rem; }
.choice label { color: var(--faint); font-size: 0.9rem; }
select { font: inherit; color: var(--ink); background: #fff; padding: 0.15rem 0.4rem;
  border: 1px solid #cbd5e1; border-radius: 6px; }
.tokens { display: flex; flex-wrap: wrap; gap: 6px; }
.token { font: inherit; color: inherit; background: #fff; border: 1px solid var(--line);
  border-radius: 6px; padding: 0.2rem 0.5rem 0.1rem; min-width: 2.9rem; cursor: pointer;
  text-align: center; }
.token span { display: block; white-space: pre; min-height: 1.5em; }
.token small { display: block; font-size: 0.72rem; line-height: 1.3; min-height: 1.3em;
  font-variant-numeric: tabular-nums; }
.token.dark { color: #fff; }
.token.chosen { outline: 3px solid var(--mark); outline-offset: 1px; }
.token.chosen.kept { background: #ffedd5; }
:focus-visible { outline: 3px solid var(--mark); outline-offset: 1px; }
#said { min-height: 1.5em; margin: 0.2rem 0.2rem 0; }
.hint { color: var(--faint); font-size: 0.85rem; margin: 0.3rem 0.2rem 1rem; }
#overview .hint { margin: 0.5rem 0 0; }
.dense .token { font-size: 0.8rem; padding: 0.05rem 0.3rem 0; min-width: 2.3rem; }
.dense { gap: 4px; }
.scroll { overflow: auto hidden; }
table { border-collapse: separate; border-spacing: 5px; }
th { font-size: 0.75rem; font-weight: 400; color: var(--faint); white-space: nowrap; }
td { padding: 0; }
.map { display: block; padding: 0; border: 1px solid #cbd5e1; border-radius: 4px;
  background: #fff; overflow: hidden; cursor: pointer; line-height: 0; }
.map.chosen { outline: 3px solid var(--mark); outline-offset: 1px; }
canvas { image-rendering: pixelated; display: block; }
"""

SCRIPT = """
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const [layers, heads, rows, columns] = data.shape;
const bytes = Uint8Array.from(atob(data.weights), (byte) => byte.charCodeAt(0));
const names = { source: data.source, target: data.target };
const other = { source: "target", target: "source" };
const MEAN = -1;
const state = { layer: layers > 1 ? MEAN : 0, head: heads > 1 ? MEAN : 0 };
let kept = { side: "target", index: 0 };
let shown = kept;

const byId = (id) => document.getElementById(id);
const all = (count) => Array.from({ length: count }, (_, index) => index);
const chosen = (index, count) => (index === MEAN ? all(count) : [index]);

function make(tag, parent, className = "") {
  const element = document.createElement(tag);
  element.className = className;
  parent.append(element);
  return element;
}

// The map of a layer and head, or the mean of several, T x S numbers in [0, 1].
function mapOf(layer, head) {
  const size = rows * columns;
  const map = new Float32Array(size);
  const maps = chosen(layer, layers).flatMap((l) =>
    chosen(head, heads).map((h) => (l * heads + h) * size));
  for (const start of maps)
    for (let i = 0; i < size; i++) map[i] += bytes[start + i] / 255 / maps.length;
  return map;
}

// The root lets small weights be seen, as among many tokens all are.
const shade = (weight) => Math.sqrt(weight);

function weightsOf(map, { side, index }) {
  return side === "target"
    ? all(columns).map((column) => map[index * columns + column])
    : all(rows).map((row) => map[row * columns + index]);
}

const chips = {};
for (const side of ["source", "target"]) {
  byId(side).classList.toggle("dense", rows + columns > 60);
  chips[side] = names[side].map((name, index) => {
    const chip = make("button", byId(side), "token");
    const text = make("span", chip);
    text.textContent = name;
    text.dir = "auto";
    make("small", chip);
    chip.type = "button";
    chip.tabIndex = index ? -1 : 0;
    chip.addEventListener("pointerenter", () => show({ side, index }));
    chip.addEventListener("pointerleave", () => show(kept));
    chip.addEventListener("focus", () => show({ side, index }));
    chip.addEventListener("blur", () => show(kept));
    chip.addEventListener("click", () => show((kept = { side, index })));
    chip.addEventListener("keydown", (event) => move(event, side, index));
    return chip;
  });
}

// The arrow keys go along a side and over to the other, as in any toolbar.
function move(event, side, index) {
  const last = chips[side].length - 1;
  const to = {
    ArrowRight: [side, Math.min(index + 1, last)],
    ArrowLeft: [side, Math.max(index - 1, 0)],
    Home: [side, 0],
    End: [side, last],
    ArrowDown: ["target", Math.min(index, rows - 1)],
    ArrowUp: ["source", Math.min(index, columns - 1)],
  }[event.key];
  if (!to) return;
  event.preventDefault();
  const [nextSide, nextIndex] = to;
  chips[nextSide].forEach((chip, i) => { chip.tabIndex = i === nextIndex ? 0 : -1; });
  chips[nextSide][nextIndex].focus();
}

function show(selection) {
  shown = selection;
  const weights = weightsOf(state.map, shown);
  chips[shown.side].forEach((chip, index) => {
    paint(chip, 0, "");
    const isChosen = index === shown.index;
    chip.classList.toggle("chosen", isChosen);
    chip.classList.toggle("kept", isChosen && shown === kept);
    chip.setAttribute("aria-pressed", isChosen);
  });
  chips[other[shown.side]].forEach((chip, index) => {
    paint(chip, weights[index], weights[index].toFixed(2));
    chip.classList.remove("chosen", "kept");
    chip.setAttribute("aria-pressed", false);
  });
  say(weights);
}

function paint(chip, weight, number) {
  chip.style.backgroundColor = weight ? `rgb(29 78 216 / ${shade(weight)})` : "";
  chip.classList.toggle("dark", shade(weight) > 0.72);
  chip.lastChild.textContent = number;
}

function say(weights) {
  const verb = shown.side === "target" ? "attends to" : "is attended to by";
  const side = other[shown.side];
  const best = all(weights.length)
    .filter((index) => weights[index] >= 0.005)
    .sort((a, b) => weights[b] - weights[a])
    .slice(0, 5)
    .map((index) => `\\u201c${names[side][index]}\\u201d ${weights[index].toFixed(2)}`);
  const token = names[shown.side][shown.index];
  byId("said").textContent =
    `\\u201c${token}\\u201d (${shown.side} ${shown.index + 1}) ${verb} ` +
    (best.length ? best.join(", ") : "nothing above 0.005") + ".";
}

function choose(layer, head) {
  state.layer = layer;
  state.head = head;
  state.map = mapOf(layer, head);
  byId("layer").value = layer;
  byId("head").value = head;
  const isMeanOfAll = layer === MEAN && head === MEAN;
  document.querySelectorAll(".map").forEach((map) => {
    const isOf = (name) => [MEAN, +map.dataset[name]].includes(state[name]);
    const isChosen = isOf("layer") && isOf("head") && !isMeanOfAll;
    map.classList.toggle("chosen", isChosen);
    map.setAttribute("aria-pressed", isChosen);
  });
  show(shown);
}

function fill(name, count) {
  const select = byId(name);
  const values = count > 1 ? [MEAN, ...all(count)] : all(count);
  for (const value of values) {
    const option = make("option", select);
    option.value = value;
    option.textContent = value === MEAN ? "mean of all" : value + 1;
  }
  select.addEventListener("change", () =>
    choose(+byId("layer").value, +byId("head").value));
}

function draw(canvas, map) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  map.forEach((weight, i) => {
    const faded = [29, 78, 216].map((colour) => 255 + (colour - 255) * shade(weight));
    image.data.set([...faded, 255], 4 * i);
  });
  context.putImageData(image, 0, 0);
}

function overview() {
  const cell = Math.max(28, Math.min(96, 900 / heads - 12));
  const scale = cell / Math.max(rows, columns);
  const labels = make("tr", byId("maps"));
  make("th", labels);
  for (const head of all(heads)) make("th", labels).textContent = `head ${head + 1}`;
  for (const layer of all(layers)) {
    const row = make("tr", byId("maps"));
    make("th", row).textContent = `layer ${layer + 1}`;
    for (const head of all(heads)) {
      const button = make("button", make("td", row), "map");
      button.type = "button";
      Object.assign(button.dataset, { layer, head });
      button.setAttribute("aria-label", `layer ${layer + 1}, head ${head + 1}`);
      button.addEventListener("click", () => choose(layer, head));
      const canvas = make("canvas", button);
      Object.assign(canvas, { width: columns, height: rows });
      canvas.style.width = `${Math.max(8, columns * scale)}px`;
      canvas.style.height = `${Math.max(8, rows * scale)}px`;
      draw(canvas, mapOf(layer, head));
    }
  }
  byId("overview").hidden = layers * heads === 1;
}

fill("layer", layers);
fill("head", heads);
overview();
choose(state.layer, state.head);
"""
