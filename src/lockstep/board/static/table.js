// The table of runs. A row belongs to a run: a refresh changes only what has changed, and the focus stays.
import {arrange, count, day, duration, make, makeProgress, makeState, moment, of, score, seconds, setProgress, setState,
  setText} from './elements.js';
import {Heads} from './heads.js';
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
    this.answer = {};
    this.shown = new Set(); // ids that match the filter
    this.compared = new Set(); // ids
    this.chosen = null;
    this.heads = new Heads(() => this.show(this.answer, this.shown));
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
      compare(seenOf(run), event.target.checked);
    };
  }

  /** Show those rows of the answer of the plugin that have one of the ids in `shown`: a run, or a sweep with its trials. */
  show(answer, shown) {
    Object.assign(this, {answer, shown});
    const rows = this.lines().map((run) => {
      const row = this.rows.get(run.id) ?? new Row(run, this.control);
      row.show(run);
      this.markRow(row);
      return [run.id, row];
    });
    this.rows = new Map(rows);
    arrange(this.body, rows.map(([, {element}]) => element));
  }

  /** Runs and sweeps in their order. */
  lines() {
    const {runs = [], sweeps = [], differing} = this.answer;
    const alone = runs.filter(({id, sweep}) => sweep === undefined && this.shown.has(id));
    const seen = sweeps.map((sweep) => ({...sweep, seen: sweep.trials.filter((id) => this.shown.has(id))}));
    const rows = [...alone, ...seen.filter((sweep) => sweep.seen.length)];
    const only = (key) => {
      const names = new Set(rows.map((run) => run[key]).filter(Boolean));
      return names.size === 1 ? [...names][0] : '';
    };
    const shared = {monitor: only('monitor'), tested: only('tested')};
    this.heads.rename('Best', `Best ${shared.monitor}`.trim());
    this.heads.rename('Test', shared.tested || 'Test');
    this.element.classList.toggle('no-tags', !rows.some((run) => run.tags?.length));
    return this.heads.sorted(rows.map((run) => ({...run, shared, differing: differing[run.id]})));
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

/** The ids of the runs of a row: of a sweep, those of its trials that match the filter. */
const seenOf = (run) => run.seen ?? [run.id];

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
    if (run.trials) setText(this.number, `${run.num_done} of ${run.trials.length} trials ›`);
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
    const ids = seenOf(this.run);
    const count = ids.filter((id) => compared.has(id)).length;
    this.pick.checked = count === ids.length;
    this.pick.indeterminate = count > 0 && count < ids.length;
    if (this.run.trials || this.isChosen === isChosen) return;
    this.isChosen = isChosen;
    this.element.classList.toggle('chosen', isChosen);
    this.button.setAttribute('aria-pressed', String(isChosen));
  }
}
