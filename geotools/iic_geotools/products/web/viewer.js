"use strict";
(async () => {
  const get = (id) => document.getElementById(id);
  const view = get("view"), canvas = get("canvas"), slider = get("opacity"), bar = get("bar"), here = get("here");
  const boxes = [...document.querySelectorAll("input[data-value]")];
  const metres = Number(view.dataset.metres), nodata = Number(view.dataset.nodata);
  const scene = get("scene");
  let map = get("map");
  await Promise.all([scene.decode(), map.decode()]);
  const width = scene.naturalWidth, height = scene.naturalHeight;
  const png = Uint8Array.from(atob(map.src.slice(map.src.indexOf(",") + 1)), (letter) => letter.charCodeAt(0));
  const chunks = findChunks(png);

  // The place of the picture in the view: CSS pixels per pixel of the picture, and its upper left corner.
  let scale = 1, left = 0, top = 0, fitted = true, values = null, pending = false;

  function findChunks(bytes) {
    const numbers = new DataView(bytes.buffer), known = {};
    for (let at = 8; at < bytes.length; ) {
      const length = numbers.getUint32(at);
      known[String.fromCharCode(...bytes.subarray(at + 4, at + 8))] = { start: at + 8, end: at + 8 + length };
      at += 12 + length;
    }
    return known;
  }

  // Classes are hidden by their entries in the picture's table of opacities.
  async function showClasses() {
    const { start, end } = chunks.tRNS;
    for (const box of boxes) png[start + Number(box.dataset.value)] = box.checked ? 255 : 0;
    new DataView(png.buffer).setUint32(end, checksum(png.subarray(start - 4, end)));
    const image = new Image(), address = URL.createObjectURL(new Blob([png], { type: "image/png" }));
    image.src = address;
    await image.decode();
    URL.revokeObjectURL(address);
    map = image;
    redraw();
  }

  function checksum(bytes) {
    let sum = ~0;
    for (const byte of bytes) {
      sum ^= byte;
      for (let bit = 0; bit < 8; bit++) sum = (sum >>> 1) ^ (0xedb88320 & -(sum & 1));
    }
    return ~sum >>> 0;
  }

  // The values of the map, without which only the name below the pointer is missing: old browsers cannot inflate.
  async function readValues() {
    if (!("DecompressionStream" in window)) return;
    const { start, end } = chunks.IDAT;
    const stream = new Blob([png.subarray(start, end)]).stream().pipeThrough(new DecompressionStream("deflate"));
    values = new Uint8Array(await new Response(stream).arrayBuffer());
  }

  function className(x, y) {
    const column = Math.floor((x - left) / scale), row = Math.floor((y - top) / scale);
    if (!values || column < 0 || row < 0 || column >= width || row >= height) return "";
    const value = values[row * (width + 1) + 1 + column];
    const box = boxes.find((candidate) => Number(candidate.dataset.value) === value);
    return box ? box.parentElement.textContent : value === nodata ? "no data" : "";
  }

  function redraw() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(draw);
  }

  function draw() {
    pending = false;
    const ratio = window.devicePixelRatio || 1;
    const wide = Math.round(view.clientWidth * ratio), high = Math.round(view.clientHeight * ratio);
    if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, view.clientWidth, view.clientHeight);
    // Large pixels are drawn as squares; only the pixels in view are drawn, so that any zoom costs the same.
    context.imageSmoothingEnabled = scale * ratio < 2;
    const x = Math.max(0, Math.floor(-left / scale)), y = Math.max(0, Math.floor(-top / scale));
    const across = Math.min(width, Math.ceil((view.clientWidth - left) / scale)) - x;
    const down = Math.min(height, Math.ceil((view.clientHeight - top) / scale)) - y;
    if (across > 0 && down > 0) {
      for (const [image, alpha] of [[scene, 1], [map, Number(slider.value)]]) {
        context.globalAlpha = alpha;
        context.drawImage(image, x, y, across, down, left + x * scale, top + y * scale, across * scale, down * scale);
      }
    }
    drawBar();
  }

  function drawBar() {
    if (!metres) return;
    const reach = (metres / scale) * Math.min(160, view.clientWidth / 3), power = 10 ** Math.floor(Math.log10(reach));
    const length = [5, 2, 1].find((step) => step * power <= reach) * power;
    const [unit, name] = length >= 1000 ? [1000, "km"] : length >= 1 ? [1, "m"] : [0.01, "cm"];
    bar.textContent = `${Number((length / unit).toPrecision(2))} ${name}`;
    bar.style.width = `${(length / metres) * scale}px`;
  }

  function fit() {
    scale = Math.min(view.clientWidth / width, view.clientHeight / height);
    left = (view.clientWidth - width * scale) / 2;
    top = (view.clientHeight - height * scale) / 2;
    fitted = true;
    redraw();
  }

  // The centre of the view stays on the picture.
  function move(dx, dy) {
    const across = view.clientWidth / 2, down = view.clientHeight / 2;
    left = Math.min(across, Math.max(across - width * scale, left + dx));
    top = Math.min(down, Math.max(down - height * scale, top + dy));
    fitted = false;
    redraw();
  }

  function zoom(factor, x, y) {
    const least = Math.min(view.clientWidth / width, view.clientHeight / height) / 2;
    const target = Math.min(Math.max(scale * factor, least), Math.max(32, 4 * least));
    left = x - ((x - left) * target) / scale;
    top = y - ((y - top) * target) / scale;
    scale = target;
    move(0, 0);
  }

  const zoomCentre = (factor) => zoom(factor, view.clientWidth / 2, view.clientHeight / 2);

  // One pointer moves the picture; two zoom it about the point between them.
  const pointers = new Map();
  const place = (event) => {
    const frame = canvas.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  };
  const grip = () => {
    const points = [...pointers.values()], [[x, y]] = points;
    if (points.length < 2) return { x, y, apart: 0 };
    const [a, b] = points[1];
    return { x: (x + a) / 2, y: (y + b) / 2, apart: Math.hypot(x - a, y - b) };
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, place(event));
    here.textContent = className(...place(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (pointers.has(event.pointerId)) {
      const before = grip();
      pointers.set(event.pointerId, place(event));
      const after = grip();
      move(after.x - before.x, after.y - before.y);
      if (before.apart && after.apart) zoom(after.apart / before.apart, after.x, after.y);
    }
    here.textContent = className(...place(event));
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(kind, (event) => pointers.delete(event.pointerId));
  }
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") here.textContent = "";
  });
  canvas.addEventListener("dblclick", (event) => zoom(2, ...place(event)));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(2 ** (-event.deltaY * (event.deltaMode ? 20 : 1) / 240), ...place(event));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const step = 60;
    const actions = {
      ArrowLeft: () => move(step, 0), ArrowRight: () => move(-step, 0),
      ArrowUp: () => move(0, step), ArrowDown: () => move(0, -step),
      "+": () => zoomCentre(2), "=": () => zoomCentre(2), "-": () => zoomCentre(0.5), "0": fit,
    };
    if (actions[event.key] && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      actions[event.key]();
    }
  });
  for (const button of document.querySelectorAll("button[data-zoom]")) {
    button.addEventListener("click", () => (button.dataset.zoom ? zoomCentre(Number(button.dataset.zoom)) : fit()));
  }
  slider.addEventListener("input", redraw);
  for (const box of boxes) box.addEventListener("change", showClasses);
  new ResizeObserver(() => (fitted ? fit() : move(0, 0))).observe(view);

  fit();
  document.body.classList.add("ready");
  await readValues();
})();
