// A view of a scene on a canvas: tiles, marks, and what fingers, mouse and keys do to it.
// Places are columns and rows of the scene's pixels, with fractions.

const CLICK_REACH = 6;  // pixels of the screen that a click may move
const LARGEST = 16;  // pixels of the screen for one of the scene

export class Viewer {
  constructor(canvas, width, height) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.width = width;
    this.height = height;
    this.layers = [];
    this.drawing = false;  // whether a finger draws a line instead of moving the view
    this.stroke = null;
    this.hasCross = false;
    this.onclick = () => {};
    this.onstroke = () => {};
    this.onhover = () => {};
    this.onmarks = () => {};
    this.onmove = () => {};
    this.pointers = new Map();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(canvas);
    this.resize();
    this.showAll();
  }

  resize() {
    const { clientWidth, clientHeight } = this.canvas;
    this.ratio = devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(clientWidth * this.ratio));
    this.canvas.height = Math.max(1, Math.round(clientHeight * this.ratio));
    this.redraw();
  }

  get size() { return [this.canvas.clientWidth, this.canvas.clientHeight]; }
  get smallest() { return 0.8 * Math.min(this.size[0] / this.width, this.size[1] / this.height); }

  showAll() {
    this.scale = Math.min(this.size[0] / this.width, this.size[1] / this.height, 4) || 1;
    this.centre = [this.width / 2, this.height / 2];
    this.redraw();
  }

  goTo(place, scale = Math.max(this.scale, 2)) {
    this.scale = scale;
    this.centre = [...place];
    this.redraw();
  }

  zoom(factor, [x, y] = this.size.map((side) => side / 2)) {
    const before = this.toScene([x, y]);
    this.scale = Math.min(LARGEST, Math.max(this.smallest, this.scale * factor));
    const after = this.toScene([x, y]);
    this.centre = this.centre.map((value, axis) => value + before[axis] - after[axis]);
    this.redraw();
  }

  pan(dx, dy) {
    const limits = [this.width, this.height];
    this.centre = [dx, dy].map((d, axis) =>
      Math.min(limits[axis], Math.max(0, this.centre[axis] - d / this.scale)));
    this.redraw();
  }

  toScene([x, y]) {
    return [x, y].map((value, axis) => this.centre[axis] + (value - this.size[axis] / 2) / this.scale);
  }

  toScreen([column, row]) {
    return [column, row].map((value, axis) => this.size[axis] / 2 + (value - this.centre[axis]) * this.scale);
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const context = this.context;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, ...this.size);
    for (const layer of this.layers) layer.draw(context, this);
    this.onmarks(context);
    if (this.stroke) line(context, this.stroke.map((place) => this.toScreen(place)));
    if (this.hasCross) cross(context, this.size.map((side) => side / 2));
    this.onmove();
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const kind of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(kind, (event) => this.release(event, kind === "pointerup"));
    }
    canvas.addEventListener("pointerleave", () => this.onhover(null));
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(2 ** (-event.deltaY / (event.deltaMode ? 10 : 300)), [event.offsetX, event.offsetY]);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.showCross(false));
  }

  press(event) {
    if (event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.showCross(false);
    const at = [event.offsetX, event.offsetY];
    this.pointers.set(event.pointerId, at);
    this.start = at;
    this.moved = this.pointers.size > 1;
    this.stroke = this.drawing && this.pointers.size === 1 ? [this.toScene(at)] : null;
  }

  move(event) {
    const at = [event.offsetX, event.offsetY];
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      this.onhover(this.toScene(at));
      return;
    }
    if (!this.moved && distance(at, this.start) < CLICK_REACH) return;
    this.moved = true;
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    this.pointers.set(event.pointerId, at);
    if (others.length) {
      const other = others[0];
      const middle = at.map((value, axis) => (value + other[axis]) / 2);
      this.pan((at[0] - before[0]) / 2, (at[1] - before[1]) / 2);
      this.zoom(distance(at, other) / Math.max(1, distance(before, other)), middle);
    } else if (this.stroke) {
      this.stroke.push(this.toScene(at));
      this.redraw();
    } else {
      this.pan(at[0] - before[0], at[1] - before[1]);
    }
  }

  release(event, isUp) {
    if (!this.pointers.delete(event.pointerId)) return;
    const stroke = this.stroke;
    this.stroke = null;
    if (!isUp || this.pointers.size) return;
    if (!this.moved) this.onclick(this.toScene(this.start));
    else if (stroke) this.onstroke(stroke);
    this.redraw();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = event.shiftKey ? 200 : 40;
    const actions = {
      ArrowLeft: () => this.pan(step, 0),
      ArrowRight: () => this.pan(-step, 0),
      ArrowUp: () => this.pan(0, step),
      ArrowDown: () => this.pan(0, -step),
      "+": () => this.zoom(1.5),
      "=": () => this.zoom(1.5),
      "-": () => this.zoom(1 / 1.5),
      Enter: () => this.onclick([...this.centre]),
      " ": () => this.onclick([...this.centre]),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    this.showCross(true);
    action();
    this.onhover([...this.centre]);
  }

  showCross(isShown) {
    if (this.hasCross === isShown) return;
    this.hasCross = isShown;
    this.redraw();
  }
}

export function distance(a, b) {
  return Math.hypot(a[0] - b[0], a[1] - b[1]);
}

function line(context, points) {
  for (const [width, colour] of [[5, "#fff"], [2.5, "#000"]]) {
    context.lineWidth = width;
    context.strokeStyle = colour;
    context.beginPath();
    for (const point of points) context.lineTo(...point);
    context.stroke();
  }
}

export function cross(context, [x, y], reach = 14) {
  for (const [width, colour] of [[4, "#fff"], [1.5, "#000"]]) {
    context.lineWidth = width;
    context.strokeStyle = colour;
    context.beginPath();
    for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
      context.moveTo(x + 4 * dx, y + 4 * dy);
      context.lineTo(x + reach * dx, y + reach * dy);
    }
    context.stroke();
  }
}
