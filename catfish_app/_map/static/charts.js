// Live charts from server-sent events: lines and a strip in SVG, whose colours are the page's.

const SHOWN = 120;
const NAMESPACE = "http://www.w3.org/2000/svg";

function figure(id, classes) {
  const element = document.getElementById(id);
  const svg = document.createElementNS(NAMESPACE, "svg");
  svg.setAttribute("viewBox", `0 0 ${SHOWN - 1} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const paths = classes.map((name) => {
    const path = document.createElementNS(NAMESPACE, "path");
    path.setAttribute("class", name);
    svg.append(path);
    return path;
  });
  element.append(svg);
  return { element, svg, paths, value: element.querySelector("b") };
}

const round = (number) => number.toFixed(2);

// Values are shares of the height; the newest is at the right edge; null is a gap.
function line(values) {
  let path = "";
  let open = false;
  values.forEach((value, index) => {
    if (value === null) {
      open = false;
      return;
    }
    const x = SHOWN - values.length + index;
    path += `${open ? "L" : "M"}${x} ${round(98 - 94 * Math.max(0, Math.min(1, value)))}`;
    open = true;
  });
  return path;
}

function area(values) {
  if (values.length < 2) return "";
  const known = values.map((value) => value ?? 0);
  return `${line(known)}L${SHOWN - 1} 100L${SHOWN - known.length} 100Z`;
}

export function rate(value) {
  if (value < 10) return `${value.toFixed(1)}/s`;
  if (value < 10000) return `${Math.round(value).toLocaleString("en")}/s`;
  return value < 1e6 ? `${(value / 1e3).toFixed(0)} K/s` : `${(value / 1e6).toFixed(2)} M/s`;
}

export function duration(us) {
  if (us === null || us === undefined) return "–";
  if (us < 100) return `${us.toFixed(1)} µs`;
  return us < 1000 ? `${Math.round(us)} µs` : `${(us / 1000).toFixed(1)} ms`;
}

export class Charts {
  constructor() {
    this.samples = [];
    this.rate = figure("chart-rate", ["area", "line"]);
    this.latency = figure("chart-latency", ["faint", "line"]);
    this.busy = figure("chart-busy", ["area", "line"]);
    this.path = figure("chart-path", ["band-server", "band-client"]);
  }

  add(samples) {
    this.samples = [...this.samples, ...samples].slice(-SHOWN);
    this.draw();
  }

  draw() {
    const { samples } = this;
    if (!samples.length) return;
    const last = samples[samples.length - 1];
    const rates = samples.map((sample) => sample.rate);
    const most = Math.max(...rates, 1);
    this.show(this.rate, [area(rates.map((n) => n / most)), line(rates.map((n) => n / most))],
      rate(last.rate), `requests a second, at most ${rate(most)}`);
    const known = samples.map((sample) => sample.max_us).filter((us) => us !== null);
    const low = Math.log(0.5);
    const top = Math.log(Math.max(...known, 10) * 1.2);
    const level = (us) => (us === null ? null : (Math.log(Math.max(us, 0.5)) - low) / (top - low));
    this.show(this.latency, [line(samples.map((s) => level(s.max_us))), line(samples.map((s) => level(s.p50_us)))],
      duration(last.p50_us), `median; the longest of the last second ${duration(last.max_us)}`);
    const busy = samples.map((sample) => sample.busy_share);
    this.show(this.busy, [area(busy), line(busy)], `${Math.round(100 * last.busy_share)} %`, "share of time that the workers compute");
    this.drawPaths();
  }

  drawPaths() {
    const bands = { server: "", client: "" };
    this.samples.forEach((sample, index) => {
      const x = SHOWN - this.samples.length + index - 1;
      const total = Object.values(sample.paths).reduce((sum, n) => sum + n, 0);
      let from = 100;
      for (const name of ["server", "client"]) {
        const height = total ? (100 * (sample.paths[name] ?? 0)) / total : 0;
        if (height) bands[name] += `M${x} ${round(from)}h1v${round(-height)}h-1Z`;
        from -= height;
      }
    });
    const paths = Object.keys(this.samples[this.samples.length - 1].paths).join(" and ") || "nobody";
    this.show(this.path, [bands.server, bands.client], null, `the last searches were served by: ${paths}`);
  }

  show(chart, paths, value, text) {
    paths.forEach((path, index) => chart.paths[index].setAttribute("d", path));
    if (chart.value) chart.value.textContent = value;
    chart.svg.setAttribute("aria-label", value === null ? text : `${value}, ${text}`);
  }
}
