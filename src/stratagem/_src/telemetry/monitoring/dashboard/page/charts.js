"use strict";

// Line charts: one line for each task, axes with round numbers, over time or over steps, with a logarithmic
// axis and smoothing if the viewer asks for them.

const COLOURS = ["#3b6fd4", "#d29922", "#1a7f4b", "#d1495b", "#8250df", "#0f8b8d", "#b5651d", "#667"];
const MAX_TICKS = 6;
const SHORTEST_SECONDS = 10;

const settings = { overSteps: false, logarithmic: false, smoothing: 0 };

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "polyline", "title", "line"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// An exponential moving average that starts at the first value, instead of at zero.
function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

// Round numbers from low to high, at most MAX_TICKS of them.
function ticks(low, high) {
  const rough = (high - low) / (MAX_TICKS - 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i += 1) found.push(i * step);
  return found;
}

// A linear or logarithmic axis: where a value is, from 0 to 1, and which values get a label.
function axisOf(values, logarithmic) {
  const shown = logarithmic ? values.filter((value) => value > 0) : values;
  if (!shown.length) return null;
  let low = Math.min(...shown), high = Math.max(...shown);
  if (logarithmic && high > low) {
    const [first, last] = [Math.log10(low), Math.log10(high)];
    const powers = ticks(Math.floor(first), Math.ceil(last)).filter(Number.isInteger).map((power) => 10 ** power);
    const inside = powers.filter((value) => value >= low && value <= high);
    const labels = inside.length > 1 ? inside : [low, high];
    return { place: (value) => (Math.log10(value) - first) / (last - first), labels };
  }
  if (low >= 0 && low < high / 2) low = 0;
  if (high === low) { low -= Math.abs(low) / 2 || 0.5; high += Math.abs(high) / 2 || 0.5; }
  return { place: (value) => (value - low) / (high - low), labels: ticks(low, high) };
}

// Figures of which each digit counts, such as a loss.
function exact(value) {
  if (typeof value !== "number") return value ?? "–";
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-4)) return value.toExponential(2);
  return Number(value.toPrecision(4)).toString();
}

// Lines are {name, points: [{time, step, value}]}. Returns null if there is nothing to show.
function chart(title, lines, now) {
  const drawn = lines.map((line) => {
    const values = smoothed(line.points.map((point) => point.value), settings.smoothing);
    const points = line.points.map((point, i) => ({ x: settings.overSteps ? point.step : point.time - now, y: values[i] }));
    return { ...line, points: points.filter((point) => Number.isFinite(point.y) && (!settings.logarithmic || point.y > 0)) };
  });
  const all = drawn.flatMap((line) => line.points);
  const vertical = axisOf(all.map((point) => point.y), settings.logarithmic);
  const latest = lines.flatMap((line) => line.points.slice(-1)).map((point) => point.value)[0];
  if (latest === undefined) return null;
  const caption = make("figcaption", {}, make("span", {}, title), make("b", {}, exact(latest)));
  const figure = make("figure", { "data-chart": title }, caption);
  if (vertical === null) {
    figure.append(make("p", { class: "empty" }, settings.logarithmic ? "no positive values" : "no finite values"));
    return figure;
  }
  let first = Math.min(...all.map((point) => point.x));
  const last = settings.overSteps ? Math.max(...all.map((point) => point.x)) : 0;
  if (!settings.overSteps) first = Math.min(first, -SHORTEST_SECONDS);
  const across = (x) => (last > first ? (100 * (x - first)) / (last - first) : 50);
  const down = (y) => 96 - 92 * vertical.place(y);
  const picture = make("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": title });
  const scale = make("div", { class: "scale" });
  for (const label of vertical.labels) {
    picture.append(make("line", { x1: 0, x2: 100, y1: down(label), y2: down(label) }));
    const text = make("span", {}, exact(label));
    text.style.top = `${down(label)}%`;
    scale.append(text);
  }
  drawn.forEach((line, i) => {
    const places = line.points.map((point) => `${across(point.x).toFixed(2)},${down(point.y).toFixed(2)}`);
    const stroke = COLOURS[i % COLOURS.length];
    picture.append(make("polyline", { points: places.join(" "), stroke }, make("title", {}, line.name)));
  });
  const ends = settings.overSteps ? [`step ${first}`, `step ${last}`] : [`${duration(-first)} ago`, "now"];
  figure.append(make("div", { class: "plot" }, scale, picture));
  figure.append(make("div", { class: "ends" }, ...ends.map((end) => make("span", {}, end))));
  return figure;
}

const coloured = []; // the tasks in the order of their colours

function colourOf(task) {
  return COLOURS[Math.max(0, coloured.indexOf(task)) % COLOURS.length];
}

function taskLegend(names) {
  coloured.splice(0, coloured.length, ...names);
  return names.map((name, i) => {
    const colour = make("i");
    colour.style.background = COLOURS[i % COLOURS.length];
    return make("span", {}, colour, name);
  });
}

// Calls redraw when the viewer changes a setting.
function listenToSettings(redraw) {
  const listen = (id, change) => document.getElementById(id).addEventListener("input", (event) => {
    change(event.target);
    redraw();
  });
  listen("over-steps", (box) => { settings.overSteps = box.checked; });
  listen("logarithmic", (box) => { settings.logarithmic = box.checked; });
  listen("smoothing", (slider) => { settings.smoothing = Number(slider.value); });
}
