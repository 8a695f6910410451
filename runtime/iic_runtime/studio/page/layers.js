// Tiles over the view: pictures of the scene, and maps whose labels are coloured here.

const MOST_TILES = 400;  // that a layer keeps
const AT_ONCE = 4;  // requests that are under way

// Asks for tiles, those in the middle of the view first; what is no longer wanted is not asked for.
export class Loader {
  constructor(onidle) {
    this.wanted = new Map();
    this.running = new Set();
    this.onidle = onidle;
  }

  get isIdle() { return !this.running.size && ![...this.wanted.values()].some((list) => list.length); }

  want(layer, requests) {
    this.wanted.set(layer, requests);
    this.next();
  }

  next() {
    for (const requests of this.wanted.values()) {
      while (requests.length && this.running.size < AT_ONCE) this.start(requests.shift());
    }
    if (this.isIdle) this.onidle();
  }

  async start(request) {
    if (this.running.has(request.key)) return;
    this.running.add(request.key);
    try {
      await request.load();
    } catch (error) {
      request.failed(error);
    }
    this.running.delete(request.key);
    this.next();
  }
}

class TileLayer {
  // grid: width and height in pixels; a layer may have larger pixels than the scene.
  constructor(loader, grid, tile, mostLevel) {
    Object.assign(this, { loader, grid, tile, mostLevel });
    this.tiles = new Map();
    this.failures = new Map();
    this.stamp = 0;
    this.isShown = true;
    this.opacity = 1;
    this.onload = () => {};
    this.onerror = () => {};
  }

  // The level whose pixels are those of the screen, or the next finer one.
  level(view) {
    const pixels = view.scale * (view.width / this.grid.width);
    return Math.max(0, Math.floor(Math.log2(1 / pixels) + this.coarser));
  }

  isTooFar(view) { return this.level(view) > this.mostLevel; }

  rect(level, column, row) {
    const side = this.tile << level;
    return [column * side, row * side,
      Math.min(side, this.grid.width - column * side), Math.min(side, this.grid.height - row * side)];
  }

  visible(view, level = this.level(view)) {
    const across = this.grid.width / view.width, down = this.grid.height / view.height;
    const side = this.tile << level;
    const [left, top] = view.toScene([0, 0]), [right, bottom] = view.toScene(view.size);
    const columns = range(left * across, right * across, this.grid.width, side);
    const rows = range(top * down, bottom * down, this.grid.height, side);
    return rows.flatMap((row) => columns.map((column) => [level, column, row]));
  }

  draw(context, view) {
    if (!this.isShown || this.isTooFar(view)) {
      this.loader.want(this, []);
      return;
    }
    const level = this.level(view);
    const addresses = this.visible(view, level);
    context.save();
    context.globalAlpha = this.opacity;
    context.imageSmoothingEnabled = view.scale < 2 && this.isSmooth;
    if (this.isSmooth) this.drawAncestors(context, view, addresses);
    for (const address of addresses) this.paint(context, view, address);
    context.restore();
    this.loader.want(this, this.requests(view, addresses));
  }

  // Coarser tiles stand in for those that are not there yet.
  drawAncestors(context, view, addresses) {
    const seen = new Set();
    for (const [level, column, row] of addresses) {
      if (this.tiles.has([level, column, row].join("/"))) continue;
      for (let up = 1; level + up <= this.mostLevel; up += 1) {
        const key = [level + up, column >> up, row >> up];
        if (!this.tiles.has(key.join("/"))) continue;
        if (!seen.has(key.join("/"))) this.paint(context, view, key);
        seen.add(key.join("/"));
        break;
      }
    }
  }

  paint(context, view, address) {
    const entry = this.tiles.get(address.join("/"));
    if (!entry?.image) return;
    const across = view.width / this.grid.width, down = view.height / this.grid.height;
    const [column, row, width, height] = this.rect(...address);
    const [left, top] = view.toScreen([column * across, row * down]);
    const [right, bottom] = view.toScreen([(column + width) * across, (row + height) * down]);
    context.drawImage(entry.image, left, top, right - left, bottom - top);
  }

  requests(view, addresses) {
    const middle = [view.width / 2, view.height / 2].map((_, axis) => view.centre[axis]);
    const away = ([level, column, row]) => {
      const side = (this.tile << level) * (view.width / this.grid.width);
      return Math.hypot((column + 0.5) * side - middle[0], (row + 0.5) * side - middle[1]);
    };
    const now = performance.now();
    return addresses
      .filter((address) => {
        const key = address.join("/");
        return this.tiles.get(key)?.stamp !== this.stamp && !(this.failures.get(key) > now);
      })
      .sort((a, b) => away(a) - away(b))
      .map((address) => ({
        key: `${this.name}/${this.stamp}/${address.join("/")}`,
        load: () => this.load(address, this.stamp),
        failed: (error) => {
          // Asked for again in a while: the file may be back.
          this.failures.set(address.join("/"), performance.now() + 3000);
          setTimeout(() => this.onload(), 3100);
          this.onerror(error);
        },
      }));
  }

  keep(address, entry) {
    const key = address.join("/");
    this.tiles.delete(key);
    this.tiles.set(key, entry);
    this.failures.delete(key);
    for (const old of this.tiles.keys()) {
      if (this.tiles.size <= MOST_TILES) break;
      this.tiles.delete(old);
    }
    this.onload();
  }

  clear() { this.tiles.clear(); }
}

function range(from, to, limit, side) {
  const first = Math.max(0, Math.floor(from / side));
  const last = Math.min(Math.ceil(limit / side) - 1, Math.floor(to / side));
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => first + index);
}

async function get(url) {
  const answer = await fetch(url);
  if (answer.ok) return answer;
  const text = await answer.text();
  let message = text;
  try { message = JSON.parse(text).error; } catch { /* not JSON */ }
  throw new Error(message);
}

export class PictureLayer extends TileLayer {
  constructor(loader, base, composite, grid, tile, mostLevel) {
    super(loader, grid, tile, mostLevel);
    this.name = `picture/${composite}`;
    this.base = base;
    this.isSmooth = true;
    this.coarser = 0.3;
  }

  level(view) { return Math.min(this.mostLevel, super.level(view)); }

  async load(address, stamp) {
    const answer = await get(`${this.base}/${this.name}/${address.join("/")}`);
    this.keep(address, { stamp, image: await createImageBitmap(await answer.blob()) });
  }
}

export class LabelLayer extends TileLayer {
  constructor(loader, base, name, grid, tile, mostLevel) {
    super(loader, grid, tile, mostLevel);
    this.name = `labels/${name}`;
    this.base = base;
    this.isSmooth = false;
    this.coarser = 0.5;
    this.classes = [];
    this.isFaded = false;
  }

  // Show other classes or colours; tiles that are here are painted again.
  recolour(classes, isFaded) {
    const key = JSON.stringify([classes, isFaded]);
    if (key === this.colourKey) return;
    this.colourKey = key;
    this.classes = classes;
    this.isFaded = isFaded;
    for (const entry of this.tiles.values()) if (entry.labels) entry.image = this.colour(entry);
  }

  async load(address, stamp) {
    const answer = await get(`${this.base}/${this.name}/${stamp}/${address.join("/")}`);
    const content = new Uint8Array(await answer.arrayBuffer());
    if (stamp !== this.stamp || Number(answer.headers.get("X-Stamp")) !== stamp) return;
    const [, , width, height] = this.rect(...address).map((side, index) =>
      index < 2 ? side : Math.ceil(side / (1 << address[0])));
    const count = width * height;
    if (content.length !== 2 * count) {
      this.keep(address, { stamp, image: null });
      return;
    }
    const entry = { stamp, width, height, labels: content.subarray(0, count), confidence: content.subarray(count) };
    entry.image = this.colour(entry);
    this.keep(address, entry);
  }

  colour({ width, height, labels, confidence }) {
    const canvas = document.createElement("canvas");
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    const words = new Uint32Array(image.data.buffer);
    const palette = this.classes.map(({ colour }) => {
      const [red, green, blue] = [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
      return (blue << 16) | (green << 8) | red;
    });
    for (let index = 0; index < words.length; index += 1) {
      const colour = palette[labels[index]];
      if (colour === undefined) continue;
      // From none at an even guess to all where it is certain.
      const alpha = this.isFaded ? Math.max(0, Math.min(255, (confidence[index] - 80) * 1.7)) : 255;
      words[index] = colour | (alpha << 24);
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }

  // The class and the confidence at a place of the scene.
  at(view, [column, row]) {
    if (!this.isShown || this.isTooFar(view)) return null;
    const level = this.level(view), side = this.tile << level;
    const x = Math.floor(column * this.grid.width / view.width), y = Math.floor(row * this.grid.height / view.height);
    const entry = this.tiles.get([level, Math.floor(x / side), Math.floor(y / side)].join("/"));
    if (!entry?.labels || x < 0 || y < 0) return null;
    const index = ((y % side) >> level) * entry.width + ((x % side) >> level);
    const found = this.classes[entry.labels[index]];
    return found ? { name: found.name, confidence: entry.confidence[index] / 255 } : null;
  }

  isUpToDate(view) {
    return !this.isShown || this.isTooFar(view)
      || this.visible(view).every((address) => this.tiles.get(address.join("/"))?.stamp === this.stamp);
  }
}
