"use strict";

// The output of the tasks. It is asked for while this part of the page is open, and searched by the launcher,
// which keeps more of it than a page could show.

const MOST_LINES = 2000;

const logs = { after: -1, questions: 0, timer: null };

function logFilter() {
  return { task: find("log-task").value, text: find("log-text").value.trim() };
}

// The text of a line, with the searched words marked.
function marked(text, wanted) {
  const pieces = [];
  const where = text.toLowerCase();
  let from = 0;
  if (wanted && where.length === text.length) {
    for (let at = where.indexOf(wanted); at >= 0; at = where.indexOf(wanted, from)) {
      pieces.push(text.slice(from, at), make("mark", {}, text.slice(at, at + wanted.length)));
      from = at + wanted.length;
    }
  }
  return [...pieces, text.slice(from)];
}

function showLines(lines, wanted) {
  const box = find("log-lines");
  const follows = box.scrollTop + box.clientHeight >= box.scrollHeight - 30;
  for (const line of lines) {
    const time = make("time", {}, new Date(line.time * 1000).toLocaleTimeString());
    const name = make("b", {}, line.task);
    name.style.color = colourOf(line.task);
    box.append(make("div", line.is_error ? { class: "to-stderr" } : {}, time, name, ...marked(line.text, wanted)));
  }
  while (box.childElementCount > MOST_LINES) box.firstElementChild.remove();
  if (follows) box.scrollTop = box.scrollHeight;
  const count = box.childElementCount;
  find("log-count").textContent = count ? `${count} lines` : wanted ? "no such line" : "no output yet";
}

async function lookAtLogs() {
  clearTimeout(logs.timer);
  if (!find("logs").open) return;
  const question = ++logs.questions; // an answer to an earlier one comes too late
  const filter = logFilter();
  try {
    const answer = await fetch(`logs?${new URLSearchParams({ ...filter, after: logs.after })}`, { cache: "no-store" });
    if (question !== logs.questions) return;
    if (answer.ok) {
      const found = await answer.json();
      if (question !== logs.questions) return;
      logs.after = found.last;
      showLines(found.lines, filter.text.toLowerCase());
    } else {
      find("log-count").textContent = await answer.text();
    }
  } catch (error) {
    // The page says already that the launcher does not answer.
  }
  logs.timer = setTimeout(lookAtLogs, 1000);
}

function searchAgain() {
  logs.after = -1;
  find("log-lines").replaceChildren();
  lookAtLogs();
}

function offerTasks(names) {
  const choice = find("log-task");
  const offered = [...choice.options].slice(1).map((option) => option.value);
  for (const name of names) if (!offered.includes(name)) choice.append(make("option", { value: name }, name));
}

function listenToLogs() {
  find("logs").addEventListener("toggle", lookAtLogs);
  find("log-task").addEventListener("input", searchAgain);
  find("log-text").addEventListener("input", searchAgain);
}
