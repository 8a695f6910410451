// The page: opens a scene, asks what is not known about it, shows the map as it grows, and hands it out as files.

import { Viewer } from "./viewer.js";

const get = (id) => document.getElementById(id);
const SIMD = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11];
const NODATA = 255;
const MOST_THREADS = 8;
const KINDS = { tif: ".tif", xml: ".tif.aux.xml", geojson: ".geojson", csv: ".csv" };

let config, mapper, viewer, picture, scene, current, hidden = new Set();

// The worker and what was asked of it. Stopping ends it, and with it all memory that it has taken.
class Mapper {
  constructor(onevent) {
    this.worker = new Worker("worker.js", { type: "module" });
    this.pending = new Map();
    this.number = 0;
    this.worker.onmessage = ({ data }) => {
      if (data.id === undefined) return onevent(data);
      const { done, failed } = this.pending.get(data.id);
      this.pending.delete(data.id);
      if (data.error) failed(new Error(data.error));
      else done(data.result);
    };
    this.worker.onerror = (event) => {
      event.preventDefault();
      this.fail("The mapping part of this page cannot be started: use a current version of Firefox, Chrome, Edge or Safari.");
    };
    const threads = self.crossOriginIsolated ? Math.min(navigator.hardwareConcurrency || 1, MOST_THREADS) : 1;
    this.worker.postMessage({ action: "start", config, threads, gpu: get("gpu").checked });
  }

  ask(action, about = {}) {
    return new Promise((done, failed) => {
      this.pending.set(++this.number, { done, failed });
      this.worker.postMessage({ id: this.number, action, ...about });
    });
  }

  fail(text) {
    for (const { failed } of this.pending.values()) failed(new Error(text));
    this.pending.clear();
  }

  end() {
    this.worker.terminate();
    this.fail("Stopped.");
  }
}

function tell(text, isWrong = false) {
  get("status").textContent = text;
  get("status").classList.toggle("wrong", isWrong);
}

// Do what takes a while, and say what went wrong.
async function attempt(work) {
  try {
    await work();
  } catch (error) {
    tell(error.message, error.message !== "Stopped.");
  } finally {
    get("progress").hidden = get("stop").hidden = true;
  }
}

function restart() {
  mapper?.end();
  mapper = new Mapper(onEvent);
}

function onEvent({ status, picture: size, part, done }) {
  if (status) tell(status);
  if (size) startPicture(size);
  if (part) {
    picture.add(part);
    tell(`Mapping ${scene.name}: ${Math.floor(100 * done)} %`);
    get("progress").value = done;
    viewer.redraw();
  }
}

function busy(text) {
  tell(text);
  get("progress").value = 0;
  get("progress").hidden = get("stop").hidden = false;
}

function open(file, reading) {
  current = [file, reading];
  restart();
  get("result").hidden = get("reading").hidden = true;
  scene = picture = undefined;
  viewer.layers = [];
  viewer.redraw();
  return attempt(async () => {
    busy(`Reading ${file.name} …`);
    scene = await mapper.ask("open", { file, reading });
    const { choice } = scene;
    if (!reading) showReading(scene);
    const questions = [...(choice.questions ?? [])];
    if (questions.length) {
      tell("Answer, and it is mapped.");
      return;
    }
    await run(choice);
  });
}

async function run(choice) {
  busy("Starting …");
  const result = await mapper.ask("run", choice);
  showResult(result);
}

function showReading({ bands, choice }) {
  get("bands").replaceChildren(...config.card.bands.map((name, position) => {
    const label = document.createElement("label"), text = document.createElement("span"), select = document.createElement("select");
    text.textContent = name;
    select.append(...bands.map((band, index) => new Option(band, index)));
    if (name in config.card.optional) select.append(new Option("none", ""));
    select.value = choice.bands[position] ?? "";
    label.append(text, select);
    return label;
  }));
  get("values").replaceChildren(...choice.options.map(([key, text]) => new Option(text, key)));
  get("values").value = choice.values;
  get("question").textContent = choice.questions.join(" ");
  get("question").hidden = !choice.questions.length;
  get("details").open = choice.questions.length > 0;
  get("reading").hidden = false;
}

function readingChoice() {
  const bands = [...get("bands").querySelectorAll("select")].map(({ value }) => value === "" ? null : Number(value));
  return { bands, values: get("values").value };
}

// The reduced picture of scene and map, coloured here, so that classes can be hidden.
class Picture {
  constructor({ width, height, step }) {
    Object.assign(this, { width, height, step, labels: new Uint8Array(width * height).fill(NODATA) });
    [this.scene, this.map] = [0, 1].map(() => Object.assign(document.createElement("canvas"), { width, height }));
  }

  add({ col, row, width, height, rgba, labels }) {
    if (!width || !height) return;
    this.scene.getContext("2d").putImageData(new ImageData(rgba, width, height), col, row);
    for (let y = 0; y < height; y++) {
      this.labels.set(labels.subarray(y * width, (y + 1) * width), (row + y) * this.width + col);
    }
    this.paint(col, row, width, height);
  }

  paint(col = 0, row = 0, width = this.width, height = this.height) {
    const image = new ImageData(width, height);
    const colours = config.card.classes.map(({ colour }) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)));
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        const value = this.labels[(row + y) * this.width + col + x];
        if (value === NODATA || hidden.has(value)) continue;
        image.data.set([...colours[value], 255], 4 * (y * width + x));
      }
    }
    this.map.getContext("2d").putImageData(image, col, row);
  }

  draw(context, view) {
    const [left, top] = view.toScreen([0, 0]), scale = view.scale * this.step;
    context.imageSmoothingEnabled = scale * view.ratio < 2;
    for (const [canvas, alpha] of [[this.scene, 1], [this.map, Number(get("opacity").value)]]) {
      context.globalAlpha = alpha;
      context.drawImage(canvas, left, top, this.width * scale, this.height * scale);
    }
    context.globalAlpha = 1;
  }

  labelAt([column, row]) {
    const x = Math.floor(column / this.step), y = Math.floor(row / this.step);
    if (x < 0 || y < 0 || x >= this.width || y >= this.height) return null;
    return this.labels[y * this.width + x];
  }
}

function startPicture(size) {
  picture = new Picture(size);
  viewer.width = scene.width;
  viewer.height = scene.height;
  viewer.layers = [picture];
  viewer.showAll();
  get("here").textContent = "";
}

function showBar() {
  const bar = get("bar");
  if (!scene?.side) {
    bar.textContent = "";
    return;
  }
  const reach = (scene.side / viewer.scale) * Math.min(160, viewer.size[0] / 3), power = 10 ** Math.floor(Math.log10(reach));
  const length = [5, 2, 1].find((times) => times * power <= reach * 1.000001) * power;
  const [unit, name] = length >= 1000 ? [1000, "km"] : length >= 1 ? [1, "m"] : [0.01, "cm"];
  bar.textContent = `${Number((length / unit).toPrecision(2))} ${name}`;
  bar.style.width = `${(length / scene.side) * viewer.scale}px`;
}

function formatArea({ m2, pixels }) {
  if (m2 === null) return `${pixels.toLocaleString("en")} px`;
  const [unit, name] = m2 >= 1e9 ? [1e6, "km²"] : m2 >= 1e4 ? [1e4, "ha"] : [1, "m²"];
  return `${(m2 / unit).toLocaleString("en", { maximumFractionDigits: m2 / unit < 100 ? 1 : 0 })} ${name}`;
}

function showResult({ areas, seconds, inference, pixels, threads, tile, engine, gpu }) {
  get("areas").tBodies[0].replaceChildren(...areas.map((area) => {
    const row = document.createElement("tr"), label = document.createElement("label"), box = document.createElement("input");
    box.type = "checkbox";
    box.checked = !hidden.has(area.value);
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(area.value);
      else hidden.add(area.value);
      picture.paint();
      viewer.redraw();
    });
    label.append(box, swatch(area.colour), area.name);
    row.insertCell().append(label);
    row.insertCell().append(formatArea(area));
    row.insertCell().append(`${(100 * area.share).toFixed(1)} %`);
    return row;
  }));
  const speed = pixels / 1e6 / seconds;
  const by = engine === "webgpu" ? "the graphics card" : `${threads} thread${threads === 1 ? "" : "s"} of WebAssembly`;
  get("speed").textContent = `${scene.width} × ${scene.height} pixels in ${seconds.toFixed(1)} s: ${speed.toPrecision(2)} Mpx/s by ${by}.` +
    (gpu ? ` ${gpu}` : "");
  Object.assign(document.body.dataset, { seconds, inference, pixels, threads, tile, engine });
  get("result").hidden = false;
  const { factor } = scene;
  tell(misfit() ?? `${scene.name} is mapped${factor > 1 ? `, ${factor} × ${factor} of its pixels averaged into one` : ""}.`);
}

function swatch(colour) {
  const canvas = Object.assign(document.createElement("canvas"), { width: 22, height: 14, className: "swatch" });
  const context = canvas.getContext("2d");
  context.fillStyle = colour;
  context.fillRect(0, 0, 22, 14);
  return canvas;
}

function misfit() {
  const [low, high] = config.card.gsd_range ?? [0, Infinity];
  if (!scene.side || (scene.side >= low * 0.95 && scene.side <= high * 1.05)) return null;
  return `The scene's pixels measure ${Number(scene.side.toPrecision(3))} m, but the model is made for ${low} to ${high} m, so the ` +
    "map may be poor.";
}

async function download(kind) {
  busy("Writing …");
  const blob = await mapper.ask(kind);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${scene.name.replace(/\.tiff?$/i, "")}-map${KINDS[kind]}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  tell(`${link.download}: ${(blob.size / 1e6).toPrecision(2)} MB`);
}

function listen() {
  get("file").addEventListener("change", ({ target }) => {
    if (target.files.length) open(target.files[0]);
    target.value = "";
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    addEventListener(kind, (event) => {
      event.preventDefault();
      document.body.classList.toggle("over", kind === "dragover");
      if (kind !== "drop") return;
      const { files } = event.dataTransfer;
      if (files.length === 1) open(files[0]);
      else tell(files.length ? "Drop one file at a time." : "Drop a file: a GeoTIFF.", true);
    });
  }
  get("reading").addEventListener("submit", (event) => {
    event.preventDefault();
    get("question").hidden = true;
    attempt(() => run(readingChoice()));
  });
  get("stop").addEventListener("click", () => {
    restart();
    get("reading").hidden = true;
  });
  get("gpu").addEventListener("change", () => current && open(...current));
  get("opacity").addEventListener("input", () => viewer.redraw());
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => button.dataset.zoom ? viewer.zoom(Number(button.dataset.zoom)) : viewer.showAll());
  }
  for (const button of document.querySelectorAll("[data-kind]")) {
    button.addEventListener("click", () => attempt(() => download(button.dataset.kind)));
  }
}

// What this browser cannot do, in a sentence.
function lack() {
  if (typeof WebAssembly !== "object" || !WebAssembly.validate(new Uint8Array(SIMD))) {
    return "This browser lacks WebAssembly with SIMD, which the map is computed with: use a current version of Firefox, " +
      "Chrome, Edge or Safari.";
  }
  if (!("CompressionStream" in self)) {
    return "This browser cannot compress, as the map needs it: use a current version of Firefox, Chrome, Edge or Safari.";
  }
  return null;
}

async function start() {
  await window.isolation;
  config = await (await fetch("page.json")).json();
  const { card, example } = config;
  const [low, high] = card.gsd_range ?? [];
  get("title").textContent = `Land cover by the model ${card.name}`;
  const required = card.bands.filter((name) => !(name in card.optional)), more = Object.keys(card.optional).join(", ");
  get("about").textContent = `For ${required.join(", ")}${more && ` and, if there is one, ${more}`}${high ? `, with pixels of ${low} to ${high} m` : ""}.`;
  viewer = new Viewer(get("canvas"), 1, 1);
  viewer.onmove = showBar;
  viewer.onhover = (place) => {
    const value = place && picture?.labelAt(place);
    get("here").textContent = value === null || value === undefined ? "" : card.classes[value]?.name ?? "no data";
  };
  viewer.onclick = viewer.onhover;
  const missing = lack();
  if (missing) {
    get("choose").hidden = true;
    tell(missing, true);
    return;
  }
  listen();
  get("gpuRow").hidden = !(config.webgpu && await navigator.gpu?.requestAdapter().catch(() => null));
  tell("Open a scene.");
  if (example) {
    const blob = await (await fetch(example.file)).blob();
    open(new File([blob], example.title), example);
  }
}

start()
  .catch((error) => tell(`This page cannot be started (${error.message}): are all of its files on the server?`, true))
  .finally(() => document.body.classList.add("ready"));
