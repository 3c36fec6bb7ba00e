// A sweep in place of the list of runs: its trials with a column for each setting and metric, or its settings, which
// are trials that differ in seed or fold only.
import {columnsOfSettings, columnsOfTrials} from './columns.js';
import {make, setText} from './elements.js';
import {Grid} from './grid.js';
import {Importance} from './importance.js';
import {Parallel} from './parallel.js';
import {Refusal, get, request} from './server.js';
import {REPEATS} from './table.js';

const VIEWS = ['Settings', 'Trials'];
/** A sweep that cannot be read, whose trials are known from the list of runs. */
const UNKNOWN = {keys: [], metrics: [], repeated: [], groups: [], best_trials: []};

/** Where this browser keeps the hidden columns of a sweep. */
const keyOf = (name) => `lockstep hidden columns ${name}`;

export class Sweep {
  /** `page` has say, choose(id), compare(ids, isOn), search(text), and open(name): without a name, the list of runs. */
  constructor(page) {
    this.page = page;
    this.name = '';
    this.title = make('h2');
    const button = (textContent, onclick) => make('button', {type: 'button', className: 'quiet', textContent, onclick});
    this.views = VIEWS.map((view) => button(view, () => this.turn(view)));
    this.switch = make('div', {className: 'switch', role: 'group', 'aria-label': 'Rows'}, ...this.views);
    this.back = button('‹ All runs', () => page.open(''));
    this.menu = make('div', {className: 'menu', popover: 'auto', onbeforetoggle: () => this.place(),
      onchange: (event) => this.hide(event.target.value, !event.target.checked)});
    this.opener = button('Columns ▾');
    this.opener.popoverTargetElement = this.menu;
    this.grid = new Grid('Trials', (row) => this.press(row), (row, isOn) => page.compare(row.ids, isOn));
    this.parallel = new Parallel((row) => this.press(row));
    this.importance = new Importance(get);
    this.charts = make('section', {className: 'compared', 'aria-label': 'Charts of the sweep', hidden: true},
      make('div', {className: 'charts wide'}, this.parallel.element, this.importance.element));
    this.reason = make('p', {className: 'wrong', hidden: true});
    this.tools = make('div', {className: 'of-sweep', hidden: true}, this.switch, this.opener, this.menu);
    this.head = make('header', {className: 'sweep', hidden: true}, this.back, this.title, this.tools, this.reason);
  }

  /** Show the sweep of a name, or nothing. */
  open(name) {
    this.name = name;
    this.seen = this.answer = this.rows = this.offered = null;
    this.view = VIEWS[0];
    this.menu.hidePopover();
    this.head.hidden = !name;
    this.grid.element.hidden = this.tools.hidden = this.charts.hidden = true;
    setText(this.title, name);
    try {
      this.hidden = JSON.parse(window.localStorage.getItem(keyOf(name))) ?? [];
    } catch { // this browser keeps nothing
      this.hidden = [];
    }
  }

  /** Fetch the sweep. Returns whether something has changed. */
  async load() {
    const {name} = this;
    if (!name) return false;
    const answer = await request(`sweep?${new URLSearchParams({name})}`).catch((error) => {
      if (error instanceof Refusal) return error;
      throw error;
    });
    if (name !== this.name || String(answer) === this.seen) return false;
    this.seen = String(answer);
    this.answer = answer instanceof Refusal ? UNKNOWN : JSON.parse(answer);
    setText(this.reason, answer.message ?? '');
    this.reason.hidden = this.answer !== UNKNOWN;
    return true;
  }

  /** The trials as runs that have also what the table of the sweep has. */
  trials(runs) {
    if (!this.answer) return [];
    const facts = new Map(runs.map((run) => [run.id, run]));
    const found = runs.filter(({sweep}) => sweep === this.name);
    return (this.answer.trials ?? found.map(({run, id}) => ({trial: run.split('/').at(-1), id}))).map((trial) => {
      const run = facts.get(trial.id) ?? {run: `${this.name}/${trial.trial}`, overrides: [], metrics: {}};
      const title = `trial ${trial.trial}, ${trial.state}`;
      const ids = trial.id ? [trial.id] : [];
      return {...trial, ...run, key: trial.trial, title, ids, metrics: {...run.metrics, ...trial.values}};
    });
  }

  /** Show these trials. `chosen` is the id of the run below, `compared` has the ids of the compared ones. */
  show(trials, chosen, compared) {
    Object.assign(this, {shown: trials, chosen, compared});
    this.grid.element.hidden = !trials.length;
    this.tools.hidden = !this.answer;
    if (!this.answer) return;
    const best = new Set(this.answer.best_trials);
    const keys = this.answer.keys.filter((key) => !REPEATS.has(key));
    const settings = this.settings(keys);
    this.switch.hidden = settings.every(({all}) => all.length === 1);
    const isTrials = this.switch.hidden || this.view === 'Trials';
    for (const view of this.views) view.setAttribute('aria-pressed', (view.textContent === 'Trials') === isTrials);
    const seen = new Set(trials.map(({trial}) => trial));
    this.rows = isTrials ? trials : settings.filter(({all}) => all.some((trial) => seen.has(trial)));
    this.charts.hidden = !keys.length;
    this.parallel.show(keys, this.answer, this.rows, isTrials ? 'trials' : 'settings');
    this.importance.show(this.name, this.answer);
    this.all = (isTrials ? columnsOfTrials : columnsOfSettings)(this.answer, this.rows);
    this.columns = this.all.filter(({name}, place) => place === 0 || !this.hidden.includes(name));
    this.grid.show(this.columns, this.rows, (row) => ({
      isChosen: isTrials && row.id === this.chosen,
      isBest: isTrials ? best.has(row.trial) && best.size < this.answer.trials?.length
        : row.trials.length > 0 && row.trials.every((trial) => best.has(trial)),
      compared: row.ids.filter((id) => this.compared.has(id)).length / row.ids.length,
    }));
    this.offer();
  }

  /** The settings by these keys with all of their trials; without a finished one they have no mean, and come last. */
  settings(keys) {
    const {trials, repeated, groups, metrics} = this.answer;
    const known = new Map((trials ?? []).map((trial) => [trial.trial, trial]));
    const means = new Map(groups.map((group) => [group.trials[0], group]));
    return repeated.map((all, key) => {
      const group = means.get(all.find((trial) => means.has(trial)))
        ?? {trials: [], num_trials: all.length, n: 0, tests: {}};
      const {settings} = known.get(all[0]);
      const tests = Object.entries(group.tests).map(([name, {mean}]) => [name, mean]);
      return {...group, key, all, title: `setting ${key + 1}, mean of ${group.n}`,
        settings: Object.fromEntries(keys.filter((each) => each in settings).map((each) => [each, settings[each]])),
        values: Object.fromEntries([[metrics[0], group.mean], ...tests]),
        ids: all.map((trial) => known.get(trial).id).filter(Boolean)};
    });
  }

  /** Show what has changed besides the trials. */
  mark(chosen, compared) {
    Object.assign(this, {chosen, compared});
    if (this.answer && this.rows) this.grid.draw();
  }

  turn(view) {
    this.view = view;
    this.show(this.shown, this.chosen, this.compared);
  }

  /** A setting opens its trials, by a filter that can be changed. */
  press(row) {
    if (row.all) {
      this.view = 'Trials';
      this.page.search(Object.entries(row.settings).map((pair) => pair.join('=')).join(' '));
    } else if (row.id) this.page.choose(row.id);
  }

  // -- columns that are shown -----------------------------------------------------------------------------------------

  /** Put the menu below its button. */
  place() {
    const {bottom, right} = this.opener.getBoundingClientRect();
    this.menu.style.inset = `${bottom + 4}px ${document.documentElement.clientWidth - right}px auto auto`;
  }

  offer() {
    const names = JSON.stringify(this.all.map(({name}) => name));
    if (names === this.offered) return;
    this.offered = names;
    this.menu.replaceChildren(...this.all.slice(1).map(({name}) => make('label', {},
      make('input', {type: 'checkbox', value: name, checked: !this.hidden.includes(name)}), name)));
  }

  hide(name, isHidden) {
    this.hidden = this.hidden.filter((each) => each !== name).concat(isHidden ? [name] : []);
    try {
      window.localStorage.setItem(keyOf(this.name), JSON.stringify(this.hidden));
    } catch { // this browser keeps nothing
    }
    this.turn(this.view);
  }
}
