// Parallel coordinates: a line for each row of the table of a sweep across its settings to a metric, which colors it.
import {evenly, placeTip, ticks} from './charts.js';
import {draw, make, number, offer, setText} from './elements.js';
import {words} from './heads.js';

const HEIGHT = 320; // as in style.css
const EDGE = {left: 56, right: 64, top: 34, bottom: 12};
const NEAR = 14; // pixels from the pointer to the line that it reads
const FEW = 6; // values that all have a label
const LABEL = 15; // pixels between labels
const SHADES = 32; // of the scale
const LONG = /^-?\d+\.\d{5,}(e-?\d+)?$/; // a number that is drawn

export class Parallel {
  /** `choose(row)` opens one. */
  constructor(choose) {
    this.choose = choose;
    this.lines = []; // of the rows that have a value, the best first
    this.current = null; // the key of the row that is read
    this.metric = make('select', {'aria-label': 'Metric of the last axis', onchange: () => this.draw()});
    this.note = make('span', {className: 'faint'});
    this.back = draw('svg', {class: 'parallel lines', height: HEIGHT, 'aria-hidden': 'true'}); // stays while one is read
    this.svg = draw('svg', {class: 'parallel', tabindex: 0, role: 'img', height: HEIGHT});
    this.tip = make('div', {className: 'tip', hidden: true});
    this.spoken = make('div', {className: 'unseen', role: 'status'});
    this.plot = make('div', {className: 'plot tall'}, this.back, this.svg, this.tip, this.spoken);
    this.element = make('figure', {className: 'chart'},
      make('figcaption', {}, make('h3', {textContent: 'Settings and results'}), this.note, this.metric), this.plot);
    this.svg.addEventListener('pointermove', (event) => this.point(event));
    this.svg.addEventListener('pointerleave', () => this.moveTo(null));
    this.svg.addEventListener('blur', () => this.moveTo(null));
    this.svg.addEventListener('keydown', (event) => this.step(event));
    this.svg.addEventListener('click', () => this.open());
    new ResizeObserver(() => this.render()).observe(this.plot);
  }

  /** Show rows, each with a key, a title, settings of these `keys` and values; `what` they are: trials or settings. */
  show(keys, {metrics: [objective], is_max}, rows, what) {
    if (!keys.length) return;
    const facts = rows.map(({key, title, settings, values}) => [key, title, settings, values]);
    const seen = JSON.stringify([keys, objective, is_max, what, facts]);
    if (seen === this.seen) return;
    this.seen = seen;
    Object.assign(this, {keys, objective, isMax: is_max, rows, what});
    offer(this.metric, [...new Set([objective, ...rows.flatMap(({values}) => Object.keys(values))])]);
    this.draw();
  }

  draw() {
    const name = this.metric.value;
    const shown = this.rows.filter(({values}) => Number.isFinite(values[name]));
    const axis = axisOf(name, shown.map(({values}) => values[name]));
    this.axes = [...this.keys.map((key) => axisOf(key, shown.map(({settings}) => settings[key]))), axis];
    const isLess = name === this.objective ? !this.isMax : /loss/.test(name);
    this.shade = (place) => (isLess ? 1 - place : place);
    this.lines = shown.map((row) => {
      const places = this.axes.map(({name: key, at}) => at(key === name ? row.values[name] : row.settings[key]));
      return {row, places, shade: this.shade(places.at(-1))};
    }).sort((a, b) => b.shade - a.shade);
    const missing = this.rows.length - shown.length;
    setText(this.note, missing ? `${missing} of ${this.rows.length} ${this.what} have no ${name} yet` : '');
    const range = shown.length ? `, from ${axis.ends.map((value) => number(value)).join(' to ')}` : '';
    this.svg.setAttribute('aria-label', `${shown.length} ${this.what}: ${this.keys.join(', ')} against ${name}${range}. `
      + 'Arrow keys read them from the best down, Enter opens one.');
    this.render();
  }

  render() {
    const width = this.plot.clientWidth;
    if (!width || !this.axes) return; // not on screen
    this.gap = (width - EDGE.left - EDGE.right) / (this.axes.length - 1);
    for (const svg of [this.back, this.svg]) svg.setAttribute('width', width);
    this.back.setAttribute('stroke-width', Math.max(0.7, 2 - this.lines.length / 250));
    this.back.replaceChildren(...this.lines.toReversed().map((line) => this.path(line)));
    this.mark = draw('g', {'stroke-width': 4});
    const middle = {x: width / 2, y: HEIGHT / 2, 'text-anchor': 'middle'};
    this.svg.replaceChildren(...(this.lines.length ? this.axes.map((axis, index) => this.axis(axis, index))
      : [draw('text', middle, 'No values yet')]), this.mark);
    this.moveTo(this.lines.find(({row}) => row.key === this.current) ?? null);
  }

  x(index) {
    return EDGE.left + index * this.gap;
  }

  y(place) {
    return EDGE.top + (1 - place) * (HEIGHT - EDGE.top - EDGE.bottom);
  }

  /** The path of a line; it is interrupted where the row lacks a setting. */
  path({places, shade}) {
    const at = (place, index) => `${this.x(index).toFixed(1)} ${this.y(place).toFixed(1)}`;
    const known = places.map((place, index) => place !== null && at(place, index));
    const d = known.map((point, index) => (point ? (known[index - 1] ? 'L' : 'M') + point : '')).join('');
    return draw('path', {d, style: `--shade: ${(100 * shade).toFixed(1)}%`});
  }

  axis({name, labels}, index) {
    const isLast = index === this.axes.length - 1;
    const x = this.x(index);
    const most = Math.max(8, Math.floor(this.gap / 7)); // letters
    const anchor = isLast ? 'end' : index ? 'middle' : 'start';
    const head = write(name, most, {class: 'head', x: isLast ? x + EDGE.right : index ? x : 0, y: 14, 'text-anchor': anchor});
    const group = draw('g');
    group.append(head, draw('line', {class: 'axis', x1: x, x2: x, y1: this.y(1), y2: this.y(0)}));
    if (isLast) group.append(...this.scale(x));
    let above = Infinity;
    for (const [at, text] of labels) {
      if (above - this.y(at) < LABEL) continue;
      above = this.y(at);
      const place = {x: isLast ? x + 14 : x - 6, y: above + 4, 'text-anchor': isLast ? 'start' : 'end'};
      group.append(write(text, index ? most : 8, place));
    }
    return group;
  }

  /** The colors along the axis of the metric. */
  scale(x) {
    const height = (this.y(0) - this.y(1)) / SHADES;
    return [...Array(SHADES).keys()].map((part) => draw('rect', {x: x - 1, y: this.y((part + 1) / SHADES), width: 9,
      height: height + 0.5, style: `--shade: ${100 * this.shade((part + 0.5) / SHADES)}%`}));
  }

  // -- reading a line --------------------------------------------------------------------------------------------------

  point(event) {
    if (!this.lines.length) return;
    const box = this.svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const left = Math.min(Math.max(Math.floor((x - EDGE.left) / this.gap), 0), this.axes.length - 2);
    const part = Math.min(Math.max((x - this.x(left)) / this.gap, 0), 1);
    let [nearest, least] = [null, NEAR];
    for (const line of this.lines) {
      const [from, to] = line.places.slice(left, left + 2);
      const far = from === null || to === null ? Infinity : Math.abs(this.y(from + part * (to - from)) - y);
      if (far < least) [nearest, least] = [line, far];
    }
    this.moveTo(nearest, x);
  }

  step(event) {
    const {lines} = this;
    const place = lines.findIndex(({row}) => row.key === this.current);
    const moves = {ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: lines.length - 1};
    if (event.key === 'Enter') this.open();
    if (event.key === 'Escape') this.moveTo(null);
    if (!(event.key in moves) || !lines.length) return;
    event.preventDefault();
    this.moveTo(lines[Math.min(Math.max(moves[event.key], 0), lines.length - 1)]);
    setText(this.spoken, this.tip.textContent);
  }

  open() {
    const line = this.lines.find(({row}) => row.key === this.current);
    if (line) this.choose(line.row);
  }

  /** Read a line, or none; its values are shown next to x. */
  moveTo(line, x = this.x(this.axes.length - 1)) {
    this.current = line?.row.key ?? null;
    this.plot.classList.toggle('reads', Boolean(line));
    this.mark?.replaceChildren(...(line ? [this.path(line)] : []));
    this.tip.hidden = !line;
    if (!line) return;
    const {title, settings, values} = line.row;
    const result = `${this.metric.value} ${number(values[this.metric.value], 5)}`;
    const texts = [...this.keys.map((key) => `${key} ${shortened(settings[key] ?? '–')} `), result];
    this.tip.replaceChildren(make('b', {textContent: `${title} `}),
      ...texts.map((textContent) => make('span', {textContent})));
    placeTip(this.tip, x);
  }
}

const shortened = (text) => (LONG.test(text) ? number(Number(text)) : text);

/** A text of a drawing: where it is too long its end, and all of it for the pointer. */
function write(text, most, place) {
  const made = draw('text', place, text.length > most ? `…${text.slice(1 - most)}` : text);
  if (text.length > most) made.append(draw('title', {}, text));
  return made;
}

// -- axes --------------------------------------------------------------------------------------------------------------

/**
 * An axis for values, numbers or words: `at(value)` is a place from 0 to 1, null for a missing value; `labels` are
 * [place, text] from below.
 */
function axisOf(name, values) {
  const known = [...new Set(values.filter((value) => value !== undefined && value !== null).map(String))];
  const numbers = known.map(Number).sort((a, b) => a - b);
  if (known.some((text) => !text.trim()) || !numbers.every(Number.isFinite)) {
    const sorted = known.sort(words.compare);
    return axis(name, (text) => sorted.indexOf(String(text)), [sorted[0], sorted.at(-1)], sorted.map((text) => [text, text]));
  }
  const ends = [numbers[0], numbers.at(-1)];
  const isLog = isLogarithmic(numbers);
  const marks = numbers.length <= FEW ? numbers.map((value) => [value, number(value)])
    : isLog ? decades(...ends) : evenly(ticks(...ends, 6));
  return axis(name, isLog ? Math.log : Number, ends, marks);
}

function axis(name, measure, ends, marks) {
  const [low, high] = ends.map(measure);
  const at = (value) => (value === undefined || value === null ? null
    : high > low ? (measure(value) - low) / (high - low) : 0.5);
  return {name, ends, at, labels: marks.map(([value, text]) => [at(value), text])};
}

/** Positive numbers over more than a factor of 100, or of 3 if their logarithms are spread more evenly. */
function isLogarithmic(numbers) {
  const [low, high] = [numbers[0], numbers.at(-1)];
  const lopsided = (all) => Math.abs(all.reduce((sum, each) => sum + each, 0) / all.length - (all[0] + all.at(-1)) / 2)
    / (all.at(-1) - all[0]);
  return low > 0 && (high / low > 100 || (high / low > 3 && lopsided(numbers.map(Math.log)) < lopsided(numbers) - 0.01));
}

/** Powers of ten in a range; with 2 and 5 times each if they are few. */
function decades(low, high) {
  const parts = high / low > 1000 ? [1] : [1, 2, 5];
  const powers = [...Array(Math.ceil(Math.log10(high / low)) + 2).keys()].map((step) => Math.floor(Math.log10(low)) + step);
  const values = powers.flatMap((power) => parts.map((part) => Number(`${part}e${power}`)));
  return values.filter((value) => value >= low && value <= high).map((value) => [value, number(value)]);
}
