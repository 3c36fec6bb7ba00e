// The tab Training: TensorBoard loads this module into a frame of its own and calls `render`.
import {make, makeCommand, setCommand, setText} from './elements.js';
import {Comparison, MOST} from './comparison.js';
import {Details} from './details.js';
import {LIVE} from './stop.js';
import {RunTable} from './table.js';

const POLL_MS = 2000;
const PATIENCE_MS = 10000;

// -- answers of the server ---------------------------------------------------------------------------------------------

/** TensorBoard answered with a refusal. */
class Refusal extends Error {}

/** The answer of the plugin as text. Throws Refusal with the reason of a refusal. */
async function request(path, options = {}) {
  const answer = await fetch(`./${path}`, {cache: 'no-store', signal: AbortSignal.timeout(PATIENCE_MS), ...options});
  const text = await answer.text();
  if (!answer.ok) throw new Refusal(reasonIn(text) ?? (answer.status === 403 ? text : `TensorBoard answered ${answer.status}.`));
  return text;
}

const get = async (path) => JSON.parse(await request(path));

function reasonIn(text) {
  try {
    return JSON.parse(text).message;
  } catch {
    return undefined;
  }
}

/** Requests to stop a run, and the reason if they are off. */
class Control {
  constructor(say, refresh) {
    this.say = say;
    this.refresh = refresh;
    this.isLoaded = false;
    this.reason = 'Stop is not ready yet.';
  }

  /** Check whether this TensorBoard may stop runs; a restarted one may answer differently. */
  async load() {
    const {reason} = await get('control');
    this.isLoaded = true;
    this.reason = isFramedByStranger()
      ? 'Stop is off inside a page of another site: open TensorBoard in a window of its own.' : reason;
  }

  async ask(run) {
    const headers = {'Content-Type': 'application/json'};
    try {
      const answer = await request('stop', {method: 'POST', headers, body: JSON.stringify({run: run.id})});
      this.say(JSON.parse(answer).message);
    } catch (error) {
      this.say(error.message);
      this.isLoaded = false; // TensorBoard may have been restarted
    }
    await this.refresh();
  }
}

function isFramedByStranger() {
  try {
    return window.top.location.origin !== window.location.origin;
  } catch {
    return true; // only a page of another origin denies access
  }
}

// -- the page ----------------------------------------------------------------------------------------------------------

class Page {
  constructor() {
    this.runs = [];
    this.seen = null; // the last answer, as text
    this.chosen = null;
    this.isLost = false;
    const say = (text) => this.say(text);
    this.control = new Control(say, () => this.refresh());
    this.table = new RunTable(this.control, (id) => this.choose(id), (ids, isOn) => this.compare(ids, isOn));
    this.comparison = new Comparison(get, (ids, isOn) => this.compare(ids, isOn));
    this.details = new Details(this.control, get);
    this.message = make('p', {className: 'message', role: 'status'});
    this.alarm = make('p', {className: 'alarm', role: 'alert', hidden: true});
    this.note = make('p', {className: 'note', hidden: true});
    this.counts = make('p', {className: 'counts'});
    this.filter = make('input', {type: 'search', id: 'filter', placeholder: 'Filter runs', spellcheck: false,
      autocomplete: 'off', title: 'Words of the name, state, device or overrides of a run', oninput: () => this.draw()});
    this.state = make('select', {id: 'state', onchange: () => this.draw()}, option('', 'All states'));
    this.command = makeCommand(say);
    setCommand(this.command, 'lockstep train');
    this.folder = make('code');
    this.empty = make('div', {className: 'empty', hidden: true}, make('h2', {textContent: 'No runs yet'}),
      make('p', {}, 'There is no run in ', this.folder, ' yet. Start one; it will appear here:'), this.command);
    this.nothing = make('p', {className: 'nothing', textContent: 'No run matches the filter.', hidden: true});
    this.tools = make('div', {className: 'tools'}, make('label', {className: 'unseen', htmlFor: 'filter'}, 'Filter runs'),
      this.filter, make('label', {className: 'unseen', htmlFor: 'state'}, 'State'), this.state, this.counts, this.message);
    this.element = make('main', {}, make('h1', {className: 'unseen', textContent: 'Training'}), this.alarm, this.note,
      this.tools, this.table.element, this.nothing, this.empty, this.comparison.element,
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
    this.showDetails();
  }

  /** Add runs to the comparison, or remove them. */
  compare(ids, isOn) {
    const isAll = this.comparison.change(ids, isOn);
    if (!isAll) this.say(`At most ${MOST} runs can be compared.`);
    this.table.markCompared(this.comparison.places);
    this.showComparison();
  }

  async refresh() {
    try {
      if (this.isLost || !this.control.isLoaded) await this.loadControl();
      const text = await request('runs');
      this.isLost = false;
      this.answered = new Date();
      this.alarm.hidden = true;
      this.element.classList.remove('lost');
      if (text !== this.seen) {
        this.seen = text;
        const answer = JSON.parse(text);
        this.runs = answer.runs;
        setText(this.folder, `${answer.folder}/`);
        this.draw();
      }
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
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = this.runs.filter((run) => this.matchesState(run.state) && words.every((word) => textOf(run).includes(word)));
    const num_live = this.runs.filter((run) => LIVE.has(run.state)).length;
    const part = shown.length < this.runs.length ? `${shown.length} of ` : '';
    setText(this.counts, `${part}${this.runs.length} ${this.runs.length === 1 ? 'run' : 'runs'}, ${num_live} live`);
    setText(this.table.caption, `${this.counts.textContent}, with their states and progress`);
    this.note.hidden = !num_live || !this.control.reason;
    this.empty.hidden = this.runs.length > 0;
    this.tools.hidden = this.runs.length === 0;
    this.nothing.hidden = shown.length > 0 || this.runs.length === 0;
    this.table.element.hidden = shown.length === 0;
    if (!this.runs.some((run) => run.id === this.chosen)) {
      this.chosen = (this.runs.find((run) => LIVE.has(run.state)) ?? this.runs[0])?.id ?? null;
      this.table.mark(this.chosen);
    }
    this.table.show(this.runs, new Set(shown.map(({id}) => id)), words.length > 0);
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
    return this.tried(this.comparison.show(this.runs));
  }

  async tried(work) {
    try {
      await work;
    } catch (error) {
      if (!this.isLost) this.say(error.message);
    }
  }
}

const option = (value, text) => make('option', {value, textContent: text});
const textOf = (run) => [run.run, run.state, run.device ?? '', ...run.overrides].join(' ').toLowerCase();

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
  new IntersectionObserver(poll).observe(page.element); // the frame is shown again
  setInterval(poll, POLL_MS);
  await poll();
}
