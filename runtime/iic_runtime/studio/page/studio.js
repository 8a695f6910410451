// The page: what the session says is shown, what the user does is sent to it.

import { LabelLayer, Loader, PictureLayer } from "./layers.js";
import { Viewer, cross, distance } from "./viewer.js";

const $ = (id) => document.getElementById(id);
const REACH = 12;  // pixels of the screen within which a click selects another one
const REST = 800;  // ms without a click before places are suggested again
const FEW = 5;  // clicks per class below which their accuracy says little
const USUAL = ["water", "trees", "grass", "fields", "scrub", "buildings", "roads", "bare", "sand", "rock", "snow", "shadow"];
const STAGES = { look: "Looking at the scene", fit: "Fitting", segment: "Mapping", regrid: "Mapping", clean: "Cleaning", write: "Writing" };
const SILENT = "The studio does not answer; start it again, no click is lost.";
const NOVEL = [{ name: "unlike what the model has seen", colour: "#ff00c8" }];
const LAYERS = { taught: "Your map", bundled: "Bundled model", clusters: "Clusters", finished: "Finished map", none: "No map" };

let scenes, scene, base, viewer, loader, pictures, maps, novelty, events;
let state = null;
let chosen = null;  // the class to teach
const adding = new Set();  // classes that the studio has not confirmed yet
let unconfirmed = [];  // clicks that it has not confirmed
let turns = Promise.resolve();  // actions are sent one after the other, in the order in which they were made
const unsent = [];  // those that wait for the ones before them
let selected = null;  // the number of a click
let suggestions = [], suggesting;
let shown = null;  // the map that the user has chosen; null until then
let composite = null;
let asking = null;  // the sample that is asked about
const skipped = new Set();
const answered = [];  // numbers of the samples that this page has answered, to go back to
let clicked = null;  // when the last click was made, and the fit before it, to measure how long the view takes

// ---------------------------------------------------------------- talking to the session

const request = (action, values = {}) => ({ address: `${base}/${action}`, body: JSON.stringify(values) });

function post({ address, body }, keepalive = false) {
  return fetch(address, { method: "POST", headers: { "Content-Type": "application/json" }, body, keepalive });
}

async function send(waiting) {
  const answer = await post(waiting);
  const content = await answer.json().catch(() => ({ error: SILENT }));
  if (!answer.ok) throw new Error(content.error);
  return content;
}

async function act(action, values) {
  const waiting = request(action, values), asked = base;
  unsent.push(waiting);
  const turn = turns.then(() => {
    unsent.splice(unsent.indexOf(waiting), 1);
    return send(waiting);
  });
  turns = turn.catch(() => {});
  try {
    const next = await turn;
    if (asked !== base) return false;  // another scene is shown by now
    take(next);
    return true;
  } catch (error) {
    say(error instanceof TypeError ? SILENT : error.message);
    return false;
  }
}

// A page that is left or loaded again before a slow machine has taken all clicks sends the rest at once.
addEventListener("pagehide", () => { for (const waiting of unsent.splice(0)) post(waiting, true); });

function say(text) { $("status").textContent = text; }

function listen() {
  events?.close();
  events = new EventSource(`${base}/events`);
  events.onmessage = ({ data }) => take(JSON.parse(data));
  events.onerror = () => say("The studio does not answer; if it has ended, start it again: no click is lost.");
}

// ---------------------------------------------------------------- showing the state

function take(next) {
  if (state && next.changes < state.changes) return;
  if (next.message && next.message !== state?.message) say(next.message);
  const before = state;
  state = next;
  if (chosen && !adding.has(chosen) && !state.classes.some(({ name }) => name === chosen)) chosen = null;
  chosen ??= state.classes[0]?.name ?? null;
  if (!state.clicks.some(({ number }) => number === selected)) selected = null;
  const isNew = before && state.finished && before.finished?.changes !== state.finished.changes;
  if (isNew) shown ??= "finished";
  if (before && before.fit !== state.fit) suggestAgain();
  showClasses();
  showTeaching();
  showClusters();
  showJob();
  showFinished();
  showAssessment();
  showLayers();
  viewer.redraw();
  if (isNew) $("finished").scrollIntoView({ block: "nearest" });
  document.body.dataset.changes = state.changes;
}

function colours(names) {
  return names.map((name) => ({ name, colour: state.classes.find((entry) => entry.name === name)?.colour ?? "#888888" }));
}

function activeLayer() {
  if (asking) return "none";
  const usable = { taught: state.taught.length > 0, bundled: Boolean(maps.bundled), clusters: state.clusters.length > 0, finished: Boolean(state.finished), none: true };
  if (shown && usable[shown]) return shown;
  return usable.taught ? "taught" : usable.finished ? "finished" : usable.bundled ? "bundled" : "none";
}

function showLayers() {
  const active = activeLayer(), isFaded = $("confidence").checked;
  maps.taught.stamp = state.fit;
  maps.taught.recolour(colours(state.taught), isFaded);
  maps.bundled?.recolour(scene.bundled.classes, isFaded);
  maps.clusters.stamp = state.clusterings;
  maps.clusters.recolour(state.clusters.map(({ colour }, index) => ({ name: `cluster ${index + 1}`, colour })), isFaded);
  if (state.finished) {
    maps.finished.stamp = state.finished.changes;
    maps.finished.recolour(state.finished.classes, isFaded);
  }
  for (const [name, layer] of Object.entries(maps)) {
    layer.isShown = name === active && !document.body.classList.contains("bare");
    layer.opacity = Number($("opacity").value);
  }
  for (const [name, layer] of Object.entries(pictures)) layer.isShown = name === composite;
  novelty.isShown = isNoveltyShown();
  for (const input of document.querySelectorAll("#layers input")) {
    input.checked = input.value === active;
    input.disabled = { taught: !state.taught.length, bundled: !maps.bundled, clusters: !state.clusters.length, finished: !state.finished }[input.value] ?? false;
  }
}

function isNoveltyShown() {
  return scene.bundled?.has_novelty && $("novelty").checked && !asking && !document.body.classList.contains("bare");
}

function showClasses() {
  const list = $("classes");
  const key = JSON.stringify([state.classes, chosen]);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  const focused = document.activeElement?.closest?.("#classes") ? document.activeElement.dataset.role + document.activeElement.value : null;
  list.replaceChildren(...state.classes.map((entry, index) => {
    const item = element("li", { className: entry.name === chosen ? "chosen" : "" });
    const colour = element("input", { type: "color", value: entry.colour, ariaLabel: `Colour of ${entry.name}` });
    colour.onchange = () => act("change_class", { name: entry.name, colour: colour.value });
    const label = element("label");
    const radio = element("input", { type: "radio", name: "class", value: entry.name, checked: entry.name === chosen });
    radio.dataset.role = "class";
    radio.onchange = () => choose(entry.name);
    const [right, judged] = entry.recognised ?? [0, 0];
    const isKnown = judged >= FEW;
    const count = element("span", { className: isKnown && right / judged < 0.8 ? "count poor" : "count" });
    count.textContent = `${entry.clicks}${isKnown ? ` · ${Math.round(100 * right / judged)} %` : ""}`;
    count.title = judged ? `${entry.clicks} clicks; ${right} of ${judged} are recognised from the others` : `${entry.clicks} clicks`;
    label.append(radio, element("span", { className: "name", textContent: entry.name, title: "Double-click or F2 to rename" }), count);
    label.ondblclick = () => rename(entry.name);
    if (index < 9) label.append(element("kbd", { textContent: String(index + 1), ariaHidden: "true" }));
    const remove = element("button", { type: "button", textContent: "✕", ariaLabel: `Remove ${entry.name} and its clicks` });
    remove.onclick = () => act("remove_class", { name: entry.name });
    item.append(colour, label, remove);
    return item;
  }));
  if (focused) [...list.querySelectorAll("input")].find((input) => input.dataset.role + input.value === focused)?.focus();
}

function showTeaching() {
  $("unsaved").hidden = !state.unsaved;
  if ($("unsaved").textContent !== (state.unsaved ?? "")) $("unsaved").textContent = state.unsaved ?? "";
  $("start").hidden = state.taught.length > 0;
  $("unmapped").hidden = !scene.unmapped || state.taught.length > 0;
  $("delete").disabled = selected === null;
  const accuracy = $("accuracy");
  let text = "";
  if (state.taught.length && !state.settled) text = accuracy.textContent;
  else if (state.accuracy !== null && state.clicks.length < FEW * state.taught.length) {
    text = "Give each class five clicks or more, in different places: then it is known how well they are recognised.";
  } else if (state.accuracy !== null) {
    text = `${Math.round(100 * state.accuracy)} % of the clicks are recognised by a fit that saw none of the same place.`;
  } else if (state.taught.length) text = "To check itself, the map needs clicks of every class in two places.";
  else if (state.clicks.length) text = "Click a second class.";
  if (accuracy.textContent !== text) accuracy.textContent = text;
  const isKnown = state.clicks.length >= FEW * state.taught.length;
  fill($("advice"), !isKnown ? [] : state.settled ? state.advice : [...$("advice").children].map((item) => item.textContent));
}

function showClusters() {
  const list = $("found"), key = `${base}/${state.clusterings}`;
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...state.clusters.map(({ colour, share, places }, number) => {
    const form = element("form");
    const swatch = element("i");
    swatch.style.background = colour;
    const name = element("input", { placeholder: `${Math.round(100 * share)} %`, ariaLabel: `Name of cluster ${number + 1}`, maxLength: 200 });
    name.setAttribute("list", "names");
    const show = element("button", { type: "button", textContent: "Show", ariaLabel: `Show cluster ${number + 1}`, disabled: !places.length });
    let next = 0;
    show.onclick = () => { chooseLayer("clusters"); viewer.goTo(places[next++ % places.length]); };
    form.onsubmit = async (event) => {
      event.preventDefault();
      if (name.value.trim() && await act("name_cluster", { number, name: name.value })) {
        chosen = name.value.trim();
        shown = null;
        take(state);
      }
    };
    form.append(swatch, name, show, element("button", { textContent: "Name" }));
    const item = element("li");
    item.append(form);
    return item;
  }));
}

function showJob() {
  const job = state.job;
  $("progress").hidden = $("stop").hidden = $("stage").hidden = !job;
  $("map").disabled = Boolean(job) || state.taught.length < 2;
  if (!job) return;
  $("progress").value = job.total ? job.done / job.total : 0;
  $("stage").textContent = `${STAGES[job.stage] ?? job.stage}: ${Math.round(100 * $("progress").value)} %`;
}

function showFinished() {
  const finished = state.finished;
  $("finished").hidden = !finished;
  $("ask").disabled = $("count").disabled = !finished;
  if (!finished) return;
  const total = finished.areas.reduce((sum, { m2 }) => sum + (m2 ?? 0), 0);
  const [unit, divisor] = total >= 1e9 ? ["km²", 1e6] : ["ha", 1e4];
  rows($("areas"), finished.areas.map(({ name, m2, pixels, share }, index) => [
    { colour: finished.classes[index].colour, text: name },
    m2 === null ? `${pixels} px` : `${format(m2 / divisor)} ${unit}`,
    `${(100 * share).toFixed(1)} %`,
  ]));
  const stale = finished.current || state.job ? "" : "There are newer clicks: map again to use them. ";
  $("files").textContent = `${stale}In ${scene.folder}: ${finished.files.join(", ")}.`;
}

function showAssessment() {
  const answered = state.samples.filter(({ name }) => name).length;
  $("answered").hidden = !state.samples.length;
  $("answered").textContent = `${answered} of ${state.samples.length} places answered.`;
  $("result").hidden = answered < 2;
  $("ask").textContent = state.samples.length && answered < state.samples.length ? "Continue" : state.samples.length ? "Draw new places" : "Ask me";
  const assessment = state.assessment;
  $("assessment").hidden = !assessment;
  if (!assessment) return;
  $("overall").textContent = `${percent(assessment.overall)} of the area is classified correctly (95 % confidence, ${assessment.samples} places).`;
  rows($("figures"), assessment.classes.map(({ name, users, producers, area_ha: area, share }) => [
    { text: name }, percent(users), percent(producers),
    area ? `${format(area.value)} ± ${format(area.margin ?? 0)} ha` : percent(share),
  ]));
  fill($("remarks"), assessment.remarks);
}

function percent(estimate) {
  if (!estimate) return "–";
  const margin = estimate.margin === null ? "" : ` ± ${(100 * estimate.margin).toFixed(0)}`;
  return `${(100 * estimate.value).toFixed(0)}${margin} %`;
}

function format(number) {
  return number.toLocaleString("en-GB", { maximumFractionDigits: number < 100 ? 1 : 0 });
}

function element(kind, properties = {}) { return Object.assign(document.createElement(kind), properties); }

function fill(list, texts) {
  if (JSON.stringify([...list.children].map((item) => item.textContent)) === JSON.stringify(texts)) return;
  list.replaceChildren(...texts.map((text) => element("li", { textContent: text })));
}

function rows(table, lines) {
  table.tBodies[0].replaceChildren(...lines.map((line) => {
    const row = element("tr");
    for (const cell of line) {
      const { text = cell, colour } = typeof cell === "object" ? cell : {};
      const data = element("td");
      if (colour) {
        const swatch = element("i");
        swatch.style.background = colour;
        data.append(swatch);
      }
      data.append(text);
      row.append(data);
    }
    return row;
  }));
}

// ---------------------------------------------------------------- marks on the view

function marks(context) {
  if (asking) {
    const at = viewer.toScreen(asking.place), half = Math.max(4, viewer.scale / 2);
    for (const [width, colour] of [[4, "#fff"], [1.5, "#000"]]) {
      Object.assign(context, { lineWidth: width, strokeStyle: colour });
      context.strokeRect(at[0] - half, at[1] - half, 2 * half, 2 * half);
    }
    cross(context, at, half + 16);
    return;
  }
  const known = Object.fromEntries(state?.classes.map(({ name, colour }) => [name, colour]) ?? []);
  for (const { number, name, place } of [...(state?.clicks ?? []), ...unconfirmed]) {
    const [x, y] = viewer.toScreen(place), isSelected = number === selected;
    context.beginPath();
    context.arc(x, y, isSelected ? 9 : 5.5, 0, 7);
    context.fillStyle = known[name] ?? "#888";
    context.fill();
    for (const [width, colour] of [[isSelected ? 5 : 3.2, "#fff"], [1.4, "#000"]]) {
      Object.assign(context, { lineWidth: width, strokeStyle: colour });
      context.stroke();
      context.fill();
    }
  }
  for (const place of suggestions) pin(context, viewer.toScreen(place));
}

function pin(context, [x, y]) {
  context.beginPath();
  context.moveTo(x, y);
  context.bezierCurveTo(x - 16, y - 16, x - 10, y - 30, x, y - 30);
  context.bezierCurveTo(x + 10, y - 30, x + 16, y - 16, x, y);
  Object.assign(context, { fillStyle: "#ffd400", strokeStyle: "#000", lineWidth: 1.5 });
  context.fill();
  context.stroke();
  Object.assign(context, { fillStyle: "#000", font: "bold 14px system-ui, sans-serif", textAlign: "center" });
  context.fillText("?", x, y - 13);
}

function afterDraw() {
  if (!state) return;
  const layer = maps[activeLayer()];
  const isFar = layer && layer.isTooFar(viewer) && !document.body.classList.contains("bare");
  $("notice").hidden = !isFar;
  if (isFar) $("notice").textContent = "Zoom in to see the map here; “Map the whole scene” shows all of it.";
  showBar();
  if (clicked && state.fit !== clicked.fit && layer === maps.taught && layer.isUpToDate(viewer)) {
    document.body.dataset.milliseconds = Math.round(performance.now() - clicked.at);
    clicked = null;
  }
}

function showBar() {
  if (!scene.metres) {
    $("bar").hidden = true;
    return;
  }
  const reach = 120 * scene.metres / viewer.scale;
  const power = 10 ** Math.floor(Math.log10(reach));
  const length = [5, 2, 1].find((step) => step * power <= reach) * power;
  $("bar").style.width = `${length / scene.metres * viewer.scale}px`;
  $("bar").textContent = length >= 1000 ? `${length / 1000} km` : length >= 1 ? `${length} m` : `${length * 100} cm`;
}

function hover(place) {
  const at = place && maps[activeLayer()]?.at?.(viewer, place);
  const foreign = place && novelty?.at(viewer, place);
  $("here").textContent = [at, foreign].filter(Boolean)
    .map(({ name, confidence }) => `${name}, ${Math.round(100 * confidence)} %`).join("; ");
}

// ---------------------------------------------------------------- what the user does

function choose(name) {
  chosen = name;
  showClasses();
  say(`Teaching ${name}`);
}

async function teach(place) {
  if (asking) return;
  const near = state.clicks.find((click) => distance(viewer.toScreen(click.place), viewer.toScreen(place)) < REACH);
  if (near) {
    selected = near.number === selected ? null : near.number;
    showTeaching();
    viewer.redraw();
    if (selected !== null) say(`A click of ${near.name}; Delete removes it.`);
    return;
  }
  if (!chosen) {
    say("Add a class first, then click where it is.");
    $("name").focus();
    return;
  }
  await put([place], false);
}

async function put(places, stroke) {
  if (!chosen) {
    say("Add a class first, then draw where it is.");
    return;
  }
  clicked = { at: performance.now(), fit: state.fit };
  const name = chosen, marked = stroke ? [] : places.map((place) => ({ name, place }));
  unconfirmed = [...unconfirmed, ...marked];
  viewer.redraw();
  const isAdded = await act("add", { name, places, stroke });
  unconfirmed = unconfirmed.filter((click) => !marked.includes(click));
  viewer.redraw();
  if (isAdded) {
    const count = state.classes.find((entry) => entry.name === name)?.clicks;
    say(`${name}: ${count} ${count === 1 ? "click" : "clicks"}`);
  }
}

async function rename(name) {
  const text = prompt(`New name of ${name}`, name);
  if (text && text !== name && await act("change_class", { name, new_name: text })) choose(text.trim());
}

function suggestAgain() {
  suggestions = [];
  clearTimeout(suggesting);
  suggesting = setTimeout(suggest, REST);
}

async function suggest(event) {
  const layer = maps.taught;
  if ($("suggest").getAttribute("aria-pressed") !== "true" || !state.taught.length || layer.isTooFar(viewer)) {
    suggestions = [];
    viewer.redraw();
    return;
  }
  try {
    const asked = base, { places } = await send(request("suggest", { tiles: layer.visible(viewer) }));
    if (asked !== base) return;
    suggestions = places;
    if (event) say(suggestions.length ? `${suggestions.length} places where a click would help; N goes to the next.` : "Nothing to suggest in this view.");
  } catch (error) {
    say(error.message);
  }
  viewer.redraw();
}

function nextSuggestion() {
  if (!suggestions.length) return;
  suggestions.push(suggestions.shift());
  viewer.goTo(suggestions.at(-1));
  viewer.showCross(true);
  $("canvas").focus();
}

function chooseLayer(name) {
  shown = name;
  showLayers();
  viewer.redraw();
}

function toggle(id, isPressed = $(id).getAttribute("aria-pressed") !== "true") {
  $(id).setAttribute("aria-pressed", isPressed);
  return isPressed;
}

function showBare(isBare) {
  document.body.classList.toggle("bare", isBare);
  showLayers();
  viewer.redraw();
}

// ---------------------------------------------------------------- assessment

function ask(again = null) {
  asking = again ?? state.samples.find(({ number, name }) => !name && !skipped.has(number)) ?? null;
  $("question").hidden = !asking;
  showLayers();
  if (!asking) {
    if (state.samples.length) say("All places are answered.");
    viewer.redraw();
    return;
  }
  $("asked").textContent = `Place ${asking.number} of ${state.samples.length}: what is in the small square?`;
  const answers = state.finished.classes.map(({ name, colour }, index) => answerButton(name, name, colour, index + 1));
  $("answers").replaceChildren(...answers, answerButton("Unknown", null), ...(answered.length ? [plainButton("Back", goBack)] : []), plainButton("Stop asking", stopAsking));
  viewer.goTo(asking.place, 4);
}

function answerButton(text, name, colour, number) {
  const button = element("button", { type: "button" });
  if (colour) {
    const swatch = element("i");
    swatch.style.background = colour;
    button.append(swatch);
  }
  button.append(number && number < 10 ? `${number} ${text}` : text);
  button.onclick = () => answer(name);
  return button;
}

function plainButton(textContent, onclick) { return element("button", { type: "button", textContent, onclick }); }

function stopAsking() {
  asking = null;
  $("question").hidden = true;
  showLayers();
  viewer.redraw();
}

async function answer(name) {
  const { number } = asking;
  skipped.add(number);
  answered.push(number);
  ask();  // the next one, while the answer is written
  if (!await act("answer", { number, name })) skipped.delete(number);
}

function goBack() {
  const number = answered.pop();
  skipped.delete(number);
  ask(state.samples.find((sample) => sample.number === number));
}

async function startAsking() {
  const isOpen = state.samples.some(({ name, number }) => !name && !skipped.has(number));
  if (!isOpen) {
    skipped.clear();
    answered.length = 0;
    if (!await act("draw", { count: Number($("count").value) })) return;
  }
  ask();
}

// ---------------------------------------------------------------- keys

function key(event) {
  if (event.target.closest("input:not([type=radio]):not([type=checkbox]):not([type=range]), select")) return;
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z") {
    event.preventDefault();
    act(event.shiftKey ? "redo" : "undo");
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^[1-9]$/.test(event.key)) {
    const index = Number(event.key) - 1;
    if (asking) $("answers").children[index]?.dataset !== undefined && state.finished.classes[index] && answer(state.finished.classes[index].name);
    else if (state.classes[index]) choose(state.classes[index].name);
    return;
  }
  const actions = {
    u: () => (asking ? answered.length && goBack() : act("undo")), n: nextSuggestion, d: () => $("draw").click(), s: () => $("suggest").click(),
    Delete: () => $("delete").click(), Backspace: () => $("delete").click(),
    h: () => !event.repeat && showBare(!document.body.classList.contains("bare")),
    F2: () => chosen && rename(chosen),
    Escape: () => (asking ? stopAsking() : (selected = null, showTeaching(), viewer.redraw())),
  };
  (actions[event.key] ?? actions[event.key.toLowerCase()])?.();
}

function connectControls() {
  $("new").onsubmit = async (event) => {
    event.preventDefault();
    const name = $("name").value.trim();
    if (!name) return;
    const before = chosen;
    $("name").value = "";
    adding.add(name);
    choose(name);  // what is clicked from now on is of this class
    const isAdded = await act("add_class", { name });
    adding.delete(name);
    if (isAdded) {
      const known = state.classes.find((entry) => entry.name === name)?.name ?? state.classes.at(-1).name;
      if (chosen === name || chosen === null) choose(known);
      return;
    }
    $("name").value ||= name;
    if (chosen === name) chosen = before;
    showClasses();
  };
  $("undo").onclick = () => act("undo");
  $("redo").onclick = () => act("redo");
  $("delete").onclick = () => selected !== null && act("remove", { numbers: [selected] });
  $("draw").onclick = () => { viewer.drawing = toggle("draw"); };
  $("suggest").onclick = (event) => { toggle("suggest"); suggest(event); };
  $("find").onclick = async () => {
    say("Looking for what differs …");
    $("find").disabled = true;
    if (await act("find_clusters", { count: 8 })) {
      chooseLayer("clusters");
      say("These 8 things differ: what are they?");
    }
    $("find").disabled = false;
  };
  $("map").onclick = () => { shown = null; act("map"); };
  $("stop").onclick = () => act("stop");
  $("ask").onclick = startAsking;
  $("result").onclick = () => act("assess");
  $("opacity").oninput = $("confidence").onchange = $("novelty").onchange = () => { showLayers(); viewer.redraw(); };
  for (const button of document.querySelectorAll("#zoom button")) {
    button.onclick = () => (button.dataset.zoom ? viewer.zoom(Number(button.dataset.zoom)) : viewer.showAll());
  }
  document.addEventListener("keydown", key);
}

function radios(container, names, label, onchoice) {
  container.replaceChildren(...names.map((name) => {
    const input = element("input", { type: "radio", name: container.id, value: name });
    input.onchange = () => onchoice(name);
    const box = element("label");
    box.append(input, element("span", { textContent: label[name] ?? name }));
    return box;
  }));
}

// ---------------------------------------------------------------- start

async function open(index) {
  const first = await (await fetch(`api/${index}/state`)).json();
  if (index !== Number($("scenes").value)) return;  // yet another one was chosen
  scene = scenes[index];
  base = `api/${index}`;
  state = null;
  chosen = selected = asking = shown = clicked = null;
  suggestions = [];
  unconfirmed = [];
  skipped.clear();
  answered.length = 0;
  $("question").hidden = true;
  say("");
  document.title = `${scene.title} – iic-studio`;
  $("title").textContent = `${scene.title}, ${scene.width} × ${scene.height} px`;
  loader = new Loader(() => { document.body.dataset.idle = loader.isIdle; });
  const own = { width: scene.width, height: scene.height };
  pictures = Object.fromEntries(scene.composites.map((name) =>
    [name, new PictureLayer(loader, base, name, own, scene.tile, scene.top)]));
  maps = { taught: new LabelLayer(loader, base, "taught", scene.taught, scene.tile, scene.taught.most_level) };
  if (scene.bundled) maps.bundled = new LabelLayer(loader, base, "bundled", scene.bundled, scene.tile, scene.bundled.most_level);
  novelty = new LabelLayer(loader, base, "novelty", scene.bundled ?? own, scene.tile, scene.bundled?.most_level ?? 0);
  novelty.recolour(NOVEL, true);
  novelty.opacity = 0.8;
  $("novelty").parentElement.hidden = !scene.bundled?.has_novelty;
  $("unmapped").textContent = `No bundled model maps this scene. ${scene.unmapped.replace(/`(\w+)`/g, "--$1")}`;
  maps.clusters = new LabelLayer(loader, base, "clusters", scene.taught, scene.tile, scene.taught.most_level);
  maps.finished = new LabelLayer(loader, base, "finished", own, scene.tile, scene.top);
  [composite] = scene.composites;
  radios($("composites"), scene.composites, { colour: "True colour", infrared: "Infrared" }, (name) => {
    composite = name;
    showLayers();
    viewer.redraw();
  });
  $("composites").querySelector("input").checked = true;
  radios($("layers"), Object.keys(LAYERS), LAYERS, chooseLayer);
  const known = [...new Set([...(scene.bundled?.classes.map(({ name }) => name) ?? []), ...USUAL])];
  $("names").replaceChildren(...known.map((value) => element("option", { value })));
  viewer ??= new Viewer($("canvas"), scene.width, scene.height);
  Object.assign(viewer, { width: scene.width, height: scene.height });
  viewer.layers = [...Object.values(pictures), ...Object.values(maps), novelty];
  for (const layer of viewer.layers) {
    layer.onload = () => viewer.redraw();
    layer.onerror = (error) => say(error instanceof TypeError ? SILENT : error.message);
  }
  Object.assign(viewer, { onclick: teach, onstroke: (places) => put(places, true), onhover: hover, onmarks: marks, onmove: afterDraw });
  take(first);
  viewer.showAll();
  listen();
}

async function start() {
  scenes = await (await fetch("api/scenes")).json();
  $("scenes").hidden = scenes.length < 2;
  $("scenes").replaceChildren(...scenes.map(({ title }, value) => element("option", { value, textContent: title })));
  $("scenes").onchange = () => open(Number($("scenes").value)).catch(() => say(SILENT));
  connectControls();
  await open(0);
  document.body.classList.add("ready");
}

start().catch((error) => say(`The page cannot start: ${error.message}`));
