// Lines over epochs or steps, drawn again at every change and width. Pointer and arrow keys show the values.
import {count, draw, make, number, setText} from './elements.js';

const HEIGHT = 260; // as in style.css
const EDGE = {left: 52, right: 14, top: 10, bottom: 24};
const DOTS = 40; // a line of fewer points shows them

export class Chart {
  /** `unit` of the x axis: epoch or step. `head` replaces title and legend in the chart: lines of runs share a legend. */
  constructor(title, unit, head = null) {
    this.isOfRuns = Boolean(head);
    this.title = title;
    this.unit = unit;
    this.lines = [];
    this.cursor = null; // a value of x
    this.legend = make('ul', {className: 'legend'});
    this.svg = draw('svg', {tabindex: 0, role: 'img', height: HEIGHT});
    this.tip = make('div', {className: 'tip', hidden: true});
    this.spoken = make('div', {className: 'unseen', role: 'status'});
    this.plot = make('div', {className: 'plot'}, this.svg, this.tip, this.spoken);
    const caption = make('figcaption', {}, ...(head ? [head] : [make('h3', {textContent: title}), this.legend]));
    this.element = make('figure', {className: 'chart'}, caption, this.plot);
    this.svg.addEventListener('pointermove', (event) => this.point(event));
    this.svg.addEventListener('pointerleave', () => this.moveTo(null));
    this.svg.addEventListener('blur', () => this.moveTo(null));
    this.svg.addEventListener('keydown', (event) => this.step(event));
    new ResizeObserver(() => this.render()).observe(this.plot);
  }

  /**
   * Show these lines: each has a name, a kind (its color), and points [x, y] in the order of x, or [x, mean, deviation]
   * with a band.
   */
  show(lines) {
    this.lines = lines.filter((line) => line.points.length);
    this.legend.replaceChildren(...(this.isOfRuns ? [] : this.lines).map((line) =>
      make('li', {}, make('span', {className: `key ${line.kind}`}), `${line.name} ${number(line.points.at(-1)[1])}`)));
    const ends = this.lines.map((line) => `${line.name} ${read(line.points.at(-1))}`);
    this.xs = [...new Set(this.lines.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
    const last = this.xs.length ? ` at ${this.unit} ${count(this.xs.at(-1))}` : '';
    this.svg.setAttribute('aria-label', `${this.title}: ${ends.join(', ') || 'no values yet'}${last}`);
    this.render();
  }

  render() {
    const width = this.plot.clientWidth;
    if (!width) return; // not on screen
    this.svg.setAttribute('width', width);
    this.svg.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
    if (!this.lines.length) {
      const middle = {x: width / 2, y: HEIGHT / 2, 'text-anchor': 'middle'};
      this.svg.replaceChildren(draw('text', middle, 'No values yet'));
      return;
    }
    const ys = this.lines.flatMap((line) => line.points.flatMap(([, y, by = 0]) => [y - by, y + by]));
    const [low, high] = padded(least(ys), most(ys));
    const [first, last] = [this.xs[0], this.xs.at(-1)];
    const wide = width - EDGE.left - EDGE.right;
    const tall = HEIGHT - EDGE.top - EDGE.bottom;
    this.x = (x) => EDGE.left + (last > first ? (x - first) / (last - first) : 0.5) * wide;
    this.y = (y) => EDGE.top + (1 - (y - low) / (high - low)) * tall;
    this.mark = draw('g', {class: 'cursor'});
    this.svg.replaceChildren(
      ...evenly(ticks(low, high, 5)).flatMap(([y, text]) => [
        draw('line', {class: 'grid', x1: EDGE.left, x2: width - EDGE.right, y1: this.y(y), y2: this.y(y)}),
        draw('text', {x: EDGE.left - 8, y: this.y(y) + 4, 'text-anchor': 'end'}, text),
      ]),
      ...whole(ticks(first, last, wide / 90)).map((x) =>
        draw('text', {x: this.x(x), y: HEIGHT - 6, 'text-anchor': 'middle'}, count(x))),
      draw('text', {class: 'unit', x: 2, y: HEIGHT - 6}, this.unit),
      ...this.lines.map((line) => this.line(line)),
      this.mark,
    );
    this.moveTo(this.cursor);
  }

  line({kind, points}) {
    const through = (places) => places.map(([x, y]) => `${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`).join('L');
    const group = draw('g', {class: kind});
    if (points[0].length > 2) {
      const edges = [...points.map(([x, y, by]) => [x, y + by]), ...points.toReversed().map(([x, y, by]) => [x, y - by])];
      group.append(draw('path', {class: 'band', d: `M${through(edges)}Z`}));
    }
    group.append(draw('path', {d: `M${through(points)}`}));
    if (points.length <= DOTS) group.append(...points.map(([x, y]) => this.dot(x, y, 2.5)));
    return group;
  }

  dot(x, y, r) {
    return draw('circle', {cx: this.x(x), cy: this.y(y), r});
  }

  // -- reading values --------------------------------------------------------------------------------------------------

  point(event) {
    if (!this.lines.length) return;
    const place = event.clientX - this.svg.getBoundingClientRect().left;
    let nearest = this.xs[0];
    for (const x of this.xs) if (Math.abs(this.x(x) - place) < Math.abs(this.x(nearest) - place)) nearest = x;
    this.moveTo(nearest);
  }

  step(event) {
    const place = this.cursor === null ? this.xs?.length - 1 : this.xs.indexOf(this.cursor);
    const moves = {ArrowLeft: place - (this.cursor !== null), ArrowRight: place + (this.cursor !== null), Home: 0,
      End: this.xs?.length - 1};
    if (event.key === 'Escape') this.moveTo(null);
    if (!(event.key in moves) || !this.lines.length) return;
    event.preventDefault();
    this.moveTo(this.xs[Math.min(Math.max(moves[event.key], 0), this.xs.length - 1)]);
    setText(this.spoken, this.tip.textContent);
  }

  /** Put the cursor at a value of x, or nowhere. */
  moveTo(x) {
    this.cursor = this.lines.length && this.xs.includes(x) ? x : null;
    this.mark?.replaceChildren();
    this.tip.hidden = this.cursor === null;
    if (this.cursor === null) return;
    const found = this.lines.map((line) => [line, line.points.find((point) => point[0] === x)]).filter(([, at]) => at);
    if (this.isOfRuns) found.sort(([, [, a]], [, [, b]]) => b - a); // as the lines lie above one another
    this.mark.append(draw('line', {x1: this.x(x), x2: this.x(x), y1: EDGE.top, y2: HEIGHT - EDGE.bottom}));
    for (const [line, [, y]] of found) {
      const dot = this.dot(x, y, 4);
      dot.setAttribute('class', line.kind);
      this.mark.append(dot);
    }
    const label = ({name}, at) => (this.isOfRuns ? [read(at, 5), name, ''] : [name, read(at, 5), '']).join(' '); // names are cut
    this.tip.replaceChildren(make('b', {textContent: `${this.unit} ${count(x)} `}), ...found.map(([line, at]) =>
      make('span', {}, make('span', {className: `key ${line.kind}`}), label(line, at))));
    placeTip(this.tip, this.x(x));
  }
}

/** The value of a point, with its deviation. */
const read = ([, y, by], digits) => number(y, digits) + (by === undefined ? '' : ` ± ${number(by, 2)}`);

/** Place a tip in a plot next to x, on the side with more room. */
export function placeTip(tip, x) {
  const width = tip.parentElement.clientWidth;
  tip.style.left = x > width / 2 ? '' : `${x + 10}px`;
  tip.style.right = x > width / 2 ? `${width - x + 10}px` : '';
}

// not Math.min(...values), which takes a limited number of arguments
const least = (values) => values.reduce((a, b) => Math.min(a, b));
const most = (values) => values.reduce((a, b) => Math.max(a, b));
const whole = (values) => values.filter(Number.isInteger);

/** Values with their texts, all with the same number of decimals: 0.5, 1.0, 1.5. */
export function evenly(values) {
  const texts = values.map((value) => number(value));
  if (texts.some((text) => text.includes('e'))) return values.map((value, place) => [value, texts[place]]);
  const places = most(texts.map((text) => (text.split('.')[1] ?? '').length));
  return values.map((value) => [value, value.toFixed(places)]);
}

/** A range with a margin; a single value is in the middle. */
function padded(low, high) {
  const margin = (high - low) * 0.05 || Math.abs(low) * 0.05 || 1;
  return [low - margin, high + margin];
}

/** About `num` round values in a range: steps of 1, 2 or 5 times a power of ten. */
export function ticks(low, high, num) {
  if (high === low) return [low];
  const rough = (high - low) / Math.max(num, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const sizes = [1, 2, 5, 10].map((factor) => factor * power);
  const step = sizes.reduce((a, b) => (Math.abs(Math.log(b / rough)) < Math.abs(Math.log(a / rough)) ? b : a));
  const values = [];
  for (let place = Math.ceil(low / step); place * step <= high; place += 1) values.push(+(place * step).toPrecision(12));
  return values;
}
