// Comparison of runs: a line for each, or for each setting the mean of its repetitions with a band of their deviation.
import {Chart} from './charts.js';
import {make, offer, score, setText} from './elements.js';
import {foldOf, settingsOf} from './table.js';

export const MOST = 18; // lines: six colors, solid, dashed and dotted (style.css)
const COLORS = 6;
const BESIDE = new Set(['epoch', 'step']); // columns of the rows that are no metric

/** CSS classes of a line: its color and its dashes. */
const kindOf = (place) => `line-${place % COLORS} dash-${Math.floor(place / COLORS)}`;

export class Comparison {
  /** `get(path)` resolves to the answer of the plugin, `change(ids, isOn)` adds or removes runs. */
  constructor(get, change) {
    this.get = get;
    this.runs = []; // all
    this.chosen = new Set(); // ids
    this.places = new Map(); // of lines, by key: a line keeps its color while others are added or removed
    this.rows = new Map(); // by id: when it was updated, and its rows
    this.isPressed = true; // Settings
    this.heading = make('h2');
    const button = (textContent, onclick) => make('button', {type: 'button', className: 'quiet', textContent, onclick});
    this.modes = [button('Runs', () => this.draw(false)), button('Settings', () => this.draw(true))];
    this.switch = make('div', {className: 'switch', role: 'group', 'aria-label': 'Lines of'}, ...this.modes);
    const clear = button('Clear', () => change(this.compared.map(({id}) => id), false));
    this.legend = make('ul', {className: 'runs-legend', 'aria-label': 'Lines'});
    this.legend.onclick = (event) => {
      const {key} = event.target.closest('button')?.dataset ?? {};
      if (key) change(this.lines.find((line) => line.key === key).runs.map(({id}) => id), false);
    };
    this.note = make('p', {className: 'faint', textContent: 'Means over the seeds or folds of a setting, at epochs that '
      + 'two or more of them have; bands are ± one standard deviation (n − 1).'});
    this.charts = ['Left', 'Right'].map((side) => {
      const list = make('select', {'aria-label': `Metric of the ${side.toLowerCase()} chart`, onchange: () => this.draw()});
      return {list, chart: new Chart('', 'epoch', list)};
    });
    this.element = make('section', {className: 'compared', 'aria-label': 'Comparison', hidden: true},
      make('header', {}, this.heading, this.switch, clear), this.legend, this.note,
      make('div', {className: 'charts'}, ...this.charts.map(({chart}) => chart.element)));
  }

  /** Add or remove runs by id; false if their settings are too many to distinguish. */
  change(ids, isOn) {
    const known = new Map(this.runs.map((run) => [run.id, run]));
    const settings = new Set([...this.chosen].map((id) => settingOf(known.get(id))));
    let isAll = true;
    for (const id of ids.filter((each) => known.has(each))) {
      const setting = settingOf(known.get(id));
      if (!isOn) this.chosen.delete(id);
      else if (settings.has(setting) || settings.size < MOST) {
        settings.add(setting);
        this.chosen.add(id);
      } else isAll = false;
    }
    return isAll;
  }

  /** Draw the compared ones of `runs`, those of a `sweep` alone, and fetch their rows if they have changed. */
  async show(runs, sweep) {
    Object.assign(this, {runs, sweep});
    const ids = new Set(runs.map(({id}) => id));
    for (const id of this.chosen) if (!ids.has(id)) this.chosen.delete(id); // its folder was removed
    this.element.hidden = !this.compared.length;
    const stale = this.compared.filter((run) => this.rows.get(run.id)?.updated !== (run.updated ?? null));
    await Promise.all(stale.map(async (run) => {
      const {rows} = await this.get(`run?id=${run.id}`);
      this.rows.set(run.id, {updated: run.updated ?? null, rows});
    }));
    this.draw();
  }

  get compared() {
    return this.runs.filter((run) => this.chosen.has(run.id) && (!this.sweep || run.sweep === this.sweep));
  }

  /** Draw a line for each run or, as was pressed last or where the runs are too many, for each of their settings. */
  draw(isPressed = this.isPressed) {
    this.isPressed = isPressed;
    const runs = this.compared;
    const settings = [...Map.groupBy(runs, settingOf)];
    const isRepeated = settings.length < runs.length;
    const isOfSettings = isRepeated && (isPressed || runs.length > MOST);
    this.switch.hidden = !isRepeated;
    this.note.hidden = !isOfSettings;
    this.modes.forEach((mode, place) => mode.setAttribute('aria-pressed', String(Boolean(place) === isOfSettings)));
    this.modes[0].disabled = runs.length > MOST;
    this.modes[0].title = runs.length > MOST ? `At most ${MOST} lines can be distinguished.` : '';
    this.lines = isOfSettings ? settings.map(lineOfSetting) : runs.map(lineOfRun);
    this.places = placed(this.lines.map(({key}) => key), this.places);
    this.lines.sort((a, b) => this.places.get(a.key) - this.places.get(b.key));
    const names = namesOf(this.lines);
    for (const line of this.lines) {
      line.name = names.get(line.id);
      line.kind = kindOf(this.places.get(line.key));
    }
    this.offerMetrics(runs);
    const known = ({id}) => this.rows.has(id) && [id, this.rows.get(id).updated];
    const facts = this.lines.map((line) => [line.name, line.kind, line.note, line.runs.map(known)]);
    const seen = JSON.stringify([this.charts.map(({list}) => list.value), facts]);
    if (seen === this.seen) return; // keep the cursor of a chart
    this.seen = seen;
    setText(this.heading, `${runs.length} ${runs.length === 1 ? 'run' : 'runs'} compared`);
    this.legend.replaceChildren(...this.lines.map(legendItem));
    for (const {list, chart} of this.charts) {
      chart.title = list.value;
      chart.show(this.lines.map((line) => ({...line, points: this.pointsOf(line, list.value)})));
    }
  }

  /** Offer the metrics of the runs: at first the loss, and what chooses the best epoch. */
  offerMetrics(runs) {
    const names = new Set(runs.flatMap((run) => (this.rows.get(run.id)?.rows ?? []).flatMap(Object.keys)));
    const metrics = [...names].filter((name) => !BESIDE.has(name));
    const [left, right] = this.charts.map(({list}) => list);
    offer(left, metrics, 'val/loss');
    offer(right, metrics, ...runs.map((run) => run.monitor).filter((name) => name !== 'val/loss'), 'val/accuracy');
  }

  pointsOf({repetitions}, name) {
    const curves = repetitions.map((runs) => runs.map(({id}) => points(this.rows.get(id)?.rows ?? [], name)));
    if (curves.length === 1) return curves[0][0];
    return averaged(curves.map((same) => averaged(same, 1)), 2);
  }
}

// -- lines -------------------------------------------------------------------------------------------------------------

/** Runs with the same one are repetitions: trials of a sweep, because others may differ in more than their overrides. */
const settingOf = (run) => (run.sweep === undefined ? run.id : JSON.stringify([run.sweep, ...settingsOf(run).sort()]));

function lineOfRun(run) {
  const note = Number.isFinite(run.best) ? `best ${score(run.best)}` : '';
  return {...run, key: run.id, runs: [run], repetitions: [[run]], note};
}

/** `repetitions` has the runs of each seed, or of each fold if these differ. */
function lineOfSetting([key, runs]) {
  const line = lineOfRun(runs[0]);
  const folds = Map.groupBy(runs, foldOf);
  const isFolded = folds.size > 1;
  const repetitions = isFolded ? [...folds.values()] : runs.map((run) => [run]);
  if (runs.length > 1) line.note = `${repetitions.length} ${isFolded ? 'folds' : 'seeds'}`;
  return {...line, key, runs, repetitions, run: line.sweep ?? line.run, overrides: settingsOf(line)};
}

/** The places of lines by key: those that stay keep theirs, others get the first that are free. */
function placed(keys, before) {
  const kept = new Map(keys.filter((key) => before.has(key)).map((key) => [key, before.get(key)]));
  const taken = new Set(kept.values());
  const free = [...Array(MOST).keys()].filter((place) => !taken.has(place));
  for (const key of keys) if (!kept.has(key)) kept.set(key, free.shift());
  return kept;
}

function legendItem({key, kind, name, note, run, overrides}) {
  const remove = make('button', {type: 'button', className: 'remove', textContent: '×', 'aria-label': `Remove ${name}`});
  remove.dataset.key = key;
  return make('li', {title: [run, ...overrides].join('\n')}, make('span', {className: `key ${kind}`}),
    make('span', {textContent: name}), make('span', {className: 'faint', textContent: note}), remove);
}

/** The finite values of a column of rows over their epochs. */
export const points = (rows, name) =>
  rows.filter((row) => Number.isFinite(row.epoch) && Number.isFinite(row[name])).map((row) => [row.epoch, row[name]]);

/** [x, mean, deviation (n - 1)] of the curves at each x that at least `least` of them have. */
function averaged(curves, least) {
  const at = Map.groupBy(curves.flat(), ([x]) => x);
  const found = [...at].filter(([, all]) => all.length >= least).sort(([a], [b]) => a - b);
  return found.map(([x, all]) => {
    const mean = all.reduce((sum, [, y]) => sum + y, 0) / all.length;
    return [x, mean, Math.sqrt(all.reduce((sum, [, y]) => sum + (y - mean) ** 2, 0) / (all.length - 1))];
  });
}

/** Names of lines: the overrides in which they differ, and the last part of the path if those are equal. */
function namesOf(lines) {
  const isCommon = (each) => lines.length > 1 && lines.every(({overrides}) => overrides.includes(each));
  const texts = lines.map(({overrides}) => overrides.filter((each) => !isCommon(each)).join(' '));
  return new Map(lines.map(({id, run}, place) => {
    const text = texts[place];
    const isUnique = text && texts.filter((other) => other === text).length === 1;
    return [id, isUnique ? text : [run.split('/').at(-1), text].filter(Boolean).join(' ')];
  }));
}
