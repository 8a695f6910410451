// A GeoTIFF as a model's input: which of its bands, from which values, and where it holds data.
// The rules are those of iic_runtime.raster.model_input in plain cases; in all others the page asks.

import "./vendor/geotiff.js";

const GEO_TAGS = [33550, 33922, 34264, 34735, 34736, 34737];
const TYPES = { uint8: Uint8Array, uint16: Uint16Array, int16: Int16Array, float32: Float32Array };
const LIMITS = { uint8: [0, 255], uint16: [0, 65535], int16: [-32768, 32767] };
const LARGEST_BLOCK = 1 << 28;  // bytes of a block of the file, which is decoded as a whole
const LARGEST_CACHE = 1 << 27;  // bytes of decoded blocks that are kept for the next tile
const AT_ONCE = 1 << 22;  // pixels that are read at once to be averaged
const WINDOW = 256, WINDOWS_PER_SIDE = 8, MOST_WINDOWS_PER_SIDE = 256, FEWEST_VALUES = 1 << 16, MOST_PIXELS = 1 << 18;
const BRIGHT = 235;  // the 8-bit value of the 99th percentile of values of other types
const RGB = 2, PALETTE = 3, YCBCR = 6, JPEG = 7;

// What is wrong, in a sentence for the user.
export class Problem extends Error {}

// How values become reflectance: value x scale + offset.
const REFLECTANCES = [
  ["x10000", "reflectance × 10000", 1e-4, 0],
  ["sentinel2", "Sentinel-2 since 2022 (reflectance × 10000 + 1000)", 1e-4, -0.1],
  ["landsat", "Landsat Collection 2, surface reflectance", 2.75e-5, -0.2],
  ["one", "reflectance, 0 to 1", 1, 0],
];

export async function openScene(file, card) {
  let tiff;
  try {
    tiff = await GeoTIFF.fromBlob(file);
    const images = [await tiff.getImage(0)];
    const count = Math.min(await tiff.getImageCount(), 64);
    while (images.length < count) images.push(await tiff.getImage(images.length));
    return await Scene.of(file, images, card);
  } catch (error) {
    if (error instanceof Problem) throw error;
    throw new Problem(`${file.name || "The file"} cannot be read as a GeoTIFF (${error.message}); convert it first, ` +
      "e.g. with gdal_translate -of COG.");
  }
}

export class Scene {
  static async of({ name, size }, [image, ...others], card) {
    const scene = new Scene();
    const tags = image.getFileDirectory();
    const value = (tag) => tags.hasTag(tag) ? tags.loadValue(tag) : undefined;
    Object.assign(scene, { name, image, card, fineWidth: image.getWidth(), fineHeight: image.getHeight() });
    scene.coarsen(1);
    scene.count = image.getSamplesPerPixel();
    scene.dtype = dataType(image);
    scene.photometric = await value("PhotometricInterpretation");
    if (scene.photometric === PALETTE) {
      throw new Problem(`${name} is a paletted image; expand it first, e.g. with gdal_translate -expand rgb.`);
    }
    await checkBlocks(image, name, size);
    const isJpeg = image.fileDirectory.getValue("Compression") === JPEG;
    if (isJpeg && scene.count === 3 && scene.photometric === RGB && image.planarConfiguration === 1 && isCanvasExact()) {
      GeoTIFF.addDecoder(JPEG, async () => BrowserJpeg, async () => ({ tables: await value("JPEGTables") }));
    }
    const extra = [...(await value("ExtraSamples") ?? [])];
    scene.alpha = scene.count > 1 && [1, 2].includes(extra.at(-1)) ? scene.count - 1 : null;
    const nodata = image.getGDALNoData();
    scene.nodata = nodata === null || Number.isNaN(nodata) ? null : nodata;
    scene.mask = null;
    for (const other of others) {
      const kind = other.getFileDirectory().getValue("NewSubfileType") ?? 0;
      if ((kind & 5) === 4 && other.getWidth() === scene.fineWidth && other.getHeight() === scene.fineHeight) scene.mask = other;
    }
    scene.metadata = [];
    for (let band = 0; band < scene.count; band++) scene.metadata.push(await image.getGDALMetadata(band) ?? {});
    scene.tags = await image.getGDALMetadata() ?? {};
    scene.geo = {};
    for (const tag of GEO_TAGS) if (tags.hasTag(tag)) scene.geo[tag] = await tags.loadValue(tag);
    scene.keys = image.getGeoKeys() ?? {};
    return scene;
  }

  // Average so many pixels of each side into one from now on.
  coarsen(factor) {
    this.factor = factor;
    this.width = Math.ceil(this.fineWidth / factor);
    this.height = Math.ceil(this.fineHeight / factor);
  }

  // Column and row to the coordinates of the scene's CRS: [a, b, c, d, e, f] as affine has them; null without any.
  get transform() {
    const fine = this.fineTransform;
    return fine && fine.map((value, index) => index % 3 === 2 ? value : value * this.factor);
  }

  // The tags that place the pixels.
  get placeTags() {
    if (this.factor === 1 || !this.transform) return this.geo;
    const { 33550: scale, 33922: tie, ...others } = this.geo;
    const [a, b, c, d, e, f] = this.transform, half = this.keys.GTRasterTypeGeoKey === 2 ? 0.5 : 0;
    return { ...others, 34264: [a, b, 0, c + half * (a + b), d, e, 0, f + half * (d + e), 0, 0, 0, 0, 0, 0, 0, 1] };
  }

  get fineTransform() {
    const matrix = this.geo[34264], scale = this.geo[33550], tie = this.geo[33922];
    let [a, b, c, d, e, f] = [1, 0, 0, 0, 1, 0];
    if (matrix) [a, b, , c, d, e, , f] = matrix;
    else if (scale && tie) [a, c, e, f] = [scale[0], tie[3] - tie[0] * scale[0], -scale[1], tie[4] + tie[1] * scale[1]];
    else return null;
    if (this.keys.GTRasterTypeGeoKey === 2) [c, f] = [c - a / 2 - b / 2, f - d / 2 - e / 2];  // pixel is point
    return [a, b, c, d, e, f];
  }

  describeBands() {
    return this.metadata.map((items, band) => {
      const text = items.DESCRIPTION || (band === this.alpha ? "alpha" : this.colour(band) ?? "");
      return text ? `${band + 1} ${text}` : `${band + 1}`;
    });
  }

  colour(band) {
    return this.photometric === RGB || this.photometric === YCBCR ? ["red", "green", "blue"][band] : undefined;
  }

  // The scene's bands, counted from 0, for those of the model; null for one that it lacks. `question` says what is asked.
  async chooseBands(words) {
    const { bands, optional } = this.card;
    // GDAL marks the fourth of four bands as alpha, whatever it is.
    if (this.alpha !== null && (this.metadata[this.alpha].DESCRIPTION || !isMask(await this.sample([this.alpha], false)))) {
      this.alpha = null;
    }
    const named = bands.map((name) => {
      const found = this.metadata.flatMap((items, band) => {
        const text = canonical(items.DESCRIPTION ?? this.colour(band) ?? "");
        return text && words[name].includes(text) ? [band] : [];
      });
      return found.length === 1 ? found[0] : null;
    });
    const lacks = bands.filter((name, index) => named[index] === null && !(name in optional));
    const usable = [...Array(this.count).keys()].filter((band) => band !== this.alpha);
    const loose = usable.filter((band) => !named.includes(band));
    const described = this.metadata.some((items) => items.DESCRIPTION);
    if (!lacks.length && (described || !loose.length || bands.every((_, index) => named[index] !== null))) {
      return { bands: named, question: "" };
    }
    const required = bands.filter((name) => !(name in optional));
    if (usable.length < required.length) {
      throw new Problem(`${this.name} has ${usable.length} band${usable.length === 1 ? "" : "s"}, and the model takes ` +
        `${required.join(", ")}.`);
    }
    let next = 0;
    const guess = usable.length >= bands.length
      ? bands.map((_, index) => usable[index])
      : bands.map((name) => name in optional ? null : usable[next++]);
    return { bands: guess, question: `Which bands are ${bands.join(", ")}?` };
  }

  // Ways in which the values may become the model's, and which of them the scene suggests.
  async chooseValues(bands) {
    const { card } = this;
    const used = bands.filter((band) => band !== null);
    if (card.values === "reflectance") return this.chooseReflectance(used);
    const same = this.dtype === card.dtype;
    const options = [];
    if (same || card.dtype === "float32") options.push(["same", "as they are"]);
    if (card.dtype === "uint8" && !same) options.push(["bright", "the brightest become white, 0 stays black"]);
    options.push(["auto", "each band from its 2nd to its 98th percentile"]);
    return { options, chosen: card.rescale === "auto" ? "auto" : options[0][0], question: "" };
  }

  async chooseReflectance(used) {
    const options = REFLECTANCES.map(([key, text]) => [key, text]);
    const scales = used.map((band) => this.declared(band));
    if (scales.every(Boolean)) options.unshift(["declared", "as the file says"]);
    if (this.card.stretch) options.push(["stretch", "unknown: each band from its 2nd to its 98th percentile"]);
    const select = (chosen, question = "") => ({ options, chosen, question });
    if (this.dtype === "uint8" && this.card.stretch) return select("stretch");
    const ranges = robustRanges(await this.sample(used, true));
    const low = Math.min(...ranges.map(([end]) => end)), high = Math.max(...ranges.map(([, end]) => end));
    const fits = (scale, offset) => low * scale + offset >= -0.06 && high * scale + offset >= 0.002 &&
      high * scale + offset <= 2;
    if (scales.every(Boolean)) {
      const ends = ranges.flatMap((range, index) => range.map((end) => end * scales[index][0] + scales[index][1]));
      if (Math.min(...ends) >= -0.06 && Math.max(...ends) <= 2) return select("declared");
    }
    const product = /S2[A-D]_MSIL(?:1C|2A)_\d{8}T\d{6}_N(\d\d)/.exec(this.name);
    if (product) return select(Number(product[1]) >= 4 ? "sentinel2" : "x10000");
    if (/L[CETO]0[4-9]_L2S[PR]_/.test(this.name)) return select("landsat");
    if (this.dtype.startsWith("float") && fits(1, 0)) return select("one");
    const likely = REFLECTANCES.slice(0, 3).filter(([, , scale, offset]) => fits(scale, offset));
    const guess = low >= 5000 ? "landsat" : likely.length ? "x10000" : this.card.stretch ? "stretch" : "x10000";
    return select(guess, `What do the values mean? They reach from ${round(low)} to ${round(high)}.`);
  }

  // Scale and offset of a band, if the file declares them.
  declared(band) {
    const items = { ...this.tags, ...this.metadata[band] };
    const scale = Number(items.SCALE ?? items.scale_factor), offset = Number(items.OFFSET ?? items.add_offset ?? 0);
    return scale > 0 && Number.isFinite(offset) && (scale !== 1 || offset !== 0) ? [scale, offset] : null;
  }

  // One linear function per band that is read, as iic_geotools.scene.rescaling has it; null if values stay as they are.
  async rescaleBy(key, bands) {
    const { card } = this;
    const used = bands.filter((band) => band !== null);
    const targets = card.offset.map((low, index) => [low, low + 1 / card.scale[index]])
      .filter((_, index) => bands[index] !== null);
    if (key === "same") return null;
    if (key === "bright") {
      const white = brightest(await this.sample(used, false), this.dtype);
      return { sources: used.map(() => [0, white[0]]), targets: used.map(() => [0, white[1]]) };
    }
    if (key === "auto") return { sources: robustRanges(await this.sample(used, false)), targets };
    if (key === "stretch") {
      return { sources: robustRanges(await this.sample(used, true)), targets: used.map(() => card.stretch) };
    }
    const fixed = REFLECTANCES.find(([name]) => name === key);
    const sources = used.map((band) => {
      const [scale, offset] = key === "declared" ? this.declared(band) : fixed.slice(2);
      return [-offset / scale, (1 - offset) / scale];
    });
    const same = sources.flat().every((end, index) => Math.abs(end - targets.flat()[index]) <= 1e-9 * (1 + Math.abs(end)));
    return same && this.dtype === card.dtype ? null : { sources, targets };
  }

  // Values of some bands in a window, one array per band, and where they hold data: 1 or 0 per pixel, null if all do.
  async read(used, window) {
    const { factor } = this;
    if (factor === 1) return this.readFine(used, window);
    const { col, row, width, height } = window;
    const values = used.map(() => new (TYPES[this.dtype] ?? Float64Array)(width * height));
    const valid = new Uint8Array(width * height);
    const rows = Math.max(1, Math.floor(AT_ONCE / (width * factor ** 2)));
    for (let top = 0; top < height; top += rows) {
      const left = col * factor, above = (row + top) * factor, high = Math.min(rows, height - top);
      const fine = { col: left, row: above, width: Math.min(width * factor, this.fineWidth - left),
        height: Math.min(high * factor, this.fineHeight - above) };
      const part = await this.readFine(used, fine);
      values.forEach((plane, index) => average(part.values[index], part.valid, fine, factor, plane, valid, width, top));
    }
    return { values, valid: valid.includes(0) ? valid : null };
  }

  // The same at the scene's own resolution.
  async readFine(used, window) {
    try {
      return await this.readWindow(used, window);
    } catch (error) {
      if (error instanceof RangeError) throw error;
      throw new Problem(`Rows ${window.row} to ${window.row + window.height - 1} of ${this.name} cannot be decoded: check that ` +
        "the file is whole, or convert it, e.g. with gdal_translate -of COG.");
    }
  }

  async readWindow(used, { col, row, width, height }) {
    const window = [col, row, col + width, row + height];
    const { image } = this, masks = this.alpha !== null && !used.includes(this.alpha);
    let values;
    if (this.photometric === YCBCR) {
      const colours = await image.readRGB({ window, interleave: false });
      values = used.map((band) => colours[band]);
    } else {
      const samples = masks ? [...used, this.alpha] : [...used];
      values = await image.readRasters({ window, samples, interleave: false });
    }
    const valid = new Uint8Array(width * height).fill(1);
    if (this.nodata !== null) {
      const value = this.nodata;
      for (let pixel = 0; pixel < valid.length; pixel++) {
        let is = true;
        for (let index = 0; is && index < used.length; index++) is = values[index][pixel] === value;
        if (is) valid[pixel] = 0;
      }
    }
    if (this.dtype.startsWith("float")) {
      for (const plane of used.map((_, index) => values[index])) {
        for (let pixel = 0; pixel < valid.length; pixel++) if (!Number.isFinite(plane[pixel])) valid[pixel] = 0;
      }
    }
    if (this.photometric !== YCBCR && masks) exclude(valid, values[used.length]);
    if (this.mask) exclude(valid, (await this.mask.readRasters({ window, samples: [0], interleave: false }))[0]);
    return { values: used.map((_, index) => values[index]), valid: valid.includes(0) ? valid : null };
  }

  // Decoded blocks are kept while the tiles of a row need them: halos overlap, and strips reach over many tiles.
  keepBlocks(tile) {
    for (const image of [this.image, this.mask]) {
      if (!image) continue;
      const bytes = this.fineWidth * (tile + image.getTileHeight()) * image.getBytesPerPixel();
      image.tiles = bytes <= LARGEST_CACHE ? [] : null;
    }
  }

  dropBlocks(row) {
    for (const image of [this.image, this.mask]) {
      if (!image?.tiles) continue;
      const across = Math.ceil(this.fineWidth / image.getTileWidth());
      const rows = Math.ceil(this.fineHeight / image.getTileHeight());
      for (const index of Object.keys(image.tiles)) {
        const block = Math.floor(index / across) % rows;
        if ((block + 1) * image.getTileHeight() <= row) delete image.tiles[index];
      }
    }
  }

  // Values of pixels with data in windows spread over the scene, one array per band.
  async sample(used, skipEmpty) {
    const most = Math.min(MOST_WINDOWS_PER_SIDE, Math.ceil(Math.max(this.fineWidth, this.fineHeight) / WINDOW));
    for (let side = WINDOWS_PER_SIDE; ; side *= 2) {
      const values = await this.sampleWindows(used, skipEmpty, side);
      if (values[0].length * used.length >= FEWEST_VALUES || side >= most) return values;
    }
  }

  async sampleWindows(used, skipEmpty, side) {
    let pieces = [], step = 1, total = 0;
    this.keepBlocks(WINDOW);
    for (const row of starts(this.fineHeight, side)) {
      this.dropBlocks(row);
      for (const col of starts(this.fineWidth, side)) {
        const width = Math.min(WINDOW, this.fineWidth - col), height = Math.min(WINDOW, this.fineHeight - row);
        const { values, valid } = await this.readFine(used, { col, row, width, height });
        let seen = 0;
        const kept = [];
        for (let pixel = 0; pixel < width * height; pixel++) {
          if (valid && !valid[pixel]) continue;
          if (skipEmpty && values.every((plane) => plane[pixel] === 0)) continue;
          if (seen++ % step === 0) kept.push(pixel);
        }
        pieces.push(values.map((plane) => plane.constructor.from(kept, (pixel) => plane[pixel])));
        total += kept.length;
        while (total > MOST_PIXELS) {
          step *= 2;
          pieces = pieces.map((piece) => piece.map((plane) => plane.filter((_, index) => index % 2 === 0)));
          total = pieces.reduce((sum, [plane]) => sum + plane.length, 0);
        }
      }
    }
    this.dropBlocks(Infinity);
    return used.map((_, band) => {
      const all = new (pieces[0][band].constructor)(total);
      let at = 0;
      for (const piece of pieces) {
        all.set(piece[band], at);
        at += piece[band].length;
      }
      return all;
    });
  }
}

// JPEG of RGB as the browser decodes it, with the library that GDAL has: geotiff.js rounds otherwise. Not of
// YCbCr, whose reduced colours browsers smooth and GDAL does not.
class BrowserJpeg {
  constructor({ tables }) {
    const start = [0xff, 0xd8], end = 2;  // the markers of start and end
    // With Adobe's marker for colours that are not transformed.
    this.head = [...start, 0xff, 0xee, 0, 14, 65, 100, 111, 98, 101, 0, 100, 0, 0, 0, 0, 0,
      ...(tables ? [...tables].slice(start.length, -end) : [])];
  }

  async decode(block) {
    const blob = new Blob([new Uint8Array(this.head), new Uint8Array(block).subarray(2)], { type: "image/jpeg" });
    const bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
    const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d", { willReadFrequently: true });
    context.drawImage(bitmap, 0, 0);
    const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
    const colours = new Uint8Array((3 * data.length) / 4);
    for (let from = 0, to = 0; from < data.length; from += 4) {
      colours[to++] = data[from];
      colours[to++] = data[from + 1];
      colours[to++] = data[from + 2];
    }
    bitmap.close();
    return colours.buffer;
  }
}

// Whether canvases give back what was drawn: some browsers change it, so that nobody is recognised by it.
function isCanvasExact() {
  if (!("OffscreenCanvas" in self)) return false;
  const side = 64, context = new OffscreenCanvas(side, side).getContext("2d", { willReadFrequently: true });
  const image = new ImageData(side, side);
  image.data.forEach((_, index) => {
    image.data[index] = index % 4 === 3 ? 255 : (index * 7919) % 256;
  });
  context.putImageData(image, 0, 0);
  return context.getImageData(0, 0, side, side).data.every((value, index) => value === image.data[index]);
}

// The model's input [bands, height, width] from what was read.
export function modelInput({ values, valid }, bands, rescale, card) {
  const pixels = values[0].length;
  const input = new TYPES[card.dtype](bands.length * pixels);
  let next = 0;
  bands.forEach((band, position) => {
    const plane = input.subarray(position * pixels, (position + 1) * pixels);
    const missing = card.optional[card.bands[position]];
    if (band === null) {
      plane.fill(missing);
      return;
    }
    const source = values[next];
    if (rescale) applyRescale(source, plane, rescale.sources[next], rescale.targets[next], LIMITS[card.dtype]);
    else plane.set(source);
    next += 1;
    // The value that says "missing" is kept apart from data.
    if (missing !== undefined) {
      const near = nextInside(missing, LIMITS[card.dtype]);
      for (let pixel = 0; pixel < pixels; pixel++) if (plane[pixel] === missing) plane[pixel] = near;
    }
    if (valid) {
      const fill = within(card.offset[position], LIMITS[card.dtype]);
      for (let pixel = 0; pixel < pixels; pixel++) if (!valid[pixel]) plane[pixel] = fill;
    }
  });
  return input;
}

// In single precision, step by step, as NumPy computes it: labels must not depend on where they are computed.
function applyRescale(source, result, [low, high], [start, end], limits) {
  const f = Math.fround;
  const span = f(Math.max(high - low, 1.1754943508222875e-38));
  const from = f(low), first = f(start), length = f(f(end) - first);
  for (let pixel = 0; pixel < source.length; pixel++) {
    const value = f(f(f(f(f(source[pixel]) - from) / span) * length) + first);
    result[pixel] = limits ? within(roundHalfEven(value), limits) : value;
  }
}

function roundHalfEven(value) {
  const floor = Math.floor(value), rest = value - floor;
  if (rest !== 0.5) return rest < 0.5 ? floor : floor + 1;
  return floor % 2 === 0 ? floor : floor + 1;
}

function within(value, limits) {
  return limits ? Math.min(Math.max(value, limits[0]), limits[1]) : value;
}

function nextInside(value, limits) {
  if (limits) return value <= (limits[0] + limits[1]) / 2 ? value + 1 : value - 1;
  const bits = new Int32Array(1), number = new Float32Array(bits.buffer);
  number[0] = value;
  if (value === 0) bits[0] = 1;
  else bits[0] -= 1;  // towards 0; for values below it that is upwards
  return number[0];
}

// The 2nd and the 98th percentile of each band, values that occur.
export function robustRanges(values) {
  return values.map((plane) => {
    if (!plane.length) return [0, 1];
    const sorted = plane.slice().sort();
    const [low, high] = [0.02, 0.98].map((share) => percentile(sorted, share));
    return [low, low < high ? high : low + 1];
  });
}

function percentile(sorted, share) {
  return sorted[Math.max(0, Math.ceil(sorted.length * share - 1))];
}

// The value that becomes white, and the 8-bit value that it becomes.
function brightest(values, dtype) {
  const all = Float64Array.from(values.flatMap((plane) => [...plane])).sort();
  if (!all.length) return [1, BRIGHT];
  const highest = all.at(-1), whole = all.every((value) => Number.isInteger(value));
  if (all[0] >= 0) {
    if (dtype.startsWith("float") && highest <= 1) {
      if (all.every((value) => Math.abs(value * 255 - Math.round(value * 255)) <= 0.01)) return [1, 255];
    } else if (whole && highest > 1 && highest <= 255) {
      return [255, 255];
    } else if (whole && highest <= 65535 && all.every((value) => value % 257 === 0)) {
      return [65535, 255];
    }
  }
  const bright = percentile(all, 0.99);
  return [bright > 0 ? bright : 1, BRIGHT];
}

// The mean of the valid ones of `factor` x `factor` pixels, from row `top` of the result.
function average(plane, known, { width, height }, factor, result, valid, across, top) {
  const whole = !(result instanceof Float32Array || result instanceof Float64Array);
  for (let y = 0; y < Math.ceil(height / factor); y++) {
    for (let x = 0; x < Math.ceil(width / factor); x++) {
      let sum = 0, count = 0;
      for (let row = y * factor; row < Math.min((y + 1) * factor, height); row++) {
        for (let col = x * factor; col < Math.min((x + 1) * factor, width); col++) {
          const at = row * width + col;
          if (known && !known[at]) continue;
          sum += plane[at];
          count += 1;
        }
      }
      const at = (top + y) * across + x;
      if (!count) continue;
      valid[at] = 1;
      result[at] = whole ? Math.round(sum / count) : sum / count;
    }
  }
}

// Whether a band has almost no other values than its smallest and largest, as an alpha band has.
function isMask([values]) {
  let [low, high] = [Infinity, -Infinity], ends = 0;
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  for (const value of values) ends += value === low || value === high;
  return ends >= 0.95 * values.length;
}

function starts(length, count) {
  const whole = Math.ceil(length / WINDOW);
  if (whole <= count) return [...Array(whole).keys()].map((index) => index * WINDOW);
  return [...Array(count).keys()].map((index) => roundHalfEven((index * (length - WINDOW)) / (count - 1)));
}

function exclude(valid, mask) {
  for (let pixel = 0; pixel < valid.length; pixel++) if (mask[pixel] === 0) valid[pixel] = 0;
}

function canonical(text) {
  return text.toLowerCase().replace(/[^a-zà-ÿ0-9]/g, "").replace(/^band(?=[a-z])|(?<=[a-z])band$/g, "");
}

function dataType(image) {
  const count = image.getSamplesPerPixel();
  const types = new Set([...Array(count).keys()].map((band) => {
    const bits = image.getBitsPerSample(band) || 1;
    return `${["", "uint", "int", "float"][image.getSampleFormat(band)] ?? "complex"}${bits}`;
  }));
  const [type] = types;
  if (types.size > 1 || !/^(uint(8|16|32)|int(8|16|32)|float(16|32|64))$/.test(type)) {
    throw new Problem(`The bands are ${[...types].join(" and ")}, which this page does not read; convert the file, e.g. ` +
      "with gdal_translate -ot UInt16.");
  }
  return type;
}

async function checkBlocks(image, name, size) {
  const bytes = image.getTileWidth() * image.getTileHeight() * image.getBytesPerPixel();
  if (bytes > LARGEST_BLOCK) {
    throw new Problem(`${name} is stored in blocks of ${Math.round(bytes / 1e6)} MB, which would have to be in memory as a ` +
      "whole; store it in tiles, e.g. with gdal_translate -of COG.");
  }
  if (!image.littleEndian) {  // geotiff.js 3.0.5 undoes predictors in the wrong order of bytes, without a word
    throw new Problem(`${name} is stored with the largest byte first; convert it, e.g. with gdal_translate -co ENDIANNESS=LITTLE.`);
  }
  const tags = image.getFileDirectory(), kind = image.isTiled ? "Tile" : "Strip";
  const [offsets, counts] = [await tags.loadValue(`${kind}Offsets`), await tags.loadValue(`${kind}ByteCounts`)];
  if (offsets.some((offset, index) => Number(offset) + Number(counts[index]) > size)) {
    throw new Problem(`${name} is cut off: it has ${size} bytes, and its pixels reach beyond them; copy it again.`);
  }
}

function round(value) {
  return Number(value.toPrecision(3));
}
