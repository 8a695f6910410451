// Maps scenes in a thread of its own, so that the page stays responsive. Memory depends on the tile, not on the scene.

import { MapFile, polygons } from "./outputs.js";
import { openScene, modelInput, Problem, robustRanges } from "./scene.js";

const NODATA = 255;
const PICTURE = 2048;  // the longest side in pixels of what is shown

const MOST_DIFFERING = 1e-4;  // share of labels that a graphics card may give otherwise

let config, threads, session, gpuSession, gpu = "", wantsGpu = false, scene, map;

const actions = {
  // Reads the head of a file and says how it would be read, and what has to be asked.
  async open({ file, reading }) {
    scene = map = undefined;
    const opened = await openScene(file, config.card);
    const side = pixelSide(opened);
    opened.coarsen(reading ? 1 : coarsening(side));
    let choice;
    if (reading) {
      choice = { bands: reading.bands.map((band) => band === null ? null : band - 1), rescale: reading.rescale };
    } else {
      const { bands, question } = await opened.chooseBands(config.words);
      const values = await opened.chooseValues(bands);
      choice = { bands, values: values.chosen, options: values.options, questions: [question, values.question].filter(Boolean) };
    }
    scene = opened;
    return { name: scene.name, width: scene.width, height: scene.height, bands: scene.describeBands(), dtype: scene.dtype,
      side: side && side * scene.factor, factor: scene.factor, choice };
  },

  async run({ bands, values, rescale }) {
    if (!scene) throw new Problem("No scene is open; drop one first.");
    const used = bands.filter((band) => band !== null);
    if (new Set(used).size < used.length) throw new Problem("Two of the model's bands are the same band of the scene; choose another.");
    rescale = rescale === undefined ? await scene.rescaleBy(values, bands) : rescale;
    session ??= await openSession();
    return label(bands, rescale);
  },

  async tif() { return need().tif(); },
  async xml() { return need().sidecar(); },
  async csv() { return need().csv(); },
  async geojson() { return polygons(need()); },
};

onmessage = async ({ data: { id, action, ...about } }) => {
  try {
    if (action === "start") {
      ({ config, threads, gpu: wantsGpu } = about);
      return;
    }
    postMessage({ id, result: await actions[action](about) });
  } catch (error) {
    postMessage({ id, error: sentence(error) });
  }
};

function sentence(error) {
  if (error instanceof Problem) return error.message;
  const text = error?.message ?? String(error);
  if (error instanceof RangeError || /memory|allocat/i.test(text)) {
    return "There is not enough memory on this device for this model; close other pages, or use another device.";
  }
  return `Something went wrong that was not foreseen: ${text.slice(0, 300)}`;
}

function need() {
  if (!map) throw new Problem("There is no map yet.");
  return map;
}

async function openSession() {
  postMessage({ status: "Loading the model …" });
  if (wantsGpu) {
    try {
      gpuSession = await openEngine("webgpu", "ort.webgpu.min.mjs", "model-float.onnx");
    } catch {
      gpu = "The graphics card cannot run this model.";
    }
  }
  return openEngine("wasm", "ort.wasm.min.mjs", "model.onnx");
}

// Each engine is a library of its own, so that a graphics card is compared with what would run without it.
async function openEngine(provider, library, file) {
  const ort = await import(`./vendor/${library}`);
  ort.env.wasm.wasmPaths = new URL("vendor/", import.meta.url).href;
  ort.env.wasm.numThreads = threads;
  ort.env.logLevel = "fatal";
  const model = new Uint8Array(await (await fetch(new URL(file, import.meta.url))).arrayBuffer());
  const session = await ort.InferenceSession.create(model, {
    executionProviders: [provider], graphOptimizationLevel: "all", enableMemPattern: false, logSeverityLevel: 4,
  });
  const { dtype, bands } = config.card;
  return async (input, height, width) => {
    const [kind, values] = provider === "webgpu" ? ["float32", Float32Array.from(input)] : [dtype, input];
    const image = new ort.Tensor(kind, values, [1, bands.length, height, width]);
    const { labels } = await session.run({ image }, ["labels"]);
    return labels.data;
  };
}

// Labels of a tile. A graphics card must give those of WebAssembly on the first tile, and faster, or it is left alone.
async function inferProven(input, height, width) {
  if (!gpuSession) return session(input, height, width);
  try {
    if (gpu) return await gpuSession(input, height, width);
    await gpuSession(input, height, width);  // compiles
    const start = performance.now(), tried = await gpuSession(input, height, width);
    const middle = performance.now(), labels = await session(input, height, width);
    const times = (performance.now() - middle) / (middle - start);
    const differing = labels.reduce((sum, label, pixel) => sum + (label !== tried[pixel]), 0);
    gpu = `On the first tile the graphics card was ${times.toPrecision(2)} times as fast as WebAssembly, and ${differing} of ` +
      `${labels.length} labels differed${times > 1 && differing <= MOST_DIFFERING * labels.length ? "" : ": it is not used"}.`;
    if (gpu.endsWith("not used.")) gpuSession = undefined;
    return labels;
  } catch {
    [gpu, gpuSession] = ["The graphics card failed: it is not used.", undefined];
    return session(input, height, width);
  }
}

// The side of a tile: larger ones waste less on their halos, and take more memory.
function tileSide() {
  const { halo, stride, memory_per_pixel: bytes } = config.card;
  const most = (navigator.deviceMemory ?? 4) >= 4 ? 4e8 : 1.2e8;
  let side = 1024;
  while (side > 128 && (side + 2 * halo + 2 * (stride - 1)) ** 2 * bytes > most) side /= 2;
  return side;
}

// As iic_geotools.tiling: cores cover the scene once; what is read reaches `halo` further and starts at a stride.
function* tiles(side) {
  const { halo, stride } = config.card;
  const span = (start, stop, limit) => [
    Math.floor(Math.max(0, start - halo) / stride) * stride,
    Math.min(Math.ceil((stop + halo) / stride) * stride, limit),
  ];
  for (let row = 0; row < scene.height; row += side) {
    for (let col = 0; col < scene.width; col += side) {
      const width = Math.min(side, scene.width - col), height = Math.min(side, scene.height - row);
      const [left, right] = span(col, col + width, scene.width), [top, bottom] = span(row, row + height, scene.height);
      yield {
        core: { col, row, width, height },
        read: { col: left, row: top, width: right - left, height: bottom - top },
      };
    }
  }
}

async function label(bands, rescale) {
  const side = tileSide(), used = bands.filter((band) => band !== null);
  const picture = await new Picture(used).prepare();
  const result = new MapFile(scene, config, side);
  const begin = performance.now();
  let done = 0, inference = 0, lastRow = 0;
  postMessage({ picture: { width: picture.width, height: picture.height, step: picture.step } });
  scene.keepBlocks((side + 2 * config.card.halo) * scene.factor);
  for (const { core, read } of tiles(side)) {
    if (core.row !== lastRow) scene.dropBlocks(read.row * scene.factor);
    lastRow = core.row;
    const pixels = await scene.read(used, read);
    const labels = new Uint8Array(core.width * core.height).fill(NODATA);
    if (!pixels.valid || pixels.valid.includes(1)) {
      const input = modelInput(pixels, bands, rescale, config.card);
      const before = performance.now();
      const output = await inferProven(input, read.height, read.width);
      inference += performance.now() - before;
      crop(output, pixels.valid, read, core, labels);
    }
    await result.add(core, labels);
    done += core.width * core.height;
    const shown = picture.part(core, read, pixels, labels);
    postMessage({ part: shown, done: done / (scene.width * scene.height) }, [shown.rgba.buffer, shown.labels.buffer]);
  }
  scene.dropBlocks(Infinity);
  map = result;
  const seconds = (performance.now() - begin) / 1000;
  return { areas: result.areas(), seconds, inference: inference / 1000, pixels: scene.width * scene.height, tile: side,
    threads, gpu, engine: gpuSession ? "webgpu" : "wasm" };
}

function crop(labels, valid, read, core, result) {
  for (let row = 0; row < core.height; row++) {
    const from = (core.row - read.row + row) * read.width + core.col - read.col, to = row * core.width;
    for (let col = 0; col < core.width; col++) {
      if (valid && !valid[from + col]) continue;
      const value = labels[from + col];
      if (value >= config.card.classes.length) throw new Problem(`The model returned the label ${value}, which its card does not name.`);
      result[to + col] = value;
    }
  }
}

// How many pixels of each side are averaged, so that they are as large as the model knows them.
function coarsening(side) {
  const [low] = config.card.gsd_range ?? [config.card.gsd ?? 0];
  return side ? Math.max(1, Math.ceil((low * 0.95) / side)) : 1;
}

// The side of a pixel in metres, if it is known.
function pixelSide(scene) {
  const area = new MapFile(scene, config, 1).pixelArea(scene.height / 2);
  return area ? Math.sqrt(area) : null;
}

// What is shown: every so many pixels of scene and map.
class Picture {
  constructor(used) {
    this.used = used;
    this.step = Math.max(1, Math.ceil(Math.max(scene.width, scene.height) / PICTURE));
    this.width = Math.ceil(scene.width / this.step);
    this.height = Math.ceil(scene.height / this.step);
  }

  async prepare() {
    const bytes = scene.dtype === "uint8";
    this.ranges = bytes ? this.used.map(() => [0, 255]) : robustRanges(await scene.sample(this.used, true));
    return this;
  }

  part(core, read, { values, valid }, labels) {
    const { step } = this, first = (start) => Math.ceil(start / step);
    const left = first(core.col), top = first(core.row);
    const width = first(core.col + core.width) - left, height = first(core.row + core.height) - top;
    const rgba = new Uint8ClampedArray(4 * width * height), shown = new Uint8Array(width * height);
    const colours = values.length < 3 ? [0, 0, 0] : [0, 1, 2];
    for (let y = 0; y < height; y++) {
      const row = (top + y) * step;
      for (let x = 0; x < width; x++) {
        const col = (left + x) * step, at = y * width + x;
        const from = (row - read.row) * read.width + col - read.col;
        shown[at] = labels[(row - core.row) * core.width + col - core.col];
        colours.forEach((band, channel) => {
          const [low, high] = this.ranges[band];
          rgba[4 * at + channel] = (255 * (values[band][from] - low)) / (high - low);
        });
        rgba[4 * at + 3] = valid && !valid[from] ? 0 : 255;
      }
    }
    return { col: left, row: top, width, height, rgba, labels: shown };
  }
}
