// What is drawn: a picture or rectangles, nodes by level, what a search found. Fetched for a window, drawn for any.

const MARGIN = 0.2; // fetched beyond what is seen, so that a little movement shows no edge
const CELLS_MAX = 1024;

async function fetchWindow(path, box, more, signal) {
  const [x0, y0, x1, y1] = box;
  const query = new URLSearchParams({ x0, y0, x1, y1, ...more });
  const response = await fetch(`${path}?${query}`, { signal });
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  const facts = JSON.parse(response.headers.get("X-Facts"));
  return { box, facts, body: await response.arrayBuffer() };
}

function ramp(stops) {
  const table = new Uint8ClampedArray(4 * 256);
  for (let shade = 1; shade < 256; shade++) {
    const at = ((shade - 1) / 254) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    for (let part = 0; part < 4; part++) {
      table[4 * shade + part] = stops[low][part] + (stops[low + 1][part] - stops[low][part]) * (at - low);
    }
  }
  return table;
}

export const THEMES = {
  dark: {
    ramp: ramp([[36, 92, 140, 150], [39, 142, 165, 215], [94, 211, 188, 240], [214, 240, 178, 255], [255, 250, 225, 255]]),
    entry: "rgba(94, 211, 188, .95)", entryFill: "rgba(94, 211, 188, .14)",
    found: "#ff6b9d", foundFill: "rgba(255, 107, 157, .22)",
    foundRamp: ramp([[255, 107, 157, 235], [255, 150, 190, 255], [255, 225, 238, 255]]), grid: "rgba(148, 170, 210, .10)",
    levels: ["#ff7b72", "#ffa657", "#ffd866", "#a5e075", "#6cb6ff", "#b392f0"],
  },
  light: {
    ramp: ramp([[150, 190, 214, 170], [86, 150, 190, 225], [30, 105, 155, 245], [12, 66, 110, 255], [6, 34, 66, 255]]),
    entry: "rgba(12, 96, 140, .95)", entryFill: "rgba(12, 96, 140, .10)",
    found: "#c2185b", foundFill: "rgba(194, 24, 91, .18)",
    foundRamp: ramp([[216, 60, 120, 235], [194, 24, 91, 255], [120, 8, 54, 255]]), grid: "rgba(30, 48, 80, .09)",
    levels: ["#c62828", "#c05600", "#8a6d00", "#2e7d32", "#1565c0", "#6a3fb5"],
  },
};

export class Layers {
  constructor(view, drawn) {
    this.view = view;
    this.drawn = drawn; // called after fetched things were drawn
    this.theme = THEMES.dark;
    this.levels = new Map(); // level -> {box, facts, body} or null while it is fetched
    this.colours = new Map(); // level -> its place from the root
    this.content = null;
    this.image = this.foundImage = null;
    this.found = null; // the box that was searched
    this.selection = null;
    this.pending = null;
  }

  setTheme(theme) {
    this.theme = theme;
    this.image = this.foundImage = null;
  }

  async refresh() {
    this.pending?.abort();
    const pending = (this.pending = new AbortController());
    const view = this.view;
    const box = view.window(MARGIN);
    const side = (pixels) => Math.min(CELLS_MAX, Math.round(pixels * (1 + MARGIN)));
    const size = { width: side(view.width), height: side(view.height) };
    const jobs = [
      fetchWindow("/api/view", box, size, pending.signal).then((content) => {
        this.content = content;
        this.image = this.foundImage = null;
      }),
      ...[...this.levels.keys()].map((level) =>
        fetchWindow("/api/level", box, { level }, pending.signal).then((content) => {
          if (this.levels.has(level)) this.levels.set(level, content);
        })),
    ];
    const results = await Promise.allSettled(jobs);
    if (pending.signal.aborted) return false;
    const failed = results.find((result) => result.status === "rejected");
    if (failed) throw failed.reason;
    return true;
  }

  draw() {
    const { view } = this;
    const pen = view.canvas.getContext("2d");
    pen.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
    pen.clearRect(0, 0, view.width, view.height);
    this.drawGrid(pen);
    if (this.content?.facts.kind === "picture") this.drawPicture(pen, (this.image ??= this.makeImage(this.theme.ramp)));
    else if (this.content) this.drawBoxes(pen, this.content, this.theme.entry, this.theme.entryFill, 1);
    const shown = [...this.levels].sort(([a], [b]) => a - b);
    for (const [level, content] of shown) {
      const colour = this.colourOf(level);
      const fromRoot = this.colours.get(level) ?? 0;
      if (!content) continue;
      pen.globalAlpha = Math.max(0.35, Math.min(0.95, 6 / Math.sqrt(content.facts.total))); // many stand back
      this.drawBoxes(pen, content, colour, null, Math.max(0.8, 2 - 0.4 * fromRoot));
      pen.globalAlpha = 1;
    }
    this.drawFound(pen);
  }

  colourOf(level) {
    const colours = this.theme.levels;
    return colours[Math.min(this.colours.get(level) ?? 0, colours.length - 1)];
  }

  drawGrid(pen) {
    const [x0, y0, x1, y1] = this.view.window();
    const step = 10 ** Math.floor(Math.log10(160 / this.view.scale));
    const wide = [1, 2, 5, 10].map((n) => n * step).find((n) => n * this.view.scale >= 90);
    pen.strokeStyle = this.theme.grid;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let x = Math.ceil(x0 / wide) * wide; x <= x1; x += wide) {
      const [left] = this.view.toScreen(x, 0);
      pen.moveTo(Math.round(left) + 0.5, 0);
      pen.lineTo(Math.round(left) + 0.5, this.view.height);
      if (x + wide === x) break;
    }
    for (let y = Math.ceil(y0 / wide) * wide; y <= y1; y += wide) {
      const [, top] = this.view.toScreen(0, y);
      pen.moveTo(0, Math.round(top) + 0.5);
      pen.lineTo(this.view.width, Math.round(top) + 0.5);
      if (y + wide === y) break;
    }
    pen.stroke();
  }

  drawPicture(pen, image) {
    const { box } = this.content;
    const [left, bottom] = this.view.toScreen(box[0], box[1]);
    const [right, top] = this.view.toScreen(box[2], box[3]);
    pen.drawImage(image, left, top, right - left, bottom - top);
  }

  makeImage(ramp) {
    const { width, height } = this.content.facts;
    const shades = new Uint8Array(this.content.body);
    const canvas = document.createElement("canvas");
    canvas.width = width;
    canvas.height = height;
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(width, height);
    const colours = new Uint32Array(ramp.buffer);
    const pixels = new Uint32Array(image.data.buffer);
    for (let row = 0; row < height; row++) {
      const from = (height - 1 - row) * width; // row 0 is the lowest
      for (let column = 0; column < width; column++) pixels[row * width + column] = colours[shades[from + column]];
    }
    pen.putImageData(image, 0, 0);
    return canvas;
  }

  drawBoxes(pen, { facts, body }, stroke, fill, width) {
    const sides = new Float64Array(body, 0, 4 * facts.total);
    this.trace(pen, sides);
    if (fill) {
      pen.fillStyle = fill;
      pen.fill();
    }
    pen.strokeStyle = stroke;
    pen.lineWidth = width;
    pen.stroke();
  }

  // Make a path of the boxes that are seen, and that meet another one if it is given.
  trace(pen, sides, box = [-Infinity, -Infinity, Infinity, Infinity]) {
    pen.beginPath();
    for (let i = 0; i < sides.length; i += 4) {
      if (sides[i] > box[2] || sides[i + 2] < box[0] || sides[i + 1] > box[3] || sides[i + 3] < box[1]) continue;
      const [left, bottom] = this.view.toScreen(sides[i], sides[i + 1]);
      const [right, top] = this.view.toScreen(sides[i + 2], sides[i + 3]);
      if (right < -4 || left > this.view.width + 4 || bottom < -4 || top > this.view.height + 4) continue;
      pen.rect(left, top, Math.max(right - left, 1), Math.max(bottom - top, 1));
    }
  }

  drawFound(pen) {
    if (this.found && this.content?.facts.kind === "picture") {
      pen.save();
      this.trace(pen, this.found);
      pen.clip();
      this.drawPicture(pen, (this.foundImage ??= this.makeImage(this.theme.foundRamp)));
      pen.restore();
    } else if (this.found && this.content) {
      this.trace(pen, new Float64Array(this.content.body, 0, 4 * this.content.facts.total), this.found);
      pen.fillStyle = this.theme.foundFill;
      pen.strokeStyle = this.theme.found;
      pen.lineWidth = 1.4;
      pen.fill();
      pen.stroke();
    }
    const box = this.selection ?? this.found;
    if (!box) return;
    this.trace(pen, box);
    pen.save();
    pen.fillStyle = this.theme.foundFill;
    pen.globalAlpha = 0.45;
    pen.fill();
    pen.globalAlpha = 1;
    pen.setLineDash([6, 4]);
    pen.strokeStyle = this.theme.found;
    pen.lineWidth = 1.6;
    pen.stroke();
    pen.restore();
  }
}
