// The tab Training: TensorBoard loads this module into a frame of its own and calls `render`.
import {make, makeCommand, setCommand, setText} from './elements.js';
import {Comparison, MOST} from './comparison.js';
import {Details} from './details.js';
import {Control, Refusal, get, request} from './server.js';
import {LIVE} from './stop.js';
import {Sweep} from './sweep.js';
import {RunTable} from './table.js';

const POLL_MS = 2000;

class Page {
  constructor() {
    this.answer = {}; // the last one: runs, sweeps, differing, folder
    this.runs = [];
    this.seen = null; // the last answer, as text
    this.chosen = null;
    this.isLost = false;
    const say = (text) => this.say(text);
    this.control = new Control(say, () => this.refresh());
    this.table = new RunTable(this.control, (id) => this.choose(id), (name) => this.open(name), (ids, isOn) => this.compare(ids, isOn));
    this.sweep = new Sweep(this);
    this.comparison = new Comparison(get, (ids, isOn) => this.compare(ids, isOn));
    this.details = new Details(this.control, get);
    this.message = make('p', {className: 'message', role: 'status'});
    this.alarm = make('p', {className: 'alarm', role: 'alert', hidden: true});
    this.note = make('p', {className: 'note', hidden: true});
    this.counts = make('p', {className: 'counts'});
    this.filter = make('input', {type: 'search', id: 'filter', placeholder: 'Filter runs', spellcheck: false,
      autocomplete: 'off', oninput: () => this.draw(),
      title: 'Words of the name, state, device, settings, note or tags of a run, or whole settings such as lr=0.1'});
    this.state = make('select', {id: 'state', onchange: () => this.draw()}, option('', 'All states'));
    this.command = makeCommand(say);
    setCommand(this.command, 'lockstep train');
    this.folder = make('code');
    this.empty = make('div', {className: 'empty', hidden: true}, make('h2', {textContent: 'No runs yet'}),
      make('p', {}, 'There is no run in ', this.folder, ' yet. Start one; it will appear here:'), this.command);
    this.nothing = make('p', {className: 'nothing', textContent: 'No run matches the filter.', hidden: true});
    this.tools = make('div', {className: 'tools', hidden: true}, // until there are runs
      make('label', {className: 'unseen', htmlFor: 'filter'}, 'Filter runs'), this.filter,
      make('label', {className: 'unseen', htmlFor: 'state'}, 'State'), this.state, this.counts, this.message);
    this.element = make('main', {}, make('h1', {className: 'unseen', textContent: 'Training'}), this.alarm, this.note,
      this.sweep.head, this.tools, this.table.element, this.sweep.grid.element, this.nothing, this.empty, this.sweep.charts,
      this.comparison.element,
      this.details.element);
  }

  /** Show a message for a while. */
  say(text) {
    setText(this.message, text);
    clearTimeout(this.silence);
    this.silence = setTimeout(() => setText(this.message, ''), 12000);
  }

  choose(id) {
    this.chosen = id;
    this.table.mark(id);
    this.sweep.mark(this.chosen, this.comparison.chosen);
    this.showDetails();
  }

  /** Add runs to the comparison, or remove them. */
  compare(ids, isOn) {
    const isAll = this.comparison.change(ids, isOn);
    if (!isAll) this.say(`At most ${MOST} lines can be compared.`);
    this.table.markCompared(this.comparison.chosen);
    this.sweep.mark(this.chosen, this.comparison.chosen);
    this.showComparison();
  }

  /** Show a sweep in place of the list, or the list without a name. The browser goes back by its own button, too. */
  open(name) {
    window.location.hash = encodeURIComponent(name);
  }

  /** Show what the address names. */
  async follow() {
    const before = this.sweep.name;
    this.sweep.open(decodeURIComponent(window.location.hash.slice(1)));
    await this.refresh();
    this.draw();
    (this.sweep.name ? this.sweep.back : this.table.rows.get(`sweep ${before}`)?.button)?.focus();
    await this.showDetails();
  }

  /** Go back to the list by Escape, where it has no other meaning. */
  escape({key, target}) {
    const isElsewhere = target.closest('input:not([type=checkbox]), select, textarea, svg');
    if (key === 'Escape' && this.sweep.name && !isElsewhere && !this.sweep.menu.matches(':popover-open')) this.open('');
  }

  search(text) {
    this.filter.value = text;
    this.draw();
  }

  async refresh() {
    try {
      if (this.isLost || !this.control.isLoaded) await this.loadControl();
      const [text, isOther] = await Promise.all([request('runs'), this.sweep.load()]);
      this.isLost = false;
      this.answered = new Date();
      this.alarm.hidden = true;
      this.element.classList.remove('lost');
      const isNew = text !== this.seen;
      if (isNew) {
        this.seen = text;
        this.answer = JSON.parse(text);
        this.runs = this.answer.runs;
        setText(this.folder, `${this.answer.folder}/`);
      }
      if (isNew || isOther) this.draw();
    } catch (error) {
      this.lose(error);
    }
    await Promise.all([this.showDetails(), this.showComparison()]);
  }

  async loadControl() {
    const before = this.control.reason;
    await this.control.load();
    if (this.control.reason !== before) this.table.refreshButtons();
    setText(this.note, this.control.reason);
  }

  /** TensorBoard does not answer, or refuses: show which, and the age of the data. */
  lose(error) {
    this.isLost = true;
    this.element.classList.add('lost');
    const since = this.answered ? ` Last update at ${this.answered.toLocaleTimeString('en-GB')}.` : '';
    const what = error instanceof Refusal ? error.message : 'TensorBoard does not answer.';
    setText(this.alarm, `${what}${since} Trying again.`);
    this.alarm.title = error.message;
    this.alarm.hidden = false;
  }

  draw() {
    this.offerStates();
    const runs = this.sweep.name ? this.sweep.trials(this.runs) : this.runs;
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = runs.filter((run) => this.matchesState(run.state) && matches(run, words));
    const num_live = runs.filter((run) => LIVE.has(run.state)).length;
    const part = shown.length < runs.length ? `${shown.length} of ` : '';
    const what = this.sweep.name ? 'trial' : 'run';
    setText(this.counts, `${part}${runs.length} ${runs.length === 1 ? what : `${what}s`}, ${num_live} live`);
    setText(this.table.caption, `${this.counts.textContent}, with their states and progress`);
    this.note.hidden = !num_live || !this.control.reason;
    this.empty.hidden = this.runs.length > 0;
    this.tools.hidden = this.runs.length === 0;
    this.nothing.hidden = shown.length > 0 || runs.length === 0;
    this.table.element.hidden = this.sweep.name !== '' || shown.length === 0;
    if (!runs.some((run) => run.id === this.chosen)) {
      this.chosen = (runs.find((run) => LIVE.has(run.state)) ?? runs[0])?.id ?? null;
      this.table.mark(this.chosen);
    }
    if (this.sweep.name) this.sweep.show(shown, this.chosen, this.comparison.chosen);
    else this.table.show(this.answer, new Set(shown.map(({id}) => id)));
  }

  matchesState(state) {
    return !this.state.value || state === this.state.value || (this.state.value === 'live' && LIVE.has(state));
  }

  /** Offer the states of the runs; an open list changes only when they do. */
  offerStates() {
    const states = [...new Set(this.runs.map((run) => run.state)), this.state.value].filter(Boolean);
    const offered = ['', 'live', ...[...new Set(states)].filter((state) => state !== 'live').sort()];
    if (offered.join() === [...this.state.options].map((each) => each.value).join()) return;
    const {value} = this.state;
    this.state.replaceChildren(...offered.map((state) => option(state, state || 'All states')));
    this.state.value = value;
  }

  showDetails() {
    return this.tried(this.details.show(this.runs.find((run) => run.id === this.chosen) ?? null));
  }

  showComparison() {
    return this.tried(this.comparison.show(this.runs, this.sweep.name));
  }

  async tried(work) {
    try {
      await work;
    } catch (error) {
      if (!this.isLost) this.say(error.message);
    }
  }
}

/** All words occur in the texts of a run. Of settings a word with = is a whole one: lr=0.1 is not lr=0.15. */
function matches(run, words) {
  const pairs = Object.entries(run.settings ?? {}).map((pair) => pair.join('='));
  const settings = [...run.overrides, ...pairs].map((text) => text.toLowerCase());
  const known = [run.run, run.name, run.state, run.device, run.note, ...run.tags ?? []].filter(Boolean);
  const texts = known.join('\n').toLowerCase();
  const isIn = (word) => (text) => (word.includes('=') ? text.endsWith(word) : text.includes(word));
  return words.every((word) => texts.includes(word) || settings.some(isIn(word)));
}

const option = (value, text) => make('option', {value, textContent: text});

/** The frame is hidden: another window is in front, or another tab of TensorBoard. */
const isHidden = () => document.hidden || window.frameElement?.getClientRects().length === 0;

/** Be dark if TensorBoard is, by the page around the frame; else follow the system. */
function followTheme() {
  let dark = () => window.matchMedia('(prefers-color-scheme: dark)').matches;
  const set = () => document.documentElement.classList.toggle('dark', dark());
  try {
    if (window.parent !== window) {
      const {body} = window.parent.document;
      dark = () => body.classList.contains('dark-mode');
      new MutationObserver(set).observe(body, {attributes: true, attributeFilter: ['class']});
    }
  } catch { // a page of another site: follow the system
  }
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', set);
  set();
}

/** Use the fonts of TensorBoard, which the page around the frame serves. */
function borrowFonts(sheet) {
  try {
    const rules = [...window.parent.document.styleSheets].flatMap((each) => [...each.cssRules]);
    for (const rule of rules) if (rule.cssText.startsWith('@font-face')) sheet.insertRule(rule.cssText);
  } catch { // a page of another site: use the fonts of the system
  }
}

export async function render() {
  document.documentElement.lang = 'en';
  document.title = 'Training';
  const style = make('link', {rel: 'stylesheet', href: './style.css'});
  await new Promise((done) => {
    style.onload = style.onerror = done;
    document.head.append(style);
  });
  followTheme();
  if (window.parent !== window && style.sheet) borrowFonts(style.sheet);
  const page = new Page();
  document.body.append(page.element);
  let isBusy = false;
  const poll = async () => {
    if (isBusy || isHidden()) return;
    isBusy = true;
    await page.refresh();
    isBusy = false;
  };
  document.addEventListener('visibilitychange', poll);
  window.addEventListener('hashchange', () => page.follow());
  document.addEventListener('keydown', (event) => page.escape(event));
  new IntersectionObserver(poll).observe(page.element); // the frame is shown again
  setInterval(poll, POLL_MS);
  await page.follow();
}
