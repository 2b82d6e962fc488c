"use strict";

// Asks once a second for what is new, keeps ten minutes of it, and shows it. Texts of tasks are only ever
// set as text: what a task prints is never taken for a part of the page.

const PARTS = ["input", "compute", "communication", "waiting", "other"];
const RUNNING = ["running", "compiling", "recovering"];
const KEPT_SECONDS = 600;
const MOST_NOTES = 100;

const history = new Map(); // task -> points
let notes = [];
let since = 0;
let shown = null; // what the charts show, to draw it again with other settings

const find = (id) => document.getElementById(id);

function number(value) {
  if (typeof value === "string") return value; // "nan", "inf"
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e5) return value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });
  if (Number.isInteger(value)) return value.toLocaleString("en");
  if (size >= 100) return value.toFixed(0);
  if (size >= 1) return value.toFixed(1);
  return value === 0 ? "0" : Number(value.toPrecision(3)).toString();
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1) return `${value.toFixed(1)} s`;
  return value >= 1e-3 ? `${(value * 1e3).toFixed(1)} ms` : `${(value * 1e6).toFixed(0)} µs`;
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${value < 10 && unit ? value.toFixed(1) : value.toFixed(0)} ${units[unit]}`;
}

function percent(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(0)} %`;
}

function duration(value) {
  const whole = Math.max(0, Math.floor(value));
  const two = (part) => String(part).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

function remember(view) {
  for (const task of view.tasks) {
    const points = history.get(task.task) || [];
    points.push(...task.points);
    history.set(task.task, view.is_recorded ? points : points.filter((point) => point.time > view.now - KEPT_SECONDS));
  }
  notes.push(...view.notes);
  notes = notes.slice(-MOST_NOTES);
  since = view.now;
}

function card(value, label) {
  return make("div", { class: "card" }, make("b", {}, value), make("span", {}, label));
}

function leader(view) {
  return view.tasks.find((task) => Object.keys(task.reported).length > 0);
}

function showSummary(view) {
  if (view.is_recorded) find("charts-title").textContent = "History";
  find("name").textContent = view.job.name;
  document.title = `${view.job.name} – ${view.job.state}`;
  const state = find("state");
  state.textContent = view.job.state + (view.job.attempt ? `, restart ${view.job.attempt}` : "");
  state.className = `state ${view.job.state}`;
  const running = view.tasks.filter((task) => RUNNING.includes(task.state)).length;
  const cards = [
    card(duration(view.now - (view.job.started ?? view.now)), "since the start"),
    card(`${running} of ${view.tasks.length}`, "tasks run"),
    card(number(view.steps_per_second), "steps/s"),
    card(number(view.examples_per_second), "examples/s, all workers"),
  ];
  const first = leader(view);
  for (const [name, value] of Object.entries(first ? first.reported : {})) cards.push(card(exact(value), name));
  if (view.straggler) {
    const late = card(view.straggler, "the others wait for it");
    late.id = "straggler";
    cards.push(late);
  }
  find("summary").replaceChildren(...cards);
}

function bar(step) {
  const box = make("div", { class: "bar" });
  if (!step) return box;
  const all = PARTS.reduce((sum, part) => sum + step[part], 0) || 1;
  const said = PARTS.filter((part) => step[part] > 0).map((part) => `${part} ${seconds(step[part])}`);
  box.title = said.join(", ");
  for (const part of PARTS) {
    const piece = make("i", { class: part });
    piece.style.width = `${(100 * step[part]) / all}%`;
    box.append(piece);
  }
  return box;
}

function showTasks(view) {
  const rows = view.tasks.map((task) => {
    const name = make("td", {}, task.task);
    const state = make("td", { class: task.state }, task.state);
    state.title = task.text;
    const figures = [number(task.steps), number(task.steps_per_second), number(task.examples_per_second), seconds(task.step && task.step.total)];
    const row = make("tr", { "data-task": task.task }, name, state);
    for (const text of figures) row.append(make("td", { class: "number" }, text));
    row.append(make("td", {}, bar(task.step)));
    row.append(make("td", { class: "number", title: "100 % is one core" }, percent(task.cpu)));
    row.append(make("td", { class: "number" }, bytes(task.memory)), make("td", { class: "number" }, String(task.starts)));
    return row;
  });
  find("tasks").tBodies[0].replaceChildren(...rows);
}

function showParts(view) {
  const cards = [];
  for (const task of view.tasks) {
    for (const [part, figures] of Object.entries(task.figures)) {
      const list = make("dl");
      for (const [name, value] of Object.entries(figures)) {
        const show = name.endsWith("bytes") ? bytes : name.endsWith("_seconds") ? seconds : name.endsWith("utilization") ? percent : number;
        list.append(make("dt", {}, name.replace(/_(seconds|bytes)$/, "").replaceAll("_", " ")), make("dd", {}, show(value)));
      }
      cards.push(make("div", { class: "card", "data-part": part }, make("span", {}, `${part.replaceAll("_", " ")}, ${task.task}`), list));
    }
  }
  find("parts").replaceChildren(...cards);
}

function showCharts(view) {
  // A task has the same colour in every chart, also where another one reports nothing.
  const of = (value) => view.tasks.map((task) => ({
    name: task.task,
    points: (history.get(task.task) || [])
      .map((point) => ({ time: point.time, step: point.steps, value: value(point) }))
      .filter((point) => point.value !== undefined && point.value !== null),
  }));
  const charts = [
    chart("steps/s", of((point) => point.steps_per_second), view.now),
    chart("examples/s", of((point) => point.examples_per_second), view.now),
    chart("CPU (cores)", of((point) => point.cpu), view.now),
    chart("memory (MB)", of((point) => (point.memory === null ? null : point.memory / 1e6)), view.now),
  ];
  const first = leader(view);
  for (const name of Object.keys(first ? first.reported : {})) {
    charts.push(chart(name, of((point) => point.reported[name]), view.now));
  }
  find("charts").replaceChildren(...charts.filter(Boolean));
  find("workers").replaceChildren(...taskLegend(view.tasks.map((task) => task.task)));
}

function showNotes() {
  const items = [...notes].reverse().map((note) => {
    const [first, ...more] = note.text.split("\n");
    const time = new Date(note.time * 1000).toLocaleTimeString();
    const said = note.task && !first.startsWith(note.task) ? `${note.task}: ${first}` : first;
    const item = make("li", {}, make("time", {}, time), make("b", { class: note.kind }, note.kind), ` ${said}`);
    if (more.length) item.append(make("pre", {}, more.join("\n")));
    return item;
  });
  find("notes").replaceChildren(...items);
  find("no-notes").hidden = items.length > 0;
}

async function look() {
  try {
    const answer = await fetch(`state?since=${since}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const view = await answer.json();
    remember(view);
    showSummary(view);
    showTasks(view);
    showParts(view);
    shown = view;
    showCharts(view);
    showNotes();
    find("logs").hidden = Boolean(view.is_recorded);
    offerTasks(view.tasks.map((task) => task.task));
    find("lost").hidden = true;
  } catch (error) {
    find("lost").hidden = false;
  }
  setTimeout(look, 1000);
}

listenToLogs();
listenToSettings(() => shown && showCharts(shown));
find("legend").append(...PARTS.map((part) => make("span", {}, make("i", { class: part }), part)));
look();
