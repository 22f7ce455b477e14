// Two linked pictures of an array: the scan and the frame, with a detector to drag.
// One module, for the page that `dask-tiled explore` serves and for the widget of notebooks.

const COLOURS = {
  gray: "000000 ffffff",
  "gray, reversed": "ffffff 000000",
  inferno: "000004 1b0c41 4a0c6b 781c6d a52c60 cf4446 ed6925 fb9b06 f7d13d fcffa4",
  magma: "000004 180f3d 440f76 721f81 9e2f7f cd4071 f1605d fd9668 feca8d fcfdbf",
  plasma: "0d0887 46039f 7201a8 9c179e bd3786 d8576b ed7953 fb9f3a fdca26 f0f921",
  viridis: "440154 482878 3e4a89 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725",
  cividis: "00224e 123570 3b496c 575d6d 707173 8a8678 a59c74 c3b369 e1cc55 fee838",
  "blue, red": "3b4cc0 7b9ff9 c0d4f5 f2cbb7 ee8468 b40426",
  channel: "000000 ffffff", // up to the colour of the channel, if the file has one
};
const DETECTOR = "#3ad1f5", MARK = "#ff9f43", DARK = "rgba(0, 0, 0, 0.6)";
const MARGIN = { left: 58, right: 78, top: 8, bottom: 38 };
const NEAR = 9; // pixels of the screen from an edge that is dragged
const SAMPLED = 16384; // values that choose the contrast
const PATIENCE = 400; // milliseconds, after which the page asks again unanswered
const RESTS = 150; // milliseconds without a change of the view, after which its details are asked for
const MOST = 2048; // pixels along an axis of a picture that is sent
const STEPS = { wheel: 1.0015, key: 1.25 };

// Elements

function make(name, properties = {}, ...children) {
  const { dataset, ...own } = properties;
  const element = Object.assign(document.createElement(name), own);
  Object.assign(element.dataset, dataset ?? {});
  element.append(...children);
  return element;
}

function choice(label, names, chosen, changed) {
  const select = make("select", { onchange: () => changed(select.value) });
  for (const name of names) select.append(make("option", { value: name, textContent: name }));
  select.value = chosen;
  return make("label", {}, label, select);
}

function download(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// Numbers

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function format(value, step = 0) {
  if (!Number.isFinite(value)) return "NaN";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  const digits = step ? clamp(Math.ceil(-Math.log10(step) - 1e-9), 0, 12) : clamp(4 - Math.floor(Math.log10(size)), 0, 8);
  const text = value.toFixed(digits);
  return step || !text.includes(".") ? text : text.replace(/\.?0+$/, "");
}

// With as many digits as a step needs, and no zeros behind them
function shortest(value, step) {
  const text = format(Math.abs(value) < step / 2 ? 0 : value, step);
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

function ticks(low, high, most) {
  const [first, last] = low < high ? [low, high] : [high, low];
  const rough = (last - first) / Math.max(1, most) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((digit) => digit * power >= rough * (1 - 1e-9)) ?? 10);
  const found = [];
  const start = Math.ceil(first / step - 1e-9);
  for (let k = 0; k <= most + 2 && (start + k) * step <= last + step * 1e-9; k++) found.push((start + k) * step);
  return { step, found };
}

const placeOf = (axis, pixel) => axis.offset + axis.scale * pixel;
const pixelOf = (axis, place) => (place - axis.offset) / axis.scale;
const unitsOf = (axis) => axis.coordinate_units || axis.units;
const labelOf = (axis) => (unitsOf(axis) ? `${axis.name} (${unitsOf(axis)})` : axis.name);
// Axes with coordinates are drawn in pixels, which are labelled by the nearest coordinate
const isUneven = (axis) => Boolean(axis.coordinates?.length);
const nearest = (axis, pixel) => axis.coordinates[clamp(Math.round(pixel), 0, axis.coordinates.length - 1)];
const tickOf = (axis, place, step) => (isUneven(axis) ? format(nearest(axis, place)) : format(Math.abs(place) < step / 1e6 ? 0 : place, step));
const readout = (axis, pixel) => format(isUneven(axis) ? nearest(axis, pixel) : placeOf(axis, pixel));
const withUnits = (axis, pixel) => `${readout(axis, pixel)}${unitsOf(axis) ? ` ${unitsOf(axis)}` : ""}`;

const tables = {}; // of colours, by their names, each made once

function tableOf(name) {
  return (tables[name] ??= makeTable(name));
}

function makeTable(name) {
  const points = (name.startsWith("#") ? `000000 ${name.slice(1)}` : COLOURS[name]).split(" ").map((hex) => [0, 2, 4].map((k) => parseInt(hex.slice(k, k + 2), 16)));
  const table = new Uint32Array(1024);
  for (let k = 0; k < 1024; k++) {
    const at = (k / 1023) * (points.length - 1), low = Math.min(Math.floor(at), points.length - 2);
    const [r, g, b] = points[low].map((value, c) => Math.round(value + (at - low) * (points[low + 1][c] - value)));
    table[k] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return table;
}

function painted(width, height, colour) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d"), image = context.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
  for (let k = 0; k < pixels.length; k++) pixels[k] = colour(Math.floor(k / width), k % width);
  context.putImageData(image, 0, 0);
  return canvas;
}

const bars = {};

function barOf(name) {
  return (bars[name] ??= painted(1, 256, (row) => tableOf(name)[(255 - row) * 4]));
}

let wheel = null;

function wheelOf(size) {
  return (wheel ??= painted(size, size, (row, column) => {
    const [y, x] = [row, column].map((at) => (2 * (at + 0.5)) / size - 1), length = Math.hypot(y, x);
    return length > 1 ? 0 : hue((Math.atan2(-y, x) / (2 * Math.PI) + 1) % 1, length);
  }));
}

function range(values, low, high) {
  const step = Math.max(1, Math.floor(values.length / SAMPLED));
  const some = new Float64Array(Math.ceil(values.length / step));
  let count = 0;
  for (let k = 0; k < values.length; k += step) if (Number.isFinite(values[k])) some[count++] = values[k];
  if (!count) return [0, 1];
  const sorted = some.subarray(0, count).sort();
  const at = (share) => sorted[Math.round((clamp(share, 0, 100) / 100) * (count - 1))];
  let [first, last] = [at(low), at(high)];
  if (first === last) [first, last] = [sorted[0], sorted[count - 1]];
  return first === last ? [first, first + 1] : [first, last];
}

function channelsOf({ values, components }) {
  const size = values.length / components;
  return Array.from({ length: components }, (_, k) => values.subarray(k * size, (k + 1) * size));
}

const nameOf = (axis, place) => axis.labels[place] ?? `${axis.name} ${withUnits(axis, place)}`;

function hue(turn, light) {
  const part = (n) => {
    const k = (n + turn * 6) % 6;
    return Math.round(255 * light * (1 - 0.9 * Math.max(0, Math.min(k, 4 - k, 1))));
  };
  return (255 << 24) | (part(1) << 16) | (part(3) << 8) | part(5);
}

// Pictures: pixels or a line on axes, with zoom, contrast and what lies above them

class Plot {
  constructor(name, colours, mode, events) {
    this.name = name;
    this.events = events;
    this.contrast = { mode, gamma: 0.5, low: 0.1, high: 99.9, colours, kept: null };
    this.component = "direction";
    this.tint = ""; // colour of the channel
    this.channels = null; // the axis of channels that may be shown together
    this.canvas = make("canvas", { tabIndex: 0, role: "img", ariaLabel: name });
    this.heading = make("span", { textContent: name });
    this.note = make("span", { className: "note", ariaLive: "polite" });
    this.value = make("div", { className: "value" });
    this.tools = make("div", { className: "row" });
    this.controls = make("div", { className: "row" });
    const whole = make("button", { textContent: "whole", title: "show all of it (0)", onclick: () => this.reset() });
    this.root = make("section", { className: "plot", dataset: { plot: name } },
      make("h2", {}, this.heading, this.note, whole), this.canvas, this.value, this.tools, this.controls);
    this.axes = [];
    this.number = 0; // of the picture
    this.zoom = { factor: 1, x: 0, y: 0 };
    this.#fill();
    this.#listen();
    new ResizeObserver(() => this.draw()).observe(this.root);
  }

  get colours() { return (this.contrast.colours === "channel" && this.tint) || this.contrast.colours; }
  get isLine() { return this.axes.length === 1; }
  get rows() { return this.isLine ? 1 : this.axes[0]?.size ?? 1; }
  get columns() { return this.axes.at(-1)?.size ?? 1; }

  setAxes(axes, colours, mode) {
    this.axes = axes;
    this.usual(colours, mode);
    this.data = this.detail = null;
    this.zoom = { factor: 1, x: (this.columns - 1) / 2, y: (this.rows - 1) / 2 };
    this.contrast.kept = null;
    this.#show();
  }

  set(head, values) {
    if (Boolean(head.together) !== this.isTogether) this.#forget();
    this.data = { ...head, values, window: head.shape.map((size, k) => [0, size * head.bins[k]]), canvas: this.data?.canvas };
    this.detail = this.sought = null;
    this.hasPixels = values.some(Number.isFinite);
    this.number++;
    this.#paint();
    this.draw();
    this.#show();
    this.#tell();
  }

  // A part of the picture with more of its pixels
  setDetail(head, values) {
    if (head.id !== this.number) return; // of a picture before
    this.detail = { ...head, values };
    this.root.dataset.detail = head.window.join();
    this.#paint();
    this.draw();
    this.#tell();
  }

  // Contrast

  #forget() {
    this.contrast.kept = null;
    this.keep.ariaPressed = "false";
  }

  #fill() {
    const { contrast } = this;
    const again = (kept = null) => {
      contrast.kept = kept;
      this.keep.ariaPressed = String(Boolean(kept));
      this.#paint();
      this.draw();
    };
    const gamma = make("input", {
      type: "number", className: "short", min: 0.05, max: 5, step: 0.05, value: contrast.gamma, title: "gamma",
      onchange: () => { contrast.gamma = clamp(Number(gamma.value) || 0.5, 0.05, 5); again(); },
    });
    const percentile = (name, title) => {
      const input = make("input", {
        type: "number", className: "short", min: 0, max: 100, step: 0.1, value: contrast[name], title,
        onchange: () => { contrast[name] = clamp(Number(input.value), 0, 100); again(); },
      });
      return input;
    };
    gamma.hidden = contrast.mode !== "gamma";
    const mode = choice("contrast", ["linear", "log", "gamma"], contrast.mode, (value) => {
      contrast.mode = value;
      gamma.hidden = value !== "gamma";
      again();
    });
    this.usual = (colours, name) => {
      Object.assign(contrast, { colours, mode: name });
      this.colourChoice.querySelector("select").value = colours;
      mode.querySelector("select").value = name;
      gamma.hidden = name !== "gamma";
    };
    this.keep = make("button", {
      textContent: "keep", title: "keep the darkest and the brightest value",
      onclick: () => again(contrast.kept ? null : this.limits),
    });
    this.colourChoice = choice("colours", Object.keys(COLOURS), contrast.colours, (value) => { contrast.colours = value; again(); });
    this.componentChoice = choice("shown", ["direction", "y", "x", "length"], this.component, (value) => {
      this.component = value;
      again();
    });
    this.imageTools = [mode, gamma, make("label", {}, "%", percentile("low", "percentile that is darkest"), percentile("high", "percentile that is brightest")), this.colourChoice, this.keep];
    this.tools.append(...this.imageTools, this.componentChoice);
  }

  #show() {
    const vectors = this.data?.components === 2 && !this.isTogether;
    for (const tool of this.imageTools) if (tool.tagName !== "INPUT") tool.hidden = this.isLine;
    if (this.isColour || this.isTogether) this.colourChoice.hidden = true;
    this.componentChoice.hidden = !vectors;
    this.heading.textContent = this.events.title?.() ?? this.name;
  }

  #numbers({ values, components }) {
    const size = values.length / components;
    if (components === 1 || this.isColour || this.isTogether) return values;
    const [y, x] = [values.subarray(0, size), values.subarray(size, 2 * size)];
    if (components !== 2 || this.component === "y") return y;
    if (this.component === "x") return x;
    const [my, mx] = [y, x].map((part) => {
      let sum = 0, count = 0;
      for (const value of part) if (Number.isFinite(value)) { sum += value; count++; }
      return sum / Math.max(1, count);
    });
    const lengths = new Float32Array(size), turns = new Float32Array(size);
    for (let k = 0; k < size; k++) {
      lengths[k] = Math.hypot(y[k] - my, x[k] - mx);
      turns[k] = (Math.atan2(my - y[k], x[k] - mx) / (2 * Math.PI) + 1) % 1;
    }
    this.turns = turns;
    return lengths;
  }

  #paint() {
    if (!this.data) return;
    const { contrast, data, detail } = this;
    for (const part of [data, detail]) if (part) part.shown = this.#numbers(part);
    const limits = (values) => range(values, contrast.low, contrast.high);
    this.limits = contrast.kept ?? (this.isTogether ? channelsOf(data).map(limits) : limits(data.shown));
    if (!this.isLine) for (const part of [data, detail]) if (part) this.#paintPart(part);
  }

  #paintPart(part) {
    const { contrast } = this, { shown } = part, [rows, columns] = part.shape, [low, high] = this.limits;
    const canvas = (part.canvas ??= document.createElement("canvas"));
    if (canvas.width !== columns || canvas.height !== rows) Object.assign(canvas, { width: columns, height: rows });
    const context = canvas.getContext("2d"), picture = context.createImageData(columns, rows);
    const pixels = new Uint32Array(picture.data.buffer);
    const wheel = this.isWheel, bright = this.#curve(), table = tableOf(this.colours), scale = 1 / (high - low);
    if (this.isTogether) this.#paintChannels(part, pixels);
    else if (this.isColour) {
      const light = (value) => Math.round(255 * bright(clamp((value - low) * scale, 0, 1)));
      const [green, blue] = [pixels.length, 2 * pixels.length];
      for (let k = 0; k < pixels.length; k++) pixels[k] = (255 << 24) | (light(shown[k + blue]) << 16) | (light(shown[k + green]) << 8) | light(shown[k]);
    } else for (let k = 0; k < pixels.length; k++) {
      const part = (shown[k] - low) * scale;
      if (part !== part) continue; // NaN is left transparent
      const light = bright(part <= 0 ? 0 : part >= 1 ? 1 : part);
      pixels[k] = wheel ? hue(this.turns[k], light) : table[(light * 1023) | 0];
    }
    context.putImageData(picture, 0, 0);
  }

  // Channels in their colours, each with its own contrast, added up
  #paintChannels(part, pixels) {
    const bright = this.#curve(), channels = channelsOf(part);
    const colours = this.channels.colours.map((hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16)));
    const sums = new Float32Array(3 * pixels.length);
    channels.forEach((values, c) => {
      const [low, high] = this.limits[c], scale = 1 / (high - low), [red, green, blue] = colours[c];
      for (let k = 0; k < pixels.length; k++) {
        const light = bright(clamp((values[k] - low) * scale, 0, 1)) || 0; // NaN is dark
        sums[3 * k] += red * light;
        sums[3 * k + 1] += green * light;
        sums[3 * k + 2] += blue * light;
      }
    });
    const byte = (sum) => Math.min(255, Math.round(sum));
    for (let k = 0; k < pixels.length; k++) pixels[k] = (255 << 24) | (byte(sums[3 * k + 2]) << 16) | (byte(sums[3 * k + 1]) << 8) | byte(sums[3 * k]);
  }

  get isTogether() { return Boolean(this.data?.together); }

  get isColour() { return this.data?.components > 2 && !this.isTogether; }

  get isWheel() { return this.data?.components === 2 && this.component === "direction" && !this.isTogether; }

  #curve() {
    const { mode, gamma } = this.contrast;
    if (mode === "log") return (part) => Math.log1p(1000 * part) / Math.log(1001);
    if (mode === "gamma") return (part) => part ** gamma;
    return (part) => part;
  }

  // Values with a mark on the colour bar, and how bright they are
  #marks(height) {
    const { mode, gamma } = this.contrast, [low, high] = this.limits, bright = this.#curve(), count = Math.max(2, Math.floor(height / 55));
    const marked = (value, step) => [value, step, bright(clamp((value - low) / (high - low), 0, 1))];
    if (mode === "linear") {
      const { step, found } = ticks(low, high, count);
      return found.map((value) => marked(value, step));
    }
    const found = [];
    for (let k = 0; k <= count; k++) {
      const light = k / count, part = mode === "log" ? (1001 ** light - 1) / 1000 : light ** (1 / gamma);
      const value = low + part * (high - low), size = 10 ** Math.floor(Math.log10(Math.abs(value) || 1)), step = size / (value / size < 2 ? 2 : 1);
      const round = Math.round(value / step) * step, last = found.at(-1);
      if (round >= low && round <= high && (!last || marked(round, step)[2] - last[2] > 0.5 / count)) found.push(marked(round, step));
    }
    return found;
  }

  // Places on the screen

  #layout() {
    const width = Math.max(220, this.canvas.clientWidth || 400);
    const area = { x: MARGIN.left, y: MARGIN.top, w: width - MARGIN.left - MARGIN.right };
    area.h = this.isLine ? Math.min(area.w * 0.7, 300) : Math.min(area.w, 560);
    const [y, x] = this.isLine ? [null, this.axes[0]] : this.axes;
    let kx = area.w / this.columns, ky = area.h / this.rows;
    const aspect = !this.isLine && y.units === x.units ? Math.abs(y.scale / x.scale) : 1;
    const shape = (aspect * this.rows) / this.columns;
    this.isEqual = !this.isLine && shape <= 4 && shape >= 0.25;
    if (this.isEqual) {
      kx = Math.min(kx, ky / aspect);
      ky = kx * aspect;
      if (this.rows * ky < area.h) area.h = Math.max(140, this.rows * ky);
      const wide = this.columns * kx;
      if (wide < area.w) {
        area.x += (area.w - wide) / 2;
        area.w = wide;
      }
    }
    const { factor } = this.zoom;
    return { width, height: area.h + MARGIN.top + MARGIN.bottom, area, kx: kx * factor, ky: ky * factor };
  }

  toScreen(x, y) {
    const { area, kx, ky } = this.layout;
    return [area.x + area.w / 2 + (x - this.zoom.x) * kx, area.y + area.h / 2 + (y - this.zoom.y) * ky];
  }

  toPixel(left, top) {
    const { area, kx, ky } = this.layout;
    return [(left - area.x - area.w / 2) / kx + this.zoom.x, (top - area.y - area.h / 2) / ky + this.zoom.y];
  }

  reset() {
    this.zoom = { factor: 1, x: (this.columns - 1) / 2, y: (this.rows - 1) / 2 };
    this.draw();
  }

  zoomBy(factor, left, top) {
    const before = this.toPixel(left, top);
    this.zoom.factor = clamp(this.zoom.factor * factor, 1, 200);
    this.layout = this.#layout();
    const after = this.toPixel(left, top);
    this.#moveTo(this.zoom.x + before[0] - after[0], this.zoom.y + before[1] - after[1]);
  }

  #moveTo(x, y) {
    const { area, kx, ky } = this.layout;
    const within = (at, size, seen) => (seen >= size ? (size - 1) / 2 : clamp(at, seen / 2 - 0.5, size - 0.5 - seen / 2));
    this.zoom.x = within(x, this.columns, area.w / kx);
    this.zoom.y = this.isLine ? 0 : within(y, this.rows, area.h / ky);
    this.draw();
  }

  // Drawing

  // Once before the next picture of the screen, however often it is asked for
  draw() {
    this.drawing ??= requestAnimationFrame(() => {
      this.drawing = null;
      this.#draw();
    });
  }

  #draw() {
    if (!this.axes.length || !this.root.isConnected) return;
    const layout = (this.layout = this.#layout()), { area } = layout;
    const dense = Math.max(1, window.devicePixelRatio || 1);
    const [width, height] = [Math.round(layout.width * dense), Math.round(layout.height * dense)];
    if (this.canvas.width !== width || this.canvas.height !== height) {
      Object.assign(this.canvas, { width, height });
      this.canvas.style.height = `${layout.height}px`;
    }
    const style = getComputedStyle(this.root);
    const ink = style.getPropertyValue("--ink").trim() || "#222", soft = style.getPropertyValue("--soft").trim() || "#777";
    const well = style.getPropertyValue("--well").trim() || "#eee";
    const c = this.canvas.getContext("2d");
    c.setTransform(dense, 0, 0, dense, 0, 0);
    c.fillStyle = style.getPropertyValue("--ground").trim() || "#fff";
    c.fillRect(0, 0, layout.width, layout.height);
    c.font = "11px system-ui, sans-serif";
    c.save();
    c.beginPath();
    c.rect(area.x, area.y, area.w, area.h);
    c.clip();
    c.fillStyle = well;
    c.fillRect(area.x, area.y, area.w, area.h);
    if (this.data && this.isLine) this.#drawLine(c, soft);
    c.imageSmoothingEnabled = false;
    for (const part of this.isLine ? [] : [this.data, this.detail]) if (part) {
      const [[first, last], [low, high]] = part.window;
      const [left, top] = this.toScreen(low - 0.5, first - 0.5), [right, bottom] = this.toScreen(high - 0.5, last - 0.5);
      c.drawImage(part.canvas, left, top, right - left, bottom - top);
    }
    this.events.overlay?.(c, this);
    if (this.data && !this.isLine) this.#drawScaleBar(c);
    if (this.isTogether) this.#drawLegend(c);
    c.restore();
    this.#drawAxes(c, ink, soft);
    if (this.hasPixels && !this.isLine && !this.isColour && !this.isTogether) this.#drawBar(c, ink, soft);
    this.#seekDetail();
  }

  // The pixels of each axis that are seen
  #seen() {
    const { area } = this.layout, ends = [this.toPixel(area.x, area.y), this.toPixel(area.x + area.w, area.y + area.h)];
    return this.axes.map((axis, k) => {
      const at = this.axes.length - 1 - k;
      return [Math.max(0, Math.floor(ends[0][at])), Math.min(axis.size, Math.ceil(ends[1][at]) + 1)];
    });
  }

  // The detail, where it has all that is seen
  #showing(seen) {
    const { detail, data } = this;
    return detail && seen.every(([low, high], k) => low >= detail.window[k][0] && high <= detail.window[k][1]) ? detail : data;
  }

  // Ask for what is seen where it is shown with fewer pixels than could be sent
  #seekDetail() {
    clearTimeout(this.timer);
    const { data } = this;
    if (!data || (data.components === 2 && !this.isTogether) || data.bins.every((bin) => bin === 1)) return;
    const seen = this.#seen(), window = seen.map(([low, high], k) => {
      const more = Math.ceil((high - low) / 10);
      return [Math.max(0, low - more), Math.min(this.axes[k].size, high + more)];
    });
    const { bins } = this.#showing(seen);
    if (!window.some(([low, high], k) => Math.ceil((high - low) / MOST) < bins[k])) return;
    if (this.sought === window.join()) return; // the answer may be coarser
    this.timer = setTimeout(() => {
      this.sought = window.join();
      this.events.detail?.(window, this.number);
    }, RESTS);
  }

  #drawLine(c, soft) {
    const { area } = this.layout, seen = this.#seen()[0];
    const part = this.#showing([seen]), stretch = part.bins[0], begin = part.window[0][0];
    const lines = this.isTogether ? channelsOf(part) : [part.shown];
    const first = Math.max(0, Math.floor((seen[0] - begin) / stretch)), last = Math.min(lines[0].length, Math.ceil((seen[1] - begin) / stretch) + 1);
    let low = Infinity, high = -Infinity;
    for (const values of lines) for (let k = first; k < last; k++) if (Number.isFinite(values[k])) [low, high] = [Math.min(low, values[k]), Math.max(high, values[k])];
    if (!(low < high)) [low, high] = Number.isFinite(low) ? [low - 0.5, low + 0.5] : [0, 1];
    if (low > 0 && low < 0.5 * high) low = 0;
    high += 0.05 * (high - low);
    this.span = [low, high];
    lines.forEach((values, channel) => {
      c.beginPath();
      for (let k = first; k < last; k++) {
        const at = this.toScreen(begin + (k + 0.5) * stretch - 0.5, 0)[0], up = area.y + area.h * (1 - (values[k] - low) / (high - low));
        c.lineTo(at, up);
      }
      c.strokeStyle = this.isTogether ? this.channels.colours[channel] : "#4a90d9";
      c.lineWidth = 1.3;
      c.stroke();
    });
  }

  #drawAxes(c, ink, soft) {
    const { area } = this.layout;
    c.strokeStyle = soft;
    c.lineWidth = 1;
    c.strokeRect(area.x + 0.5, area.y + 0.5, area.w - 1, area.h - 1);
    c.fillStyle = ink;
    const x = this.axes.at(-1), ends = [area.x, area.x + area.w].map((at) => placeOf(x, this.toPixel(at, 0)[0]));
    c.textAlign = "center";
    c.textBaseline = "top";
    const along = ticks(...ends, area.w / 75);
    for (const place of along.found) {
      const at = this.toScreen(pixelOf(x, place), 0)[0];
      c.fillRect(at - 0.5, area.y + area.h, 1, 4);
      c.fillText(tickOf(x, place, along.step), at, area.y + area.h + 6);
    }
    c.fillText(labelOf(x), area.x + area.w / 2, area.y + area.h + 22);
    c.textAlign = "right";
    c.textBaseline = "middle";
    const y = this.isLine ? { name: this.events.units?.() ?? "", units: "", scale: 1, offset: 0 } : this.axes[0];
    const [low, high] = this.isLine ? this.span ?? [0, 1] : [area.y, area.y + area.h].map((at) => placeOf(y, this.toPixel(0, at)[1]));
    const up = ticks(low, high, area.h / 55);
    for (const place of up.found) {
      const at = this.isLine ? area.y + area.h * (1 - (place - low) / (high - low)) : this.toScreen(0, pixelOf(y, place))[1];
      c.fillRect(area.x - 4, at - 0.5, 4, 1);
      c.fillText(tickOf(y, place, up.step), area.x - 6, at);
    }
    c.save();
    c.translate(area.x - MARGIN.left + 10, area.y + area.h / 2);
    c.rotate(-Math.PI / 2);
    c.textAlign = "center";
    c.fillText(labelOf(y), 0, 0);
    c.restore();
  }

  #drawScaleBar(c) {
    const [y, x] = this.axes, { area, kx } = this.layout;
    if (!x.units || x.units !== y.units || !this.isEqual) return;
    const seen = (area.w / kx) * Math.abs(x.scale), most = seen / 3, power = 10 ** Math.floor(Math.log10(most));
    const length = Math.max(...[1, 2, 5].map((digit) => digit * power).filter((size) => size <= most * (1 + 1e-9)));
    const wide = (length / Math.abs(x.scale)) * kx, text = `${format(length)} ${x.units}`;
    c.textAlign = "center";
    c.textBaseline = "bottom";
    const box = Math.max(wide, c.measureText(text).width) + 12, left = area.x + 8, bottom = area.y + area.h - 8;
    c.fillStyle = DARK;
    c.fillRect(left, bottom - 26, box, 26);
    c.fillStyle = "white";
    c.fillRect(left + (box - wide) / 2, bottom - 7, wide, 3);
    c.fillText(text, left + box / 2, bottom - 9);
  }

  #drawBar(c, ink, soft) {
    const { area } = this.layout, [low, high] = this.limits, left = area.x + area.w + 10;
    if (this.isWheel) return this.#drawWheel(c, ink, left);
    const wide = 12;
    c.drawImage(barOf(this.colours), left, area.y, wide, area.h);
    c.strokeStyle = soft;
    c.strokeRect(left + 0.5, area.y + 0.5, wide - 1, area.h - 1);
    c.fillStyle = ink;
    c.textAlign = "left";
    c.textBaseline = "middle";
    for (const [value, step, light] of this.#marks(area.h)) {
      const at = area.y + area.h * (1 - light);
      c.fillRect(left + wide, at - 0.5, 3, 1);
      c.fillText(shortened(value, step), left + wide + 5, at);
    }
    const units = this.events.units?.() ?? "";
    c.textBaseline = "top";
    if (units) c.fillText(units, left, area.y + area.h + 6);
  }

  // Colours and names of channels, with the values of black and of full colour
  #drawLegend(c) {
    const { area } = this.layout, line = 16;
    const texts = this.limits.map(([low, high], k) => `${nameOf(this.channels, k)}  ${format(low)} to ${format(high)}`);
    c.textAlign = "left";
    c.textBaseline = "top";
    c.fillStyle = DARK;
    c.fillRect(area.x + 8, area.y + 8, Math.max(...texts.map((text) => c.measureText(text).width)) + 30, line * texts.length + 6);
    texts.forEach((text, k) => {
      c.fillStyle = this.channels.colours[k];
      c.fillRect(area.x + 14, area.y + 13 + line * k, 10, 10);
      c.fillStyle = "white";
      c.fillText(text, area.x + 30, area.y + 12 + line * k);
    });
  }

  #drawWheel(c, ink, left) {
    const { area } = this.layout, size = 58;
    c.drawImage(wheelOf(size), left, area.y);
    c.fillStyle = ink;
    c.textAlign = "left";
    c.textBaseline = "top";
    c.fillText(`0 to ${format(Number(this.limits[1].toPrecision(3)))}`, left, area.y + size + 4);
    const units = this.events.units?.() ?? "";
    if (units) c.fillText(units, left, area.y + size + 18);
  }

  // The value under the pointer
  #tell() {
    this.value.textContent = (this.pointer && this.valueAt(...this.pointer)) ?? "";
  }

  valueAt(x, y) {
    if (!this.data) return null;
    const [column, row] = [Math.round(x), this.isLine ? 0 : Math.round(y)];
    if (column < 0 || row < 0 || column >= this.columns || row >= this.rows) return null;
    const pixel = this.isLine ? [column] : [row, column], holds = (part) => part?.window.every(([low, high], k) => pixel[k] >= low && pixel[k] < high);
    const part = [this.detail, this.data].find(holds);
    if (!part) return null; // the last pixels of an axis that is shown with fewer
    const { values, components } = part, size = values.length / components;
    const at = pixel.reduce((sum, place, k) => sum * part.shape[k] + Math.floor((place - part.window[k][0]) / part.bins[k]), 0);
    const places = this.axes.map((axis, k) => {
      const pixel = k === this.axes.length - 1 ? column : row;
      return `${axis.name} ${withUnits(axis, pixel)}`;
    });
    const found = Array.from({ length: components }, (_, k) => `${this.isTogether ? `${nameOf(this.channels, k)} ` : ""}${format(values[k * size + at])}`);
    return `${places.join(", ")}: ${found.join(", ")}`;
  }

  // Events

  #listen() {
    const { canvas } = this;
    let drag = null;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.oncontextmenu = (event) => event.preventDefault();
    canvas.onpointerdown = (event) => {
      if (!this.layout) return;
      canvas.focus({ preventScroll: true });
      canvas.setPointerCapture(event.pointerId);
      const [left, top] = place(event);
      const pans = event.button !== 0 || event.shiftKey || event.altKey;
      if (pans) drag = { last: [left, top] };
      else drag = { move: this.events.press?.(...this.toPixel(left, top), this) };
    };
    canvas.onpointermove = (event) => {
      if (!this.layout) return;
      const [left, top] = place(event), [x, y] = this.toPixel(left, top);
      this.pointer = [x, y];
      this.#tell();
      if (!drag) canvas.style.cursor = this.events.cursor?.(x, y, this) ?? "crosshair";
      else if (drag.last) {
        const { kx, ky } = this.layout;
        this.#moveTo(this.zoom.x - (left - drag.last[0]) / kx, this.zoom.y - (top - drag.last[1]) / ky);
        drag.last = [left, top];
      } else drag.move?.(x, y);
    };
    canvas.onpointerup = canvas.onpointercancel = () => { drag = null; };
    canvas.ondblclick = () => this.reset();
    canvas.onwheel = (event) => {
      if (!this.layout) return;
      event.preventDefault();
      this.zoomBy(STEPS.wheel ** -event.deltaY, ...place(event));
    };
    canvas.onkeydown = (event) => {
      if (event.ctrlKey || event.metaKey || !this.layout) return;
      const { area } = this.layout, middle = [area.x + area.w / 2, area.y + area.h / 2];
      const step = event.shiftKey ? 10 : event.altKey ? 0.1 : 1;
      const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
      if (moves[event.key]) this.events.step?.(...moves[event.key]);
      else if (event.key === "0") this.reset();
      else if (event.key === "z") this.zoomBy(STEPS.key, ...middle);
      else if (event.key === "Z") this.zoomBy(1 / STEPS.key, ...middle);
      else if (!this.events.key?.(event.key)) return;
      event.preventDefault();
    };
  }
}

function shortened(value, step) {
  const size = Math.abs(value);
  if (size < 1e4) return format(Math.abs(value) < step / 1e6 ? 0 : value, step);
  const [by, letter] = size >= 1e9 ? [1e9, "G"] : size >= 1e6 ? [1e6, "M"] : [1e3, "k"];
  return `${format(value / by, step / by)}${letter}`;
}

// The page: the state, what is asked for, and what comes

class Page {
  constructor(element, send) {
    this.send = send;
    this.state = null;
    this.waiting = { image: null, frame: null };
    this.number = 0;
    this.tool = "position";
    this.scan = new Plot("scan", "gray", "linear", {
      title: () => this.#scanTitle(), units: () => this.#scanUnits(), overlay: (c, plot) => this.#drawScan(c, plot),
      press: (x, y) => this.#pressScan(x, y), step: (x, y) => this.#stepScan(x, y), detail: (window, id) => this.send({ type: "detail", plot: "scan", window, id }),
    });
    this.frame = new Plot("frame", "inferno", "log", {
      title: () => this.#frameTitle(), units: () => this.scene?.units ?? "", overlay: (c, plot) => this.#drawFrame(c, plot),
      press: (x, y, plot) => this.#pressFrame(x, y, plot), cursor: (x, y, plot) => this.#cursor(x, y, plot),
      step: (x, y) => this.#stepFrame(x, y), key: (key) => this.#keyFrame(key), detail: (window, id) => this.send({ type: "detail", plot: "frame", window, id }),
    });
    this.title = make("span", { className: "title" });
    this.subtitle = make("span", { className: "subtitle" });
    this.growth = make("span", { className: "growth" });
    this.doubts = make("ul", { className: "doubts", ariaLabel: "what the file leaves open", hidden: true });
    this.shapes = make("div", { className: "row shapes", role: "group", ariaLabel: "shape of the scan", hidden: true });
    this.pictures = make("label", { hidden: true });
    this.sliders = make("div", { className: "row sliders" });
    this.plots = make("div", { className: "plots" }, this.scan.root, this.frame.root);
    this.code = make("pre", { tabIndex: 0 });
    const copy = make("button", { textContent: "copy", title: "copy the code of what is shown", onclick: () => this.#copy(copy) });
    this.codeBox = make("div", { className: "code", hidden: true }, this.code, copy);
    this.errorText = make("span");
    this.error = make("div", { className: "error", role: "alert", hidden: true }, this.errorText,
      make("button", { textContent: "close", onclick: () => { this.error.hidden = true; } }));
    this.saveZarr = make("button", { textContent: "save zarr", title: "the image with its axes, as a zarr store in a zip file", onclick: () => this.send({ type: "save" }) });
    const savePng = make("button", { textContent: "save PNG", title: "both pictures with their axes", onclick: () => this.#savePng() });
    this.keys = make("div", {
      className: "keys",
      textContent: "Drag the detector or its edge, and the position in the scan. Wheel: zoom. Shift and drag: pan. Arrows: a pixel (Shift: 10, Alt: 0.1). + and −: radius. [ and ]: inner radius. 0: all of it.",
    });
    this.root = make("div", { className: "dask-tiled-explore" },
      make("div", { className: "head" }, this.title, this.subtitle, this.growth, make("span", { className: "grow" }), this.pictures, savePng, this.saveZarr),
      this.doubts, this.shapes, this.error, this.sliders, this.plots, this.codeBox, this.keys);
    element.append(this.root);
    this.#fillTools();
    const again = () => { this.scan.draw(); this.frame.draw(); };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    new MutationObserver(again).observe(document.body, { attributes: true }); // themes of notebooks
  }

  // What comes

  receive(head, data) {
    if (head.type === "scene") this.#setScene(head);
    else if (head.type === "state") this.#setState(head.state);
    else if (head.type === "image") this.#setPicture(this.scan, "image", head, data);
    else if (head.type === "frame") this.#setPicture(this.frame, "frame", head, data);
    else if (head.type === "scan detail") this.scan.setDetail(head, valuesOf(head, data));
    else if (head.type === "frame detail") this.frame.setDetail(head, valuesOf(head, data));
    else if (head.type === "shapes") this.#setShapes(head, data);
    else if (head.type === "known") this.#answered(head.kinds, head.id);
    else if (head.type === "growth") this.#setGrowth(head);
    else if (head.type === "error") this.#fail(head.text);
    else if (head.type === "file") download(head.name, new Blob([data], { type: "application/zip" }));
  }

  #fail(text) {
    this.errorText.textContent = text;
    this.error.hidden = false;
    this.waiting = { image: null, frame: null };
    this.#flush();
  }

  closed() {
    this.#fail("The connection has ended: the program that reads the file is not running any more.");
  }

  #setScene(scene) {
    this.scene = scene;
    this.title.textContent = scene.title;
    this.subtitle.textContent = scene.subtitle;
    this.doubts.replaceChildren(...scene.doubts.map((doubt) => make("li", { textContent: doubt })));
    this.doubts.hidden = !scene.doubts.length;
    document.title = this.root.parentElement === document.body ? `${scene.title} - dask-tiled` : document.title;
    const axes = (places) => places.map((k) => scene.axes[k]);
    this.hasScan = scene.scan.length > 0;
    this.scan.root.hidden = !this.hasScan;
    this.codeBox.hidden = false;
    this.plots.classList.toggle("single", !this.hasScan);
    const tinted = scene.sliders.some((place) => scene.axes[place].colours.length);
    const plain = [tinted ? "channel" : "gray", "linear"];
    const usual = [["gray", "linear"], this.hasScan && scene.channels === null ? ["inferno", "log"] : plain];
    const alike = this.shownAs === JSON.stringify([scene.title, scene.picture]); // a file that has grown
    this.shownAs = JSON.stringify([scene.title, scene.picture]);
    const kept = [this.scan, this.frame].map(({ contrast }) => [contrast.colours, contrast.mode]);
    const [ofScan, ofFrame] = alike ? kept : usual;
    if (this.hasScan) this.scan.setAxes(axes(scene.scan), ...ofScan);
    this.frame.setAxes(axes(scene.frame), ...ofFrame);
    for (const plot of [this.scan, this.frame]) plot.channels = scene.channels === null ? null : scene.axes[scene.channels];
    this.keys.hidden = !this.hasScan;
    this.pictures.hidden = scene.pictures.length < 2;
    this.pictures.replaceChildren("picture", make("select", { onchange: (event) => this.send({ type: "picture", number: Number(event.target.value) }) },
      ...scene.pictures.map((name, k) => make("option", { value: k, textContent: name, selected: k === scene.picture }))));
    this.#setState(scene.state);
    this.#fillSliders();
  }

  // Shapes that a scan may have whose frames are shown in a row, as buttons with its picture
  #setShapes(head, data) {
    let from = 0;
    const button = (number, title, ...content) => make("button", { title, ariaPressed: String(number === head.chosen), onclick: () => this.send({ type: "shape", number }) }, ...content);
    const pictures = head.shapes.map(([rows, columns], k) => {
      const values = valuesOf({ dtype: "f4" }, data.subarray(4 * from, 4 * (from + rows * columns)));
      const [low, high] = range(values, 0.5, 99.5), table = tableOf("gray");
      from += rows * columns;
      const light = (value) => (Number.isFinite(value) ? table[Math.round(1023 * clamp((value - low) / (high - low), 0, 1))] : 0);
      return button(k, head.reasons[k], painted(columns, rows, (row, column) => light(values[row * columns + column])), head.names[k]);
    });
    this.shapes.replaceChildren(...(pictures.length ? ["the scan as", ...pictures, button(null, "frames as they are stored", "in a row")] : []));
    this.shapes.hidden = !pictures.length;
  }

  #setState(state) {
    this.state = structuredClone(state);
    this.wanted = this.waiting = { image: null, frame: null };
    this.#showState();
  }

  // Frames of a scan that is being recorded
  #setGrowth({ frames, count, state, problem }) {
    const [some, all] = [frames, count].map((number) => number.toLocaleString("en"));
    const text = frames < count ? `${some} of ${all} frames have arrived` : `all ${all} frames have arrived`;
    this.growth.textContent = [text, problem || state].filter(Boolean).join("; ");
    this.growth.classList.toggle("wrong", Boolean(problem));
  }

  #setPicture(plot, kind, head, data) {
    plot.set(head, valuesOf(head, data));
    const percent = 100 * head.share;
    plot.note.textContent = head.exact ? "" : percent ? `${percent < 1 ? percent.toPrecision(1) : Math.floor(percent)} % of frames` : "has not arrived yet";
    plot.note.classList.toggle("partial", !head.exact);
    plot.root.dataset.exact = head.exact;
    plot.root.dataset.pictures = Number(plot.root.dataset.pictures ?? 0) + 1;
    if (head.code !== undefined) this.code.textContent = head.code;
    this.#answered([kind], head.id);
  }

  #answered(kinds, id) {
    for (const kind of kinds) if (!this.waiting[kind] || id >= this.waiting[kind].id) this.waiting = { ...this.waiting, [kind]: null };
    this.#flush();
  }

  // What is asked for: the next state, once the answer to the one before is there

  #ask(...kinds) {
    this.wanted = { ...this.wanted };
    for (const kind of kinds) this.wanted[kind] = true;
    this.#flush();
    this.#showState();
  }

  #flush() {
    const now = performance.now(), kinds = ["image", "frame"].filter((kind) => this.wanted?.[kind] && (kind === "frame" || this.hasScan));
    const waits = kinds.some((kind) => this.waiting[kind] && now - this.waiting[kind].since < PATIENCE);
    clearTimeout(this.timer);
    this.root.ariaBusy = String(kinds.length > 0 || this.waiting.image !== null || this.waiting.frame !== null);
    if (!kinds.length) return;
    if (waits) {
      this.timer = setTimeout(() => this.#flush(), PATIENCE);
      return;
    }
    const id = ++this.number;
    this.wanted = { image: null, frame: null };
    this.waiting = { ...this.waiting };
    for (const kind of kinds) this.waiting[kind] = { id, since: now };
    this.root.ariaBusy = "true";
    this.send({ type: "show", id, ...this.state });
  }

  // Tools

  #fillTools() {
    const set = (name, value) => {
      const { detector } = this.state;
      detector[name] = value;
      if (name === "shape" && value === "ring" && detector.inner >= detector.radius) detector.inner = detector.radius / 2;
      this.#ask("image");
    };
    this.shape = choice("detector", ["disk", "ring", "rectangle", "point", "all"], "disk", (value) => set("shape", value));
    this.signal = choice("signal", ["sum", "center of mass", "quadrants"], "sum", (value) => set("signal", value));
    const input = (label, read, write) => {
      const field = make("input", { type: "number", step: "any", onchange: () => {
        const number = Number(field.value);
        if (!this.state || field.value === "" || !Number.isFinite(number)) return this.#showState();
        write(number);
        this.#ask("image");
      } });
      return { label: make("label", {}, label, field), field, read };
    };
    const axis = (k) => this.frame.axes[k];
    const detector = () => this.state.detector;
    const size = (k) => Math.abs(axis(k).scale);
    this.fields = {
      y: input("y", () => placeOf(axis(0), detector().center[0]), (value) => { detector().center[0] = pixelOf(axis(0), value); }),
      x: input("x", () => placeOf(axis(-1 + this.frame.axes.length), detector().center.at(-1)), (value) => { detector().center[detector().center.length - 1] = pixelOf(this.frame.axes.at(-1), value); }),
      radius: input("radius", () => detector().radius * Math.abs(this.frame.axes.at(-1).scale), (value) => { detector().radius = Math.abs(value) / Math.abs(this.frame.axes.at(-1).scale); }),
      inner: input("inner", () => detector().inner * Math.abs(this.frame.axes.at(-1).scale), (value) => { detector().inner = Math.abs(value) / Math.abs(this.frame.axes.at(-1).scale); }),
      height: input("height", () => detector().size[0] * size(0), (value) => { detector().size[0] = Math.abs(value) / size(0); }),
      width: input("width", () => detector().size.at(-1) * Math.abs(this.frame.axes.at(-1).scale), (value) => { detector().size[detector().size.length - 1] = Math.abs(value) / Math.abs(this.frame.axes.at(-1).scale); }),
    };
    const known = make("input", { type: "text", placeholder: "20 mrad", title: "the size of the radius: calibrates the axes, which then count from the centre", onchange: () => {
      if (known.value.trim()) this.send({ type: "calibrate", size: known.value.trim() });
      known.value = "";
    } });
    this.known = make("label", {}, "radius is", known);
    this.frame.controls.append(this.shape, this.signal, ...Object.values(this.fields).map((field) => field.label), this.known);
    const tool = (name, title) => {
      const button = make("button", { textContent: name, title, onclick: () => {
        this.tool = name;
        if (name === "position" && this.state?.region) {
          this.state.region = null;
          this.#ask("frame");
        }
        this.#showState();
      } });
      return button;
    };
    this.toolButtons = { position: tool("position", "drag the position whose frame is shown"), region: tool("region", "drag a region: the mean of its frames is shown") };
    this.place = make("span", { className: "subtitle" });
    this.scan.controls.append(...Object.values(this.toolButtons), this.place);
  }

  #fillSliders() {
    this.sliders.replaceChildren();
    this.sliders.hidden = !this.scene.sliders.length;
    this.scene.sliders.forEach((place, k) => {
      const axis = this.scene.axes[place];
      const text = (at) => axis.labels[at] ?? withUnits(axis, at);
      const tint = () => { if (axis.colours.length) this.frame.tint = axis.colours[this.state.sliders[k]] ?? ""; };
      const move = (at) => {
        this.state.sliders[k] = at;
        tint();
        this.#ask("image", "frame");
      };
      tint();
      if (place === this.scene.channels) {
        const names = [...Array.from({ length: axis.size }, (_, at) => text(at)), "together"];
        const select = make("select", { onchange: () => move(Number(select.value)) },
          ...names.map((name, at) => make("option", { value: at, textContent: name })));
        select.value = this.state.sliders[k];
        this.sliders.append(make("label", {}, axis.name, select));
        return;
      }
      const shown = make("output", { textContent: text(this.state.sliders[k]) });
      const slider = make("input", { type: "range", min: 0, max: axis.size - 1, step: 1, value: this.state.sliders[k], oninput: () => {
        shown.textContent = text(Number(slider.value));
        move(Number(slider.value));
      } });
      slider.value = this.state.sliders[k];
      this.sliders.append(make("label", {}, axis.name, slider, shown));
    });
  }

  #showState() {
    const { state } = this;
    if (!state) return;
    const { detector } = state, flat = this.frame.axes.length === 2;
    const show = { y: flat && detector.shape !== "all", x: detector.shape !== "all", radius: ["disk", "ring"].includes(detector.shape),
      inner: detector.shape === "ring", height: flat && detector.shape === "rectangle", width: detector.shape === "rectangle" };
    for (const [name, { label, field, read }] of Object.entries(this.fields)) {
      label.hidden = !show[name];
      if (!label.hidden && document.activeElement !== field) field.value = shortest(read(), Math.min(...this.frame.axes.map((axis) => Math.abs(axis.scale))) / 100);
    }
    this.known.hidden = !show.radius || !flat;
    this.frame.controls.hidden = !this.hasScan;
    const select = this.shape.querySelector("select");
    select.options[2].textContent = flat ? "rectangle" : "range";
    for (const option of select.options) option.hidden = option.disabled = !flat && ["disk", "ring"].includes(option.value);
    select.value = detector.shape;
    this.signal.querySelector("select").value = detector.signal;
    const together = this.scene.sliders.some((place, k) => place === this.scene.channels && state.sliders[k] === this.scene.axes[place].size);
    this.signal.hidden = !flat || detector.shape === "point" || together;
    for (const [name, button] of Object.entries(this.toolButtons)) button.ariaPressed = String(name === this.tool);
    const at = (axis, pixel) => `${axis.name} ${withUnits(axis, pixel)}`;
    this.place.textContent = state.region
      ? state.region.map(([low, high], k) => `${at(this.scan.axes[k], low)} to ${readout(this.scan.axes[k], high - 1)}`).join(", ")
      : this.scan.axes.map((axis, k) => at(axis, state.position[k])).join(", ");
    this.scan.draw();
    this.frame.draw();
  }

  #scanTitle() {
    const { detector } = this.state ?? {};
    if (!detector) return "scan";
    if (detector.shape === "point") return "scan: one pixel of each frame";
    const shape = detector.shape === "all" ? "whole frame" : this.frame.isLine ? "range" : detector.shape;
    return `scan: ${detector.signal} ${this.frame.isLine ? "of" : "under"} the ${shape}`;
  }

  #scanUnits() {
    const { detector } = this.state ?? {};
    if (detector?.shape !== "point" && detector?.signal === "center of mass") return "px";
    return detector?.shape !== "point" && detector?.signal === "quadrants" ? "" : this.scene?.units ?? "";
  }

  #frameTitle() {
    const noun = this.frame.isLine ? "spectrum" : "frame";
    return this.state?.region ? `mean ${noun} of the region` : noun;
  }

  // The scan: a position, or a region

  #drawScan(c, plot) {
    const { state } = this;
    if (!state) return;
    const { area } = plot.layout;
    c.lineWidth = 1.5;
    if (state.region) {
      const x = state.region.at(-1), y = plot.isLine ? [0, 1] : state.region[0];
      const [left, top] = plot.toScreen(x[0] - 0.5, y[0] - 0.5), [right, bottom] = plot.toScreen(x[1] - 0.5, y[1] - 0.5);
      const box = plot.isLine ? [left, area.y, right - left, area.h] : [left, top, right - left, bottom - top];
      twice(c, MARK, () => c.strokeRect(...box));
      return;
    }
    const [left, top] = plot.toScreen(state.position.at(-1), plot.isLine ? 0 : state.position[0]);
    twice(c, MARK, () => {
      c.beginPath();
      for (const [from, to] of [[area.x, left - 6], [left + 6, area.x + area.w]]) if (!plot.isLine) { c.moveTo(from, top); c.lineTo(to, top); }
      for (const [from, to] of plot.isLine ? [[area.y, area.y + area.h]] : [[area.y, top - 6], [top + 6, area.y + area.h]]) { c.moveTo(left, from); c.lineTo(left, to); }
      c.stroke();
    });
  }

  #positionAt(x, y) {
    const sizes = this.scan.axes.map((axis) => axis.size), at = sizes.length === 1 ? [x] : [y, x];
    return at.map((place, k) => clamp(Math.round(place), 0, sizes[k] - 1));
  }

  #pressScan(x, y) {
    if (!this.state) return null;
    if (this.tool === "position") {
      const move = (x, y) => {
        const position = this.#positionAt(x, y);
        if (String(position) === String(this.state.position) && !this.state.region) return;
        this.state.position = position;
        this.state.region = null;
        this.#ask("frame");
      };
      move(x, y);
      return move;
    }
    const first = this.#positionAt(x, y);
    const move = (x, y) => {
      this.state.region = this.#positionAt(x, y).map((place, k) => [Math.min(place, first[k]), Math.max(place, first[k]) + 1]);
      this.#ask("frame");
    };
    move(x, y);
    return move;
  }

  #stepScan(x, y) {
    const [dx, dy] = [x, y].map((step) => Math.sign(step) * Math.max(1, Math.abs(Math.round(step))));
    const { state } = this, along = this.scan.isLine ? [dx || -dy] : [dy, dx];
    if (state.region) state.region = state.region.map(([low, high], k) => {
      const step = clamp(along[k], -low, this.scan.axes[k].size - high);
      return [low + step, high + step];
    });
    else state.position = state.position.map((place, k) => clamp(place + along[k], 0, this.scan.axes[k].size - 1));
    this.#ask("frame");
  }

  // The frame: a detector

  #parts() {
    const { detector } = this.state, [y, x] = this.frame.isLine ? [0, detector.center[0]] : detector.center;
    const [height, width] = this.frame.isLine ? [1, detector.size[0]] : detector.size, axes = this.frame.axes;
    const alike = !this.frame.isLine && axes[0].units === axes[1].units && axes[0].units;
    return { ...detector, y, x, height, width, aspect: alike ? Math.abs(axes[1].scale / axes[0].scale) : 1 };
  }

  #drawFrame(c, plot) {
    if (!this.state || !this.hasScan) return;
    const { shape, signal, y, x, radius, inner, height, width, aspect } = this.#parts(), { area, kx, ky } = plot.layout;
    const [left, top] = plot.toScreen(x, y);
    c.lineWidth = 1.5;
    const ellipse = (size) => { c.beginPath(); c.ellipse(left, top, size * kx, size * aspect * ky, 0, 0, 2 * Math.PI); c.stroke(); };
    const cross = (size) => { c.beginPath(); c.moveTo(left - size, top); c.lineTo(left + size, top); c.moveTo(left, top - size); c.lineTo(left, top + size); c.stroke(); };
    if (plot.isLine) {
      const ends = [x - width / 2, x + width / 2].map((at) => plot.toScreen(at, 0)[0]);
      if (shape === "rectangle") {
        c.fillStyle = "rgba(58, 209, 245, 0.22)";
        c.fillRect(ends[0], area.y, ends[1] - ends[0], area.h);
      }
      const lines = shape === "rectangle" ? ends : shape === "point" ? [left] : [];
      c.strokeStyle = "#149dbf";
      for (const at of lines) { c.beginPath(); c.moveTo(at, area.y); c.lineTo(at, area.y + area.h); c.stroke(); }
      return;
    }
    twice(c, DETECTOR, () => {
      if (shape === "disk" || shape === "ring") ellipse(radius);
      if (shape === "ring") ellipse(inner);
      if (shape === "rectangle") c.strokeRect(left - (width * kx) / 2, top - (height * ky) / 2, width * kx, height * ky);
      if (shape === "point") c.strokeRect(plot.toScreen(Math.round(x) - 0.5, 0)[0], plot.toScreen(0, Math.round(y) - 0.5)[1], kx, ky);
      if (shape !== "all") cross(shape === "point" ? 12 : 5);
      if (signal === "quadrants" && shape !== "point") {
        c.setLineDash([5, 4]);
        const [wide, high] = shape === "all" ? [area.w + area.x + 4000, area.h + 4000] : shape === "rectangle" ? [(width * kx) / 2, (height * ky) / 2] : [radius * kx, radius * aspect * ky];
        c.beginPath();
        c.moveTo(left - wide, top); c.lineTo(left + wide, top); c.moveTo(left, top - high); c.lineTo(left, top + high);
        c.stroke();
        c.setLineDash([]);
      }
    });
  }

  // What of the detector is at a place: an edge, the inside, or nothing
  #hit(x, y, plot) {
    const part = this.#parts(), { kx, ky } = plot.layout;
    if (part.shape === "disk" || part.shape === "ring") {
      const distance = Math.hypot(x - part.x, (y - part.y) / part.aspect);
      if (Math.abs(distance - part.radius) * kx < NEAR && part.radius * kx > NEAR) return "radius";
      if (part.shape === "ring" && Math.abs(distance - part.inner) * kx < NEAR) return "inner";
      return distance < part.radius ? "inside" : null;
    }
    if (part.shape === "rectangle") {
      const [dx, dy] = [Math.abs(x - part.x), Math.abs(y - part.y)];
      const nearX = Math.abs(dx - part.width / 2) * kx < NEAR, nearY = !plot.isLine && Math.abs(dy - part.height / 2) * ky < NEAR;
      const inX = dx < part.width / 2 + NEAR / kx, inY = plot.isLine || dy < part.height / 2 + NEAR / ky;
      if (inX && inY && nearX && nearY) return "corner";
      if (nearX && inY) return "width";
      if (nearY && inX) return "height";
      return inX && inY ? "inside" : null;
    }
    return null;
  }

  #cursor(x, y, plot) {
    if (!this.state || !this.hasScan) return "default";
    const cursors = { radius: "nesw-resize", inner: "nesw-resize", corner: "nwse-resize", width: "ew-resize", height: "ns-resize", inside: "move" };
    return cursors[this.#hit(x, y, plot)] ?? "crosshair";
  }

  #pressFrame(x, y, plot) {
    if (!this.state || !this.hasScan) return null;
    const { detector } = this.state;
    if (detector.shape === "all" && detector.signal !== "quadrants") return null;
    const hit = this.#hit(x, y, plot), part = this.#parts(), from = [part.x - x, part.y - y];
    const sizes = { width: detector.size.length - 1, height: 0 };
    const ends = { x: part.x + (x > part.x ? -1 : 1) * part.width / 2, y: part.y + (y > part.y ? -1 : 1) * part.height / 2 };
    const resize = (name, at, fixed) => {
      const k = sizes[name];
      detector.size[k] = Math.max(1, Math.abs(at - fixed));
      detector.center[k] = (at + fixed) / 2;
    };
    const move = (x, y) => {
      const distance = Math.hypot(x - part.x, (y - part.y) / part.aspect);
      if (hit === "radius") detector.radius = Math.max(0.5, distance);
      else if (hit === "inner") detector.inner = clamp(distance, 0, detector.radius);
      else if (hit === "width" || hit === "height" || hit === "corner") {
        if (hit !== "height") resize("width", x, ends.x);
        if (hit !== "width") resize("height", y, ends.y);
      } else this.#center(x + (hit ? from[0] : 0), y + (hit ? from[1] : 0));
      this.#ask("image");
    };
    if (!hit) move(x, y);
    return move;
  }

  #center(x, y) {
    const { detector } = this.state, at = this.frame.isLine ? [x] : [y, x];
    const rounded = detector.shape === "point" ? at.map(Math.round) : at;
    detector.center = rounded.map((place, k) => clamp(place, -0.5, this.frame.axes[k].size - 0.5));
  }

  #stepFrame(x, y) {
    if (!this.state || !this.hasScan) return;
    const part = this.#parts();
    this.#center(part.x + x, part.y + y);
    this.#ask("image");
  }

  #keyFrame(key) {
    if (!this.state || !this.hasScan) return false;
    const { detector } = this.state, by = { "+": 1, "=": 1, "-": -1, "[": -1, "]": 1 }[key];
    if (!by) return false;
    if (key === "[" || key === "]") detector.inner = clamp(detector.inner + by, 0, detector.radius);
    else if (detector.shape === "rectangle") detector.size = detector.size.map((length) => Math.max(1, length + 2 * by));
    else detector.radius = Math.max(0.5, detector.radius + by);
    this.#ask("image");
    return true;
  }

  // Out again

  async #copy(button) {
    try {
      await navigator.clipboard.writeText(this.code.textContent);
    } catch {
      getSelection().selectAllChildren(this.code);
      document.execCommand("copy");
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  }

  #savePng() {
    const shown = [this.scan, this.frame].filter((plot) => !plot.root.hidden).map((plot) => plot.canvas);
    const head = 34 * Math.max(1, window.devicePixelRatio || 1);
    const whole = make("canvas", { width: shown.reduce((sum, one) => sum + one.width, 0), height: Math.max(...shown.map((one) => one.height)) + head });
    const c = whole.getContext("2d"), style = getComputedStyle(this.root);
    c.fillStyle = style.getPropertyValue("--ground").trim();
    c.fillRect(0, 0, whole.width, whole.height);
    c.fillStyle = style.getPropertyValue("--ink").trim();
    c.font = `${head / 2.4}px system-ui, sans-serif`;
    c.fillText(`${this.scene.title}   ${this.#scanTitle()}`, head / 3, head / 1.6);
    let left = 0;
    for (const canvas of shown) {
      c.drawImage(canvas, left, head);
      left += canvas.width;
    }
    whole.toBlob((blob) => download("explore.png", blob), "image/png");
  }
}

function valuesOf(head, data) {
  const Kind = { u1: Uint8Array, u2: Uint16Array, f4: Float32Array }[head.dtype];
  return new Kind(data.buffer, data.byteOffset, data.byteLength / Kind.BYTES_PER_ELEMENT);
}

// Lines on pixels, which are seen on dark and on light ones
function twice(c, colour, draw) {
  const width = c.lineWidth;
  c.strokeStyle = DARK;
  c.lineWidth = width + 2;
  draw();
  c.strokeStyle = colour;
  c.lineWidth = width;
  draw();
}

// Ways to Python: a socket of the page, or the messages of a widget

export function connect(element) {
  const socket = new WebSocket(new URL("socket", location.href.replace(/^http/, "ws")));
  socket.binaryType = "arraybuffer";
  const page = new Page(element, (message) => { if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message)); });
  socket.onopen = () => page.send({ type: "begin" });
  socket.onclose = () => page.closed();
  socket.onmessage = ({ data }) => {
    const length = new DataView(data).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
    page.receive(head, new Uint8Array(data, 4 + length));
  };
  return page;
}

export default {
  render({ model, el }) {
    const page = new Page(el, (message) => model.send(message));
    const receive = (head, buffers) => {
      const [data] = buffers ?? [];
      const view = data ? new Uint8Array(data.buffer ?? data, data.byteOffset ?? 0, data.byteLength) : null;
      page.receive(head, view && view.byteOffset % 8 ? view.slice() : view);
    };
    model.on("msg:custom", receive);
    page.send({ type: "begin" });
    return () => {
      model.off("msg:custom", receive);
      page.send({ type: "rest" });
    };
  },
};
