// A map as files: GeoTIFF with its classes, areas, polygons.

import { Problem } from "./scene.js";

const NODATA = 255;
const MOST_TRACED = 1e8;  // pixels of a map that is traced in memory
const MOST_CORNERS = 4e6;
// WGS 84, of which GRS 80 differs by less than a millimetre.
const A = 6378137, F = 1 / 298.257223563, E2 = F * (2 - F), E = Math.sqrt(E2);

// A map that grows tile by tile. Tiles are kept compressed, as they are in the file.
export class MapFile {
  constructor(scene, config, side) {
    Object.assign(this, { scene, config, side, card: config.card });
    this.across = Math.ceil(scene.width / side);
    this.down = Math.ceil(scene.height / side);
    this.tiles = [];
    this.pixels = new Float64Array(256);
    this.squareMetres = new Float64Array(256);
  }

  async add({ col, row, width, height }, labels) {
    const padded = new Uint8Array(this.side * this.side).fill(NODATA);
    const counts = new Float64Array(256);
    for (let y = 0; y < height; y++) {
      const line = labels.subarray(y * width, (y + 1) * width);
      padded.set(line, y * this.side);
      const area = this.pixelArea(row + y);
      counts.fill(0);
      for (const value of line) counts[value] += 1;
      for (let value = 0; value < 256; value++) {
        this.pixels[value] += counts[value];
        this.squareMetres[value] += counts[value] * area;
      }
    }
    const stream = new Blob([padded]).stream().pipeThrough(new CompressionStream("deflate"));
    this.tiles[(row / this.side) * this.across + col / this.side] = await new Response(stream).blob();
  }

  // Square metres of a pixel of a row; 0 without a reference system.
  pixelArea(row) {
    const { keys, transform } = this.scene;
    if (!transform || !keys.GTModelTypeGeoKey) return 0;
    const [, , , d, e, f] = transform;
    const area = Math.abs(transform[0] * e - transform[1] * d);
    if (keys.GTModelTypeGeoKey === 2 || keys.ProjectedCSTypeGeoKey === 3857) {
      const mercator = keys.GTModelTypeGeoKey !== 2;
      const latitude = (y) => mercator ? Math.atan(Math.sinh(y / A)) : (y * Math.PI) / 180;
      const longitude = mercator ? transform[0] / A : (transform[0] * Math.PI) / 180;
      const [top, bottom] = [row, row + 1].map((at) => zone(latitude(f + e * at)));
      return Math.abs(longitude * (top - bottom));
    }
    const metres = { 9002: 0.3048, 9003: 1200 / 3937 }[keys.ProjLinearUnitsGeoKey] ?? keys.ProjLinearUnitSizeGeoKey ?? 1;
    return area * metres ** 2;
  }

  areas() {
    const known = this.pixelArea(0) > 0, amounts = known ? this.squareMetres : this.pixels;
    const total = amounts.subarray(0, NODATA).reduce((sum, amount) => sum + amount, 0);
    return this.card.classes.map(({ name, colour }, value) => ({
      value, name, colour, pixels: this.pixels[value], m2: known ? this.squareMetres[value] : null,
      share: total ? amounts[value] / total : 0,
    }));
  }

  csv() {
    const quote = (text) => `"${text.replace(/"/g, '""').replace(/^(?=[=+\-@])/, "'")}"`;
    const rows = this.areas().map((area) =>
      [area.value, quote(area.name), area.pixels, area.m2 ?? "", area.m2 === null ? "" : area.m2 / 1e4, area.share].join(","));
    return new Blob(["value,name,pixels,m2,ha,share\n", rows.join("\n"), "\n"], { type: "text/csv" });
  }

  // The file: header and directory, then the tiles as they were compressed.
  tif() {
    const { scene, card, side } = this;
    const colours = new Uint16Array(768);
    card.classes.forEach(({ colour }, value) => rgb(colour).forEach((level, channel) => {
      colours[256 * channel + value] = 257 * level;
    }));
    const counts = [], offsets = [];
    const entries = [
      [256, LONG, [scene.width]], [257, LONG, [scene.height]], [258, SHORT, [8]], [259, SHORT, [8]], [262, SHORT, [3]],
      [277, SHORT, [1]], [284, SHORT, [1]], [305, ASCII, `iic-edge ${this.config.version}`], [320, SHORT, colours],
      [322, SHORT, [side]], [323, SHORT, [side]], [324, LONG, offsets], [325, LONG, counts], [339, SHORT, [1]],
      [42112, ASCII, this.metadata()], [42113, ASCII, String(NODATA)],
      ...Object.entries(scene.placeTags).map(([tag, value]) =>
        [Number(tag), tag === "34735" ? SHORT : tag === "34737" ? ASCII : DOUBLE, value]),
    ].sort(([one], [other]) => one - other);
    for (const tile of this.tiles) counts.push(tile.size);
    let at = layOut(entries, counts.length).length;
    for (const count of counts) {
      offsets.push(at);
      at += count;
    }
    if (at > 0xffffffff) throw new Problem("The map is larger than 4 GB, which a plain TIFF cannot hold; map parts of the scene.");
    return new Blob([layOut(entries, counts.length), ...this.tiles], { type: "image/tiff" });
  }

  metadata() {
    const { card, config, scene } = this;
    const items = {
      IIC_MODEL: card.name, IIC_MODEL_SHA256: config.sha256, IIC_SCENE: scene.name, IIC_ENGINE: "onnxruntime-web",
      ...(card.origin?.labels ? { IIC_LABELS: card.origin.labels } : {}),
      ...Object.fromEntries(card.classes.map(({ name }, value) => [`CLASS_${value}`, name])),
    };
    const lines = Object.entries(items).map(([name, text]) => `<Item name="${xml(name)}">${xml(text)}</Item>`);
    return `<GDALMetadata>${lines.join("")}</GDALMetadata>`;
  }

  // Names of the classes where GDAL and QGIS look for them: in a file next to the map.
  sidecar() {
    const { classes } = this.card;
    const columns = [["Value", 0, 5], ["Class", 2, 2], ["Red", 0, 6], ["Green", 0, 7], ["Blue", 0, 8], ["Alpha", 0, 9]];
    const fields = columns.map(([name, type, usage], index) =>
      `<FieldDefn index="${index}"><Name>${name}</Name><Type>${type}</Type><Usage>${usage}</Usage></FieldDefn>`);
    const rows = classes.map(({ name, colour }, value) => {
      const cells = [value, xml(name), ...rgb(colour), 255].map((cell) => `<F>${cell}</F>`);
      return `<Row index="${value}">${cells.join("")}</Row>`;
    });
    const names = classes.map(({ name }) => `<Category>${xml(name)}</Category>`);
    return new Blob([`<PAMDataset><PAMRasterBand band="1"><CategoryNames>${names.join("")}</CategoryNames>` +
      `<GDALRasterAttributeTable tableType="thematic">${fields.join("")}${rows.join("")}</GDALRasterAttributeTable>` +
      "</PAMRasterBand></PAMDataset>"], { type: "application/xml" });
  }

  // All labels, in rows.
  async labels() {
    const { width, height } = this.scene, { side } = this;
    const labels = new Uint8Array(width * height);
    for (let index = 0; index < this.tiles.length; index++) {
      const stream = this.tiles[index].stream().pipeThrough(new DecompressionStream("deflate"));
      const tile = new Uint8Array(await new Response(stream).arrayBuffer());
      const left = (index % this.across) * side, top = Math.floor(index / this.across) * side;
      const across = Math.min(side, width - left);
      for (let y = 0; y < Math.min(side, height - top); y++) {
        labels.set(tile.subarray(y * side, y * side + across), (top + y) * width + left);
      }
    }
    return labels;
  }
}

const ASCII = 2, SHORT = 3, LONG = 4, DOUBLE = 12;
const SIZES = { [ASCII]: 1, [SHORT]: 2, [LONG]: 4, [DOUBLE]: 8 };

// The head of a TIFF. Offsets that are not known yet take the room of `tiles` numbers.
function layOut(entries, tiles) {
  const encoded = entries.map(([tag, kind, value]) => {
    const values = kind === ASCII ? new TextEncoder().encode(`${String(value).replace(/\0+$/, "")}\0`) : [...value];
    while ((tag === 324 || tag === 325) && values.length < tiles) values.push(0);
    return [tag, kind, values];
  });
  const even = (length) => length + (length & 1);
  const directory = 8 + 2 + 12 * encoded.length + 4;
  const large = encoded.map(([, kind, values]) => SIZES[kind] * values.length).filter((length) => length > 4);
  const head = new DataView(new ArrayBuffer(large.reduce((sum, length) => sum + even(length), directory)));
  const set = (at, kind, value) => {
    if (kind === ASCII) head.setUint8(at, value);
    else if (kind === SHORT) head.setUint16(at, value, true);
    else if (kind === LONG) head.setUint32(at, value, true);
    else head.setFloat64(at, value, true);
  };
  [[0, 0x4949], [2, 42]].forEach(([at, value]) => set(at, SHORT, value));
  set(4, LONG, 8);
  set(8, SHORT, encoded.length);
  let free = directory;
  encoded.forEach(([tag, kind, values], index) => {
    const at = 10 + 12 * index, length = SIZES[kind] * values.length;
    set(at, SHORT, tag);
    set(at + 2, SHORT, kind);
    set(at + 4, LONG, values.length);
    const start = length > 4 ? free : at + 8;
    if (length > 4) {
      set(at + 8, LONG, free);
      free += even(length);
    }
    values.forEach((value, number) => set(start + number * SIZES[kind], kind, value));
  });
  return new Uint8Array(head.buffer);
}

// Each 4-connected region as a polygon in longitude and latitude, as GeoJSON demands.
export async function polygons(map) {
  const { width, height, transform } = map.scene;
  if (width * height > MOST_TRACED) {
    throw new Problem("The map is too large to be traced here; download it as GeoTIFF, and run iic-map polygons on it.");
  }
  const place = toDegrees(map.scene), [a, b, c, d, e, f] = transform;
  const parts = ['{"type":"FeatureCollection","features":[\n'];
  const ring = (corners) => {
    const points = [];
    for (let at = 0; at < corners.length; at += 2) {
      const [x, y] = corners.slice(at, at + 2), [lon, lat] = place(a * x + b * y + c, d * x + e * y + f);
      points.push([Number(lon.toFixed(7)), Number(lat.toFixed(7))]);
    }
    if (a * e - b * d < 0) points.reverse();  // shells run counterclockwise
    return [...points, points[0]];
  };
  let text = "";
  for (const { label, shell, holes } of trace(await map.labels(), width, height)) {
    const { name, colour } = map.card.classes[label];
    text += `${parts.length > 1 || text ? ",\n" : ""}${JSON.stringify({
      type: "Feature", properties: { label, class: name, colour },
      geometry: { type: "Polygon", coordinates: [shell, ...holes].map(ring) },
    })}`;
    if (text.length > 1 << 20) {
      parts.push(text);
      text = "";
    }
  }
  return new Blob([...parts, text, "\n]}\n"], { type: "application/geo+json" });
}

function trace(labels, width, height) {
  const runs = findRuns(labels, width, height);
  const at = (x, y) => x < 0 || y < 0 || x >= width || y >= height ? NODATA : labels[y * width + x];
  const seen = new Uint8Array(Math.ceil((width * height) / 8));  // left edges of pixels
  const regions = new Map();
  let corners = 0;
  for (let row = 0; row < height; row++) {
    for (let run = runs.first[row]; run < runs.first[row + 1]; run++) {
      const col = runs.start[run], edge = row * width + col;
      if (labels[edge] === NODATA || seen[edge >> 3] & (1 << (edge & 7))) continue;
      const { points, isShell } = follow(at, runs, seen, width, col, row);
      corners += points.length / 2;
      if (corners > MOST_CORNERS) {
        throw new Problem("The map has more than 4 million corners, which is noise, not polygons; download it as GeoTIFF, " +
          "and clean it with iic-map clean first.");
      }
      const root = runs.root(run);
      if (!regions.has(root)) regions.set(root, { label: labels[edge], shell: null, holes: [] });
      if (isShell) regions.get(root).shell = points;
      else regions.get(root).holes.push(points);
    }
  }
  return regions.values();
}

// Follow the border of a region, which is on the right, from the left edge of a pixel upwards.
function follow(at, runs, seen, width, col, row) {
  const label = at(col, row), points = [];
  let x = col, y = row + 1, way = 0, twice = 0;
  do {
    if (way === 0) {
      const edge = (y - 1) * width + x;
      seen[edge >> 3] |= 1 << (edge & 7);
    }
    x += [0, 1, 0, -1][way];
    y += [-1, 0, 1, 0][way];
    const [leftX, leftY] = [[x - 1, y - 1], [x, y - 1], [x, y], [x - 1, y]][way];
    const [rightX, rightY] = [[x, y - 1], [x, y], [x - 1, y], [x - 1, y - 1]][way];
    const [ownX, ownY] = [[x, y], [x - 1, y], [x - 1, y - 1], [x, y - 1]][way];
    const left = at(leftX, leftY) === label, right = at(rightX, rightY) === label;
    let turn = right ? (left ? 3 : 0) : 1;
    // Pixels that touch at a corner: a region goes on there only if it is the same one, so that rings never cross.
    if (!right && left && runs.find(leftX, leftY) === runs.find(ownX, ownY)) turn = 3;
    if (turn) points.push(x, y);
    way = (way + turn) % 4;
  } while (x !== col || y !== row + 1 || way !== 0);
  for (let index = 0; index < points.length; index += 2) {
    const next = (index + 2) % points.length;
    twice += points[index] * points[next + 1] - points[next] * points[index + 1];
  }
  return { points, isShell: twice > 0 };
}

// Runs of equal labels in rows, joined to regions across their edges.
function findRuns(labels, width, height) {
  const start = [], first = [], parent = [];
  const root = (run) => {
    while (parent[run] !== run) run = parent[run] = parent[parent[run]];
    return run;
  };
  for (let row = 0; row < height; row++) {
    first.push(start.length);
    let above = row ? first[row - 1] : 0;
    const stop = first[row];
    for (let col = 0; col < width; ) {
      const label = labels[row * width + col], run = start.length;
      start.push(col);
      parent.push(run);
      while (col < width && labels[row * width + col] === label) col += 1;
      for (; row && above < stop && start[above] < col; above++) {
        const end = above + 1 < stop ? start[above + 1] : width;
        if (labels[(row - 1) * width + start[above]] === label && end > start[run]) parent[root(above)] = root(run);
        if (end > col) break;
      }
    }
  }
  first.push(start.length);
  const find = (col, row) => {
    let low = first[row], high = first[row + 1] - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (start[middle] <= col) low = middle;
      else high = middle - 1;
    }
    return root(low);
  };
  return { start, first, root, find };
}

// From the scene's coordinates to longitude and latitude, for the systems whose formulas are here.
function toDegrees({ keys, transform }) {
  const degrees = 180 / Math.PI, code = keys.ProjectedCSTypeGeoKey;
  if (transform && keys.GTModelTypeGeoKey === 2 && [4326, 4258, 4269].includes(keys.GeographicTypeGeoKey)) {
    return (x, y) => [x, y];
  }
  if (transform && code === 3857) return (x, y) => [(x / A) * degrees, Math.atan(Math.sinh(y / A)) * degrees];
  const zones = [[32601, 32660, 0], [32701, 32760, 1e7], [25828, 25838, 0, 28], [26901, 26923, 0]];
  const utm = zones.find(([low, high]) => code >= low && code <= high);
  if (transform && utm) return inverseUtm(code - utm[0] + (utm[3] ?? 1), utm[2]);
  const system = code && code !== 32767 ? `EPSG:${code}` : "reference system";
  throw new Problem(`GeoJSON is in longitude and latitude, and this page does not know the ${transform ? system : "place"} of ` +
    "the scene; download the GeoTIFF, and run iic-map polygons on it.");
}

// The series of Krüger: errors far below a millimetre.
function inverseUtm(number, falseNorthing) {
  const n = F / (2 - F), radius = (A / (1 + n)) * (1 + n ** 2 / 4 + n ** 4 / 64) * 0.9996;
  const beta = [n / 2 - (2 * n ** 2) / 3 + (37 * n ** 3) / 96 - n ** 4 / 360, n ** 2 / 48 + n ** 3 / 15 - (437 * n ** 4) / 1440,
    (17 * n ** 3) / 480 - (37 * n ** 4) / 840, (4397 * n ** 4) / 161280];
  const delta = [2 * n - (2 * n ** 2) / 3 - 2 * n ** 3 + (116 * n ** 4) / 45, (7 * n ** 2) / 3 - (8 * n ** 3) / 5 - (227 * n ** 4) / 45,
    (56 * n ** 3) / 15 - (136 * n ** 4) / 35, (4279 * n ** 4) / 630];
  return (x, y) => {
    const xi = (y - falseNorthing) / radius, eta = (x - 500000) / radius;
    let north = xi, east = eta;
    beta.forEach((factor, index) => {
      const times = 2 * (index + 1);
      north -= factor * Math.sin(times * xi) * Math.cosh(times * eta);
      east -= factor * Math.cos(times * xi) * Math.sinh(times * eta);
    });
    const conformal = Math.asin(Math.sin(north) / Math.cosh(east));
    const latitude = delta.reduce((sum, factor, index) => sum + factor * Math.sin(2 * (index + 1) * conformal), conformal);
    const longitude = Math.atan2(Math.sinh(east), Math.cos(north));
    return [6 * number - 183 + (longitude * 180) / Math.PI, (latitude * 180) / Math.PI];
  };
}

// The area of the ellipsoid between the equator and a latitude, per radian of longitude.
function zone(latitude) {
  const sine = Math.sin(latitude);
  return ((A ** 2 * (1 - E2)) / 2) * (sine / (1 - E2 * sine ** 2) + Math.atanh(E * sine) / E);
}

function rgb(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

function xml(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
}
