// The table of runs. A row belongs to a run: a refresh changes only what has changed, and the focus stays.
import {arrange, count, day, duration, make, makeProgress, makeState, moment, of, score, seconds, setProgress, setState,
  setText} from './elements.js';
import {Heads, words} from './heads.js';
import {StopButton} from './stop.js';

export const ORDER = ['starting', 'training', 'validating', 'testing', 'stopping', 'stopped', 'pruned', 'finished', 'failed',
  'no signal', 'broken', 'not started'];

// Columns of Heads; text: content of a cell, or Row fills it. A narrow page hides columns by the class `col-` and the slug
// (style.css).
const COLUMNS = [
  {name: 'State', slug: 'state', value: (run) => ORDER.indexOf(run.state)},
  {name: 'Progress', slug: 'progress', value: (run) => run.percent, isDown: true},
  {name: 'Run', slug: 'run', value: (run) => run.run},
  {name: 'Settings', slug: 'overrides', value: (run) => run.differing,
    hint: 'Settings of the command line in which the rows differ; of a sweep, those it varies'},
  {name: 'Epoch', slug: 'epoch', value: (run) => run.epoch, text: (run) => of(run.epoch, run.max_epochs), isDown: true},
  {name: 'Step', slug: 'step', value: (run) => run.step, text: (run) => of(run.step, run.total_steps), isDown: true},
  {name: 'Time left', slug: 'left', value: (run) => timeLeft(run), text: (run) => duration(timeLeft(run))},
  {name: 'Images/s', slug: 'speed', value: (run) => run.images_per_s, text: (run) => count(run.images_per_s), isDown: true},
  {name: 's/epoch', slug: 'seconds', value: (run) => run.epoch_s, text: (run) => seconds(run.epoch_s)},
  {name: 'Workers', slug: 'workers', value: (run) => run.workers, text: (run) => count(run.workers), isDown: true},
  {name: 'Device', slug: 'device', value: (run) => run.device, text: (run) => run.device ?? '–', isWord: true},
  {name: 'Best', slug: 'best', value: (run) => run.best, text: (run) => named(run, 'monitor', run.best), isDown: true,
    title: ({monitor, setting}) => [monitor, setting].filter(Boolean).join(', ')},
  {name: 'Test', slug: 'test', value: (run) => run.test, text: (run) => named(run, 'tested', run.test), isDown: true},
  {name: 'Tags', slug: 'tags', value: (run) => tags(run), text: (run) => tags(run), title: (run) => tags(run), isWord: true},
  {name: 'Started', slug: 'started', value: (run) => run.started, text: (run) => day(run.started),
    title: (run) => moment(run.started), isDown: true},
].map((column) => ({...column, className: `col-${column.slug}${column.text && !column.isWord ? ' number' : ''}`}));

const tags = (run) => (run.tags ?? []).join(' ');

/** A result with the name of its metric, which is in the head where all rows share it. */
const named = (run, metric, value) =>
  (Number.isFinite(value) && !run.shared[metric] ? `${run[metric]} ${score(value)}` : score(value));

/** Seconds to the end; unknown for a run that is over. */
export const timeLeft = (run) => (isOver(run) ? undefined : run.remaining_s);
const isOver = (run) => ['stopped', 'pruned', 'finished', 'failed', 'no signal', 'broken'].includes(run.state);

export class RunTable {
  /** `choose(id)` selects a run, `open(name)` shows a sweep, `compare(ids, isOn)` changes what is compared. */
  constructor(control, choose, open, compare) {
    this.control = control;
    this.rows = new Map();
    this.runs = [];
    this.shown = new Set(); // those that match the filter
    this.compared = new Set(); // ids
    this.chosen = null;
    this.heads = new Heads(() => this.show(this.runs, this.shown));
    this.heads.sort = {name: 'Started', isDown: true};
    this.heads.show(COLUMNS);
    this.caption = make('caption', {className: 'unseen'});
    this.body = make('tbody');
    const first = make('th', {scope: 'col', className: 'pick'}, make('span', {className: 'unseen', textContent: 'Compare'}));
    const last = make('th', {scope: 'col', className: 'action'}, make('span', {className: 'unseen', textContent: 'Stop'}));
    const head = make('thead', {}, make('tr', {}, first, ...this.heads.elements, last));
    const table = make('table', {}, this.caption, head, this.body);
    this.element = make('div', {className: 'runs', tabIndex: 0, role: 'region', 'aria-label': 'Runs'}, table);
    this.body.onclick = (event) => {
      const row = event.target.closest('tr');
      if (!row || event.target.closest('.pick') || !window.getSelection().isCollapsed) return; // a text was selected
      if (row.dataset.sweep === undefined) choose(row.dataset.id);
      else open(row.dataset.sweep);
    };
    this.body.onchange = (event) => {
      const {run} = this.rows.get(event.target.closest('tr').dataset.id);
      compare(seenOf(run).map(({id}) => id), event.target.checked);
    };
  }

  /** Show those of `runs` that are in `shown`; the trials of a sweep share one row. */
  show(runs, shown) {
    this.runs = runs;
    this.shown = shown;
    const rows = this.lines().map((run) => {
      const row = this.rows.get(run.id) ?? new Row(run, this.control);
      row.show(run);
      this.markRow(row);
      return [run.id, row];
    });
    this.rows = new Map(rows);
    arrange(this.body, rows.map(([, {element}]) => element));
  }

  /** Runs and sweeps in their order, each with the overrides in which it differs. */
  lines() {
    const rows = gathered(this.runs, this.shown);
    const differing = differingOverrides(rows);
    const only = (key) => {
      const names = new Set(rows.map((run) => run[key]).filter(Boolean));
      return names.size === 1 ? [...names][0] : '';
    };
    const shared = {monitor: only('monitor'), tested: only('tested')};
    this.heads.rename('Best', `Best ${shared.monitor}`.trim());
    this.heads.rename('Test', shared.tested || 'Test');
    this.element.classList.toggle('no-tags', !rows.some((run) => run.tags?.length));
    return this.heads.sorted(rows.map((run) => ({...run, shared, differing: differing.get(run.id)})));
  }

  /** Mark the row of the run whose details are shown. */
  mark(id) {
    const before = this.rows.get(this.chosen);
    this.chosen = id;
    for (const row of [before, this.rows.get(id)]) if (row) this.markRow(row);
  }

  /** Mark the rows of the runs that are compared. */
  markCompared(ids) {
    this.compared = ids;
    for (const row of this.rows.values()) this.markRow(row);
  }

  markRow(row) {
    row.mark(row.run.id === this.chosen, this.compared);
  }

  /** Show whether Stop is on. */
  refreshButtons() {
    for (const row of this.rows.values()) row.showStop();
  }
}

/** The shown runs and sweeps: a sweep looks like a run, has all `trials`, and those of them that are shown in `seen`. */
function gathered(runs, shown) {
  const sweeps = new Map();
  for (const run of runs) if (run.sweep !== undefined) sweeps.set(run.sweep, [...(sweeps.get(run.sweep) ?? []), run]);
  const alone = runs.filter((run) => run.sweep === undefined && shown.has(run)).map((run) => ({...run, ...testOf(run)}));
  const seen = [...sweeps].map(([name, trials]) => [name, trials, trials.filter((run) => shown.has(run))]);
  return [...alone, ...seen.filter(([, , some]) => some.length).map((each) => sweepOf(...each))];
}

function sweepOf(name, trials, seen) {
  const percents = trials.map((trial) => (isDone(trial) ? 100 : trial.percent ?? 0));
  const shared = new Set(trials[0].overrides.filter((each) => trials.every((trial) => trial.overrides.includes(each))));
  return {
    id: `sweep ${name}`,
    run: name,
    trials,
    seen,
    state: stateOf(trials.map((trial) => trial.state)),
    percent: average(percents),
    ...bestOf(trials),
    tags: [...new Set(trials.flatMap((trial) => trial.tags ?? []))],
    started: Math.min(...trials.map((trial) => trial.started ?? Infinity)),
    overrides: [...variedIn(trials, shared), ...shared],
  };
}

/** The results of the best setting, as the table of the sweep has them: means over its seeds or folds, all finished. */
function bestOf(trials) {
  const settings = [...Map.groupBy(trials, (trial) => settingsOf(trial).sort().join(' '))];
  const least = settings.length < trials.length ? 2 : 1; // where others are repeated, a single one says too little
  const isResult = ({state, best}) => state === 'finished' && Number.isFinite(best);
  const means = settings.filter(([, same]) => same.length >= least && same.every(isResult)).map(([setting, same]) => {
    const mean = (value) => average([...Map.groupBy(same, foldOf).values()].map((fold) => average(fold.map(value))));
    const {tested} = testOf(same[0]);
    const [best, test] = [mean((trial) => trial.best), mean(({metrics}) => metrics[tested])];
    return {setting, monitor: same[0].monitor, best, tested, test};
  });
  return means.sort((a, b) => (trials[0].mode === 'min' ? a.best - b.best : b.best - a.best))[0];
}

const average = (values) => values.reduce((a, b) => a + b, 0) / values.length;

/** The first metric of the test but the loss, where there is one. */
function testOf({metrics}) {
  const names = Object.keys(metrics).filter((name) => name.startsWith('test/'));
  const tested = names.find((name) => name !== 'test/loss') ?? names[0];
  return {tested, test: metrics[tested]};
}

/** Trials that the same command skips. */
const isDone = (trial) => ['finished', 'pruned'].includes(trial.state);

/** The runs of a row: of a sweep, the trials that match the filter. */
const seenOf = (run) => run.seen ?? [run];

/** The state of a sweep: that of a live trial, else the worst end of one. */
function stateOf(states) {
  const live = ['training', 'validating', 'testing', 'starting', 'stopping'].find((state) => states.includes(state));
  const ends = ['failed', 'no signal', 'broken', 'stopped', 'not started', 'finished', 'pruned'];
  return live ?? ends.find((state) => states.includes(state));
}

/** The overrides in which trials differ, each key once with its values: `seed=0,1,2`. */
function variedIn(trials, shared) {
  const values = new Map();
  for (const each of trials.flatMap((trial) => trial.overrides).filter((text) => !shared.has(text))) {
    const key = keyOf(each);
    values.set(key, (values.get(key) ?? new Set()).add(each.slice(key.length + 1)));
  }
  return [...values].map(([key, found]) => `${key}=${listed([...found].sort(inOrder))}`);
}

const inOrder = (a, b) => Number(a) - Number(b) || words.compare(a, b); // 0.05 is less than 0.1, which words are not

const listed = (values) => (values.length <= 6 ? values.join(',') : `${values[0]},…,${values.at(-1)} (${values.length})`);

/**
 * By run id, the overrides that not all runs share. Keys that distinguish the most runs come first, because a line may be
 * cut.
 */
export function differingOverrides(runs) {
  const times = new Map();
  for (const run of runs) for (const each of new Set(run.overrides)) times.set(each, (times.get(each) ?? 0) + 1);
  const most = new Map(); // runs that share a value of a key
  for (const [each, found] of times) most.set(keyOf(each), Math.max(found, most.get(keyOf(each)) ?? 0));
  const isCommon = (each) => runs.length > 1 && times.get(each) === runs.length;
  const order = (a, b) => most.get(keyOf(a)) - most.get(keyOf(b));
  return new Map(runs.map((run) => [run.id, run.overrides.filter((each) => !isCommon(each)).sort(order).join(' ')]));
}

const keyOf = (override) => override.split('=')[0];

/** Keys over whose values a setting is repeated. */
export const REPEATS = new Set(['seed', 'data.fold']);

export const foldOf = (run) => run.overrides.find((text) => text.startsWith('data.fold='));

/** The overrides of a run without these keys. */
export const settingsOf = (run) => run.overrides.filter((each) => !REPEATS.has(keyOf(each)));

class Row {
  constructor(run, control) {
    this.state = makeState();
    this.progress = makeProgress();
    this.pick = make('input', {type: 'checkbox'});
    this.folder = make('span', {className: 'faint folder'});
    this.name = make('span', {className: 'own'});
    this.number = make('span', {className: 'faint'});
    this.button = make('button', {type: 'button', className: 'name'}, this.folder, this.name);
    this.stop = new StopButton(control);
    this.cells = COLUMNS.map((column) => (column.name === 'Run'
      ? make('th', {scope: 'row', className: column.className}, this.button, this.number)
      : make('td', {className: column.className})));
    this.cells[0].append(this.state);
    this.cells[1].append(this.progress);
    this.element = make('tr', {}, make('td', {className: 'pick'}, this.pick), ...this.cells,
      make('td', {className: 'action'}, this.stop.element));
    this.element.dataset.id = run.id;
    if (run.trials) this.element.dataset.sweep = run.run;
  }

  show(run) {
    this.run = run;
    const seen = JSON.stringify(run);
    if (seen === this.seen) return;
    this.seen = seen;
    this.write(run);
  }

  write(run) {
    setState(this.state, run.state);
    setProgress(this.progress, run.percent, run.state);
    const cut = run.run.lastIndexOf('/') + 1;
    setText(this.folder, run.run.slice(0, cut));
    setText(this.name, run.run.slice(cut));
    this.button.title = run.run;
    this.pick.setAttribute('aria-label', `Compare ${run.run}`);
    if (run.trials) setText(this.number, `${run.trials.filter(isDone).length} of ${run.trials.length} trials ›`);
    COLUMNS.forEach((column, index) => {
      const cell = this.cells[index];
      if (column.text) setText(cell, column.text(run));
      const title = column.title?.(run) ?? '';
      if (cell.title !== title) cell.title = title;
    });
    setText(this.cells[3], run.differing);
    this.cells[3].title = run.overrides.join('\n');
    this.showStop();
  }

  /** Each trial has a button in its details; a sweep as a whole has none. */
  showStop() {
    if (this.run.trials) this.stop.element.hidden = true;
    else this.stop.show(this.run);
  }

  /** Show whether its details are below, and whether it is compared; `compared` has the classes of lines by id. */
  mark(isChosen, compared) {
    const ids = seenOf(this.run).map(({id}) => id);
    const count = ids.filter((id) => compared.has(id)).length;
    this.pick.checked = count === ids.length;
    this.pick.indeterminate = count > 0 && count < ids.length;
    if (this.run.trials || this.isChosen === isChosen) return;
    this.isChosen = isChosen;
    this.element.classList.toggle('chosen', isChosen);
    this.button.setAttribute('aria-pressed', String(isChosen));
  }
}
