// Comparison of runs: a line for each, in a chart per metric.
import {Chart} from './charts.js';
import {make, score, setText} from './elements.js';
import {differingOverrides} from './table.js';

export const MOST = 18; // six colours, solid, dashed and dotted (style.css)
const COLOURS = 6;
const SPLITS = [['val', 'Validation'], ['train', 'Train']];
const QUANTITIES = [['loss', 'Loss'], ['accuracy', 'Accuracy']];

/** CSS classes of a line: its colour and its dashes. */
const kindOf = (place) => `line-${place % COLOURS} dash-${Math.floor(place / COLOURS)}`;

export class Comparison {
  /** `get(path)` resolves to the answer of the plugin, `change(ids, isOn)` adds or removes runs. */
  constructor(get, change) {
    this.get = get;
    this.places = new Map(); // of lines, by id: a run keeps its colour while others are added or removed
    this.rows = new Map(); // by id: when it was updated, and its rows
    this.heading = make('h2');
    this.split = make('select', {id: 'split', onchange: () => this.draw()},
      ...SPLITS.map(([value, textContent]) => make('option', {value, textContent})));
    const clear = make('button', {type: 'button', className: 'quiet', textContent: 'Clear'});
    clear.onclick = () => change([...this.places.keys()], false);
    this.legend = make('ul', {className: 'runs-legend', 'aria-label': 'Lines'});
    this.legend.onclick = (event) => {
      const {id} = event.target.closest('button')?.dataset ?? {};
      if (id) change([id], false);
    };
    this.charts = new Map(QUANTITIES.map(([name, title]) => [name, new Chart(title, 'epoch', {isOfRuns: true})]));
    const label = make('label', {className: 'unseen', htmlFor: 'split', textContent: 'Split'});
    this.element = make('section', {className: 'compared', 'aria-label': 'Comparison', hidden: true},
      make('header', {}, this.heading, label, this.split, clear), this.legend,
      make('div', {className: 'charts'}, ...[...this.charts.values()].map((chart) => chart.element)));
  }

  /** Add or remove runs by id; false if there are too many to distinguish. */
  change(ids, isOn) {
    for (const id of ids) {
      if (!isOn) this.places.delete(id);
      else if (!this.places.has(id)) {
        const taken = new Set(this.places.values());
        const free = [...Array(MOST).keys()].find((place) => !taken.has(place));
        if (free === undefined) return false;
        this.places.set(id, free);
      }
    }
    return true;
  }

  /** Draw the compared ones of `runs`, and fetch their rows if they have changed. */
  async show(runs) {
    this.runs = runs.filter((run) => this.places.has(run.id));
    this.element.hidden = !this.runs.length;
    const stale = this.runs.filter((run) => this.rows.get(run.id)?.updated !== (run.updated ?? null));
    if (stale.length) {
      await Promise.all(stale.map(async (run) => {
        const {rows} = await this.get(`run?id=${run.id}`);
        this.rows.set(run.id, {updated: run.updated ?? null, rows});
      }));
    }
    this.draw();
  }

  draw() {
    const placeOf = (run) => this.places.get(run.id);
    const runs = this.runs.filter((run) => this.places.has(run.id)).sort((a, b) => placeOf(a) - placeOf(b));
    const names = namesOf(runs);
    const facts = runs.map((run) => [run.id, placeOf(run), run.updated, run.best, names.get(run.id)]);
    const seen = JSON.stringify([this.split.value, facts]);
    if (seen === this.seen) return; // keep the cursor of a chart
    this.seen = seen;
    setText(this.heading, `${runs.length} ${runs.length === 1 ? 'run' : 'runs'} compared`);
    this.legend.replaceChildren(...runs.map((run) => legendItem(run, names.get(run.id), kindOf(placeOf(run)))));
    for (const [quantity, chart] of this.charts) {
      const tag = `${this.split.value}/${quantity}`;
      chart.show(runs.map((run) => ({name: names.get(run.id), kind: kindOf(placeOf(run)),
        points: points(this.rows.get(run.id)?.rows ?? [], tag)})));
    }
  }
}

function legendItem(run, name, kind) {
  const remove = make('button', {type: 'button', className: 'remove', textContent: '×', 'aria-label': `Remove ${name}`});
  remove.dataset.id = run.id;
  const best = Number.isFinite(run.best) ? `best ${score(run.best)}` : '';
  return make('li', {title: [run.run, ...run.overrides].join('\n')}, make('span', {className: `key ${kind}`}),
    make('span', {textContent: name}), make('span', {className: 'faint', textContent: best}), remove);
}

/** The finite values of a column of rows over their epochs. */
export const points = (rows, name) =>
  rows.filter((row) => Number.isFinite(row.epoch) && Number.isFinite(row[name])).map((row) => [row.epoch, row[name]]);

/** Names of runs: the overrides in which they differ, and the last part of the path if those are equal. */
function namesOf(runs) {
  const typed = differingOverrides(runs);
  const times = (text) => [...typed.values()].filter((other) => other === text).length;
  return new Map(runs.map((run) => {
    const text = typed.get(run.id);
    return [run.id, text && times(text) === 1 ? text : [run.run.split('/').at(-1), text].filter(Boolean).join(' ')];
  }));
}
