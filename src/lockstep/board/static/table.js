// The table of runs. A row belongs to a run for good: a refresh changes only what has changed, and the focus stays.
import {count, day, duration, make, makeProgress, makeState, moment, of, score, seconds, setProgress, setState, setText}
  from './elements.js';
import {StopButton} from './stop.js';

const ORDER = ['starting', 'training', 'validating', 'testing', 'stopping', 'stopped', 'pruned', 'finished', 'failed',
  'no signal', 'broken', 'not started'];

// value: what is sorted by; text: what a cell shows; the others are made by Row
const COLUMNS = [
  {name: 'State', value: (run) => ORDER.indexOf(run.state)},
  {name: 'Progress', value: (run) => run.percent, isDown: true},
  {name: 'Run', value: (run) => run.run},
  {name: 'Overrides', value: (run, differing) => differing, hint: 'Only those in which the runs below differ'},
  {name: 'Epoch', value: (run) => run.epoch, text: (run) => of(run.epoch, run.max_epochs), isDown: true},
  {name: 'Step', value: (run) => run.step, text: (run) => of(run.step, run.total_steps), isDown: true},
  {name: 'Time left', value: (run) => timeLeft(run), text: (run) => duration(timeLeft(run))},
  {name: 'Images/s', value: (run) => run.images_per_s, text: (run) => count(run.images_per_s), isDown: true},
  {name: 's/epoch', value: (run) => run.epoch_s, text: (run) => seconds(run.epoch_s)},
  {name: 'Workers', value: (run) => run.workers, text: (run) => count(run.workers), isDown: true},
  {name: 'Device', value: (run) => run.device, text: (run) => run.device ?? '–', isWord: true},
  {name: 'Best', value: (run) => run.best, text: (run) => score(run.best), title: (run) => run.monitor, isDown: true},
  {name: 'Started', value: (run) => run.started, text: (run) => day(run.started), title: (run) => moment(run.started),
    isDown: true},
];

/** Seconds to the end; unknown for a run that does not go on. */
export const timeLeft = (run) => (isOver(run) ? undefined : run.remaining_s);
const isOver = (run) => ['stopped', 'pruned', 'finished', 'failed', 'no signal', 'broken'].includes(run.state);

export class RunTable {
  /** `choose(id)` is called when a person picks a run. */
  constructor(control, choose) {
    this.control = control;
    this.choose = choose;
    this.rows = new Map();
    this.runs = [];
    this.chosen = null;
    this.sort = {column: COLUMNS.at(-1), isDown: true};
    this.heads = COLUMNS.map((column) => this.head(column));
    this.caption = make('caption', {className: 'unseen'});
    this.body = make('tbody');
    const last = make('th', {scope: 'col', className: 'action'}, make('span', {className: 'unseen', textContent: 'Stop'}));
    const table = make('table', {}, this.caption, make('thead', {}, make('tr', {}, ...this.heads, last)), this.body);
    this.element = make('div', {className: 'runs', tabIndex: 0, role: 'region', 'aria-label': 'Runs'}, table);
    this.body.onclick = (event) => {
      const row = event.target.closest('tr');
      if (row && window.getSelection().isCollapsed) this.choose(row.dataset.id); // not where a text was selected
    };
    this.markSort();
  }

  head(column) {
    const mark = make('span', {className: 'mark', 'aria-hidden': 'true'});
    const label = make('span', {className: 'label'}, column.name, mark);
    const button = make('button', {type: 'button', title: column.hint ?? ''}, label);
    button.onclick = () => {
      const isSame = this.sort.column === column;
      this.sort = {column, isDown: isSame ? !this.sort.isDown : Boolean(column.isDown)};
      this.markSort();
      this.show(this.runs);
    };
    return make('th', {scope: 'col', className: isNumber(column) ? 'number' : ''}, button);
  }

  markSort() {
    COLUMNS.forEach((column, place) => {
      const isSorted = this.sort.column === column;
      if (isSorted) this.heads[place].setAttribute('aria-sort', this.sort.isDown ? 'descending' : 'ascending');
      else this.heads[place].removeAttribute('aria-sort');
      setText(this.heads[place].querySelector('.mark'), isSorted ? (this.sort.isDown ? '▾' : '▴') : '');
    });
  }

  /** Show these runs and no others. */
  show(runs) {
    this.runs = runs;
    const differing = differingOverrides(runs);
    const ordered = this.sorted(runs, differing);
    const focused = document.activeElement;
    let next = this.body.firstChild;
    for (const run of ordered) {
      let row = this.rows.get(run.id);
      if (!row) {
        row = new Row(run.id, this.control);
        this.rows.set(run.id, row);
      }
      row.show(run, differing.get(run.id), run.id === this.chosen);
      if (row.element === next) next = next.nextSibling;
      else this.body.insertBefore(row.element, next);
    }
    while (next) {
      const after = next.nextSibling;
      this.rows.delete(next.dataset.id);
      next.remove();
      next = after;
    }
    // a row that moves loses the focus
    if (focused !== document.activeElement && this.body.contains(focused)) focused.focus({preventScroll: true});
  }

  /** Mark the row of the run whose details are shown. */
  mark(id) {
    this.rows.get(this.chosen)?.mark(false);
    this.chosen = id;
    this.rows.get(id)?.mark(true);
  }

  /** Follow a change of what the page may do. */
  refreshButtons() {
    for (const row of this.rows.values()) row.stop.show(row.run);
  }

  sorted(runs, differing) {
    const {column, isDown} = this.sort;
    const keyed = runs.map((run) => [column.value(run, differing.get(run.id)), run]);
    return keyed.sort(([a], [b]) => compare(a, b, isDown ? -1 : 1)).map(([, run]) => run);
  }
}

const isNumber = (column) => Boolean(column.text) && !column.isWord;
const words = new Intl.Collator('en', {numeric: true});
const isMissing = (value) => value === undefined || value === null || value === '';

/** What is not known comes last, whatever the direction. */
function compare(a, b, direction) {
  if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
  return direction * (typeof a === 'number' && typeof b === 'number' ? a - b : words.compare(a, b));
}

/** For every run, what was typed for it but not for all of them. */
function differingOverrides(runs) {
  const times = new Map();
  for (const run of runs) for (const each of new Set(run.overrides)) times.set(each, (times.get(each) ?? 0) + 1);
  const isCommon = (each) => runs.length > 1 && times.get(each) === runs.length;
  return new Map(runs.map((run) => [run.id, run.overrides.filter((each) => !isCommon(each)).join(' ')]));
}

class Row {
  constructor(id, control) {
    this.state = makeState();
    this.progress = makeProgress();
    this.folder = make('span', {className: 'faint'});
    this.name = make('span');
    this.button = make('button', {type: 'button', className: 'name'}, this.folder, this.name);
    this.stop = new StopButton(control);
    this.cells = COLUMNS.map((column) => (column.name === 'Run'
      ? make('th', {scope: 'row'}, this.button) : make('td', {className: isNumber(column) ? 'number' : ''})));
    this.cells[0].append(this.state);
    this.cells[1].append(this.progress);
    this.cells[3].className = 'overrides';
    this.element = make('tr', {}, ...this.cells, make('td', {className: 'action'}, this.stop.element));
    this.element.dataset.id = id;
  }

  show(run, differing, isChosen) {
    this.run = run;
    const seen = JSON.stringify([run, differing]);
    if (seen !== this.seen) {
      this.seen = seen;
      this.write(run, differing);
    }
    this.mark(isChosen);
  }

  write(run, differing) {
    setState(this.state, run.state);
    setProgress(this.progress, run.percent, run.state);
    const cut = run.run.lastIndexOf('/') + 1;
    setText(this.folder, run.run.slice(0, cut));
    setText(this.name, run.run.slice(cut));
    COLUMNS.forEach((column, place) => {
      const cell = this.cells[place];
      if (column.text) setText(cell, column.text(run));
      const title = column.title?.(run) ?? '';
      if (cell.title !== title) cell.title = title;
    });
    setText(this.cells[3], differing);
    this.cells[3].title = run.overrides.join('\n');
    this.stop.show(run);
  }

  mark(isChosen) {
    if (this.isChosen === isChosen) return;
    this.isChosen = isChosen;
    this.element.classList.toggle('chosen', isChosen);
    this.button.setAttribute('aria-pressed', String(isChosen));
  }
}
