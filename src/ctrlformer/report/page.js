// Draws the charts from the JSON in the page. Names are only ever set as text, never as markup.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const HEIGHT = 250;
const MARGIN = { left: 52, right: 14, top: 12, bottom: 34 };
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const COLOURS = 8;

function element(name, attributes = {}, text = null) {
  const made = name === "svg" || svgNames.has(name)
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}
const svgNames = new Set(["g", "path", "line", "circle", "text", "rect"]);

// A label's look is the same in every chart of one family: colour first, then dashes.
class Looks {
  constructor(labels) {
    this.order = [...new Set(labels)];
    this.hidden = new Set();
  }
  of(label) {
    const index = this.order.indexOf(label);
    return { stroke: `var(--c${index % COLOURS})`, dash: DASHES[Math.floor(index / COLOURS) % DASHES.length] };
  }
}

function ticks(low, high, count) {
  const span = high - low || 1;
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) found.push(value);
  return found;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  return `${+value.toPrecision(3)}`;
}

function frames(value) {
  return value >= 1e3 && value < 1e6 && value % 1e3 === 0 ? `${value / 1e3}k` : short(value);
}

class Chart {
  // `series`: lists x and y, maybe low and high; `fromZero`: whether the axis starts at 0.
  constructor(parent, title, series, looks, options = {}) {
    Object.assign(this, { title, series, looks, options });
    this.marks = options.marks || [];
    this.figure = element("figure", { class: "chart" });
    this.figure.append(element("figcaption", {}, title));
    this.svg = element("svg", { tabindex: "0", role: "img" });
    this.figure.append(this.svg);
    parent.append(this.figure);
    this.place = null;
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.draw();
    // A chart beside it, or another window, changes its width.
    new ResizeObserver(() => { if (this.room() !== this.width) this.draw(); }).observe(this.figure);
  }

  room() {
    return Math.max(280, this.figure.clientWidth - 26);
  }

  get shown() {
    return this.series.filter((one) => !this.looks.hidden.has(one.label) && one.x.length);
  }

  draw() {
    const width = this.room();
    this.width = width;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("aria-label", this.describe());
    this.svg.replaceChildren();
    const shown = this.shown;
    if (!shown.length) {
      this.svg.append(element("text", { x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "nothing shown"));
      return;
    }
    this.scale(shown);
    this.axes();
    const borders = this.options.borders || [];
    borders.forEach((border, i) => this.border(border, i + 1 < borders.length ? this.x(borders[i + 1].x) : this.width));
    for (const mark of this.marks) this.mark(mark);
    for (const one of shown) this.line(one);
  }

  scale(shown) {
    const xs = shown.flatMap((one) => [one.x[0], one.x[one.x.length - 1]]);
    let low = Infinity, high = -Infinity;
    for (const one of shown) for (const list of [one.y, one.low || [], one.high || []])
      for (const value of list) { low = Math.min(low, value); high = Math.max(high, value); }
    for (const { y } of this.marks) high = Math.max(high, y);
    if (this.options.fromZero) low = Math.min(0, low);
    if (high === low) { high += 1; low -= this.options.fromZero ? 0 : 1; }
    const [left, right] = [Math.min(...xs), Math.max(...xs)];
    const across = this.width - MARGIN.left - MARGIN.right, down = HEIGHT - MARGIN.top - MARGIN.bottom;
    this.range = { left, right: right === left ? left + 1 : right, low, high: high + (high - low) * 0.05 };
    this.x = (value) => MARGIN.left + ((value - this.range.left) / (this.range.right - this.range.left)) * across;
    this.y = (value) => MARGIN.top + down - ((value - this.range.low) / (this.range.high - this.range.low)) * down;
  }

  axes() {
    const { left, right, low, high } = this.range;
    for (const value of ticks(low, high, 5)) {
      const y = this.y(value);
      this.svg.append(element("line", { class: "grid", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: y, y2: y }));
      this.svg.append(element("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, short(value)));
    }
    for (const value of ticks(left, right, this.width < 420 ? 3 : 6)) {
      this.svg.append(element("text", { x: this.x(value), y: HEIGHT - 16, "text-anchor": "middle" }, frames(value)));
    }
    this.svg.append(element("text", { x: this.width - MARGIN.right, y: HEIGHT - 2, "text-anchor": "end" }, "frames"));
  }

  // What others reached; its label stands above its line, or below it where another stands above.
  mark({ label, y }) {
    const place = this.y(y);
    const above = this.marks.some((other) => other.y > y && this.y(y) - this.y(other.y) < 16);
    this.svg.append(element("line", { class: "mark", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: place, y2: place }));
    this.svg.append(element("text", { class: "mark-label", x: this.width - MARGIN.right, y: above ? place + 13 : place - 4, "text-anchor": "end" }, `${label}: ${short(y)}`));
  }

  // A stage's beginning; its name as far as there is room before `end`.
  border({ x, label }, end) {
    const place = this.x(x);
    this.svg.append(element("line", { class: "border", x1: place, x2: place, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    const room = Math.floor((end - place - 8) / 7.5);
    if (room < 3) return;
    const text = label.length > room ? `${label.slice(0, room - 1)}…` : label;
    this.svg.append(element("text", { x: place + 4, y: MARGIN.top + 10 }, text));
  }

  line(one) {
    const { stroke, dash } = this.looks.of(one.label);
    if (one.low && one.low.length === one.x.length) {
      const there = one.x.map((x, i) => `${this.x(x)},${this.y(one.high[i])}`);
      const back = one.x.map((x, i) => `${this.x(x)},${this.y(one.low[i])}`).reverse();
      this.svg.append(element("path", { d: `M${[...there, ...back].join("L")}Z`, fill: stroke, opacity: 0.15 }));
    }
    const points = one.x.map((x, i) => `${this.x(x)},${this.y(one.y[i])}`);
    this.svg.append(element("path", { d: `M${points.join("L")}`, fill: "none", stroke, "stroke-width": 2, "stroke-dasharray": dash }));
    if (one.x.length <= 30) one.x.forEach((x, i) => {
      const ring = one.retest && one.retest[i];
      this.svg.append(element("circle", { cx: this.x(x), cy: this.y(one.y[i]), r: ring ? 4 : 2.5, stroke, fill: ring ? "var(--panel)" : stroke, "stroke-width": 2 }));
    });
  }

  describe() {
    const parts = this.shown.map((one) => `${one.label}: ${short(one.y[one.y.length - 1])} at ${short(one.x[one.x.length - 1])} frames`);
    return `${this.title}. ${parts.join("; ")}. Arrow keys read single values.`;
  }

  point(event) {
    if (!this.shown.length) return;
    const box = this.svg.getBoundingClientRect();
    const wanted = (event.clientX - box.left) * (this.width / box.width);
    this.show(this.places().reduce((best, x) => Math.abs(this.x(x) - wanted) < Math.abs(this.x(best) - wanted) ? x : best));
  }

  places() {
    return [...new Set(this.shown.flatMap((one) => one.x))].sort((a, b) => a - b);
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this.shown.length) return;
    event.preventDefault();
    const places = this.places();
    const now = places.indexOf(this.place);
    this.show(places[now < 0 ? (step > 0 ? 0 : places.length - 1) : Math.min(places.length - 1, Math.max(0, now + step))]);
  }

  show(place) {
    this.place = place;
    this.svg.querySelector(".cursor")?.remove();
    const x = this.x(place);
    this.svg.append(element("line", { class: "cursor", x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    const lines = [element("p", {}, `${place.toLocaleString("en")} frames`)];
    for (const one of this.shown) {
      const i = nearest(one.x, place);
      if (i < 0) continue;
      const line = element("p");
      line.append(element("b", { style: `color: ${this.looks.of(one.label).stroke}` }, short(one.y[i])));
      const band = one.low && one.low.length ? ` [${short(one.low[i])}, ${short(one.high[i])}]` : "";
      line.append(document.createTextNode(`${band} ${one.label}${one.runs > 1 ? `, ${one.runs} seeds` : ""}`));
      lines.push(line);
    }
    tip.replaceChildren(...lines.slice(0, 14));
    tip.hidden = false;
    const box = this.svg.getBoundingClientRect();
    const left = box.left + (x / this.width) * box.width + 14;
    const right = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${window.scrollX + Math.max(8, Math.min(left, right))}px`;
    tip.style.top = `${window.scrollY + box.top + 18}px`;
  }

  leave() {
    this.place = null;
    this.svg.querySelector(".cursor")?.remove();
    tip.hidden = true;
  }
}

// The place of a value in a rising list: exact, or the nearest within a fiftieth of the list's span; else -1.
function nearest(list, value) {
  let best = 0;
  list.forEach((x, i) => { if (Math.abs(x - value) < Math.abs(list[best] - value)) best = i; });
  const reach = (list[list.length - 1] - list[0]) / 50;
  return Math.abs(list[best] - value) <= reach ? best : -1;
}

function legend(holder, looks, charts) {
  if (looks.order.length < 2) return;
  for (const label of looks.order) {
    const { stroke, dash } = looks.of(label);
    const button = element("button", { type: "button", "aria-pressed": "true" });
    const line = element("svg", { width: 26, height: 10, "aria-hidden": "true" });
    line.append(element("line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke, "stroke-width": 3, "stroke-dasharray": dash }));
    button.append(line, element("span", {}, label));
    button.addEventListener("click", () => {
      const hide = !looks.hidden.has(label);
      if (hide) looks.hidden.add(label); else looks.hidden.delete(label);
      button.setAttribute("aria-pressed", String(!hide));
      charts.forEach((chart) => chart.draw());
    });
    holder.append(button);
  }
}

function family(charts, chartsHolder, legendHolder, title, options) {
  const looks = new Looks(charts.flatMap((chart) => chart.series.map((one) => one.label)));
  const drawn = charts.map((chart) => new Chart(chartsHolder, title(chart), chart.series, looks, { ...options, marks: chart.marks }));
  legend(legendHolder, looks, drawn);
}

const byId = (id) => document.getElementById(id);
family(data.curves, byId("curve-charts"), byId("curve-legend"), (chart) => chart.task, { fromZero: true });
family(data.figures, byId("figure-charts"), byId("figure-legend"), (chart) => chart.title, {});
if (!data.curves.length) byId("curve-charts").append(element("p", { class: "note" }, "No evaluation yet."));
if (!data.figures.length) byId("figure-charts").append(element("p", { class: "note" }, "No training figures in these folders."));

const wholes = data.wholes;
byId("whole").hidden = !wholes.length;
if (wholes.length) {
  const choice = byId("whole-choice"), holder = byId("whole-chart");
  wholes.forEach((whole, i) => choice.append(element("option", { value: i }, whole.run)));
  const show = () => {
    const whole = wholes[Number(choice.value)];
    holder.replaceChildren();
    const looks = new Looks(whole.series.map((one) => one.label));
    const keys = element("div", { class: "legend" });
    const chart = new Chart(holder, whole.run, whole.series, looks, { fromZero: true, borders: whole.borders });
    legend(keys, looks, [chart]);
    chart.figure.append(keys);
  };
  choice.addEventListener("change", show);
  show();
}

// To the left of the cut the maps of then, to the right those of now.
for (const slider of document.querySelectorAll(".slider")) {
  const [halves, input] = [slider.querySelector(".halves"), slider.querySelector("input")];
  input.addEventListener("input", () => halves.style.setProperty("--cut", `${100 - input.value}%`));
}
