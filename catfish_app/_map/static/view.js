// The part of the plane that is seen, and the gestures that change it. y grows upwards.

export class View {
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.x = 0;
    this.y = 0;
    this.scale = 1; // pixels a unit
    this.home = [-1, -1, 1, 1];
    this.resize();
  }

  resize() {
    this.width = Math.max(1, this.canvas.clientWidth);
    this.height = Math.max(1, this.canvas.clientHeight);
    this.ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
  }

  // What the cards leave free of the map.
  get free() {
    return this.width > 860 ? { left: 300, right: 332, top: 24, bottom: 24 } : { left: 12, right: 12, top: 90, bottom: this.height * 0.5 };
  }

  fit(box = this.home) {
    const [x0, y0, x1, y1] = box;
    const free = this.free;
    const width = Math.max(50, this.width - free.left - free.right);
    const height = Math.max(50, this.height - free.top - free.bottom);
    const largest = Math.max(Math.abs(x0), Math.abs(x1), Math.abs(y0), Math.abs(y1), 1e-9);
    const least = largest * 1e-9;
    this.scale = Math.min(width / Math.max(x1 - x0, least), height / Math.max(y1 - y0, least)) * 0.96;
    this.x = (x0 + x1) / 2 - (free.left - free.right) / 2 / this.scale;
    this.y = (y0 + y1) / 2 + (free.top - free.bottom) / 2 / this.scale;
    this.changed();
  }

  toScreen(x, y) {
    return [(x - this.x) * this.scale + this.width / 2, this.height / 2 - (y - this.y) * this.scale];
  }

  toWorld(left, top) {
    return [(left - this.width / 2) / this.scale + this.x, (this.height / 2 - top) / this.scale + this.y];
  }

  window(margin = 0) {
    const halfWidth = (this.width / 2 / this.scale) * (1 + margin);
    const halfHeight = (this.height / 2 / this.scale) * (1 + margin);
    return [this.x - halfWidth, this.y - halfHeight, this.x + halfWidth, this.y + halfHeight];
  }

  moveBy(left, top) {
    this.x -= left / this.scale;
    this.y += top / this.scale;
    this.changed();
  }

  zoomBy(factor, left = this.width / 2, top = this.height / 2) {
    const [x, y] = this.toWorld(left, top);
    const [x0, y0, x1, y1] = this.home;
    const extent = Math.max(x1 - x0, y1 - y0, 1e-300);
    const scale = this.scale * factor;
    if (scale * extent < 20 || scale * extent > 1e12) return;
    this.scale = scale;
    this.x = x - (left - this.width / 2) / scale;
    this.y = y + (top - this.height / 2) / scale;
    this.changed();
  }
}

// Calls of `actions`: hover(x, y), box(corners or null), search(box), drawing() tells whether a drag draws.
export function listen(view, actions) {
  const canvas = view.canvas;
  const pointers = new Map();
  let corner = null;

  const place = (event) => {
    const frame = canvas.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  };
  const boxTo = (at) => {
    const [ax, ay] = view.toWorld(...corner);
    const [bx, by] = view.toWorld(...at);
    return [Math.min(ax, bx), Math.min(ay, by), Math.max(ax, bx), Math.max(ay, by)];
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, place(event));
    corner = pointers.size === 1 && (event.shiftKey || actions.drawing()) ? place(event) : null;
    if (pointers.size === 2) actions.box(null);
    canvas.classList.toggle("moving", corner === null);
  });

  canvas.addEventListener("pointermove", (event) => {
    const at = place(event);
    actions.hover(...view.toWorld(...at));
    const before = pointers.get(event.pointerId);
    if (!before) return;
    if (pointers.size === 2) {
      const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, where]) => where);
      const distance = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]) || 1;
      view.zoomBy(distance(at, other) / distance(before, other), (at[0] + other[0]) / 2, (at[1] + other[1]) / 2);
    } else if (corner) {
      actions.box(boxTo(at));
    } else {
      view.moveBy(at[0] - before[0], at[1] - before[1]);
    }
    pointers.set(event.pointerId, at);
  });

  const release = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    canvas.classList.remove("moving");
    if (corner && event.type === "pointerup") {
      const at = place(event);
      const drawn = Math.hypot(at[0] - corner[0], at[1] - corner[1]) > 3;
      if (drawn) actions.search(boxTo(at));
      else actions.box(null);
    }
    corner = null;
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    view.zoomBy(Math.exp(-Math.max(-300, Math.min(300, event.deltaY * lines)) / 350), ...place(event));
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => view.zoomBy(event.shiftKey ? 0.5 : 2, ...place(event)));

  const keys = {
    ArrowLeft: () => view.moveBy(80, 0),
    ArrowRight: () => view.moveBy(-80, 0),
    ArrowUp: () => view.moveBy(0, 80),
    ArrowDown: () => view.moveBy(0, -80),
    "+": () => view.zoomBy(1.5),
    "=": () => view.zoomBy(1.5),
    "-": () => view.zoomBy(1 / 1.5),
    0: () => view.fit(),
    b: () => actions.search(view.window()),
    Escape: () => actions.clear(),
  };
  canvas.addEventListener("keydown", (event) => {
    const action = keys[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  });
}
