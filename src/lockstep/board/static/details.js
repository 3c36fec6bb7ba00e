// One run: its status, the command that resumes it, its curves and its settings.
import {Chart} from './charts.js';
import {points} from './comparison.js';
import {Confusion} from './confusion.js';
import {count, duration, make, makeCommand, makeProgress, makeState, moment, number, of, score, setCommand, setProgress,
  setState, setText} from './elements.js';
import {Notes} from './notes.js';
import {LIVE, StopButton} from './stop.js';
import {timeLeft} from './table.js';

const CURVES_EVERY_MS = 8000; // TensorBoard itself looks for new events every 5 s
const CURVES_AFTER_END_MS = 30000;

const FIELDS = [
  ['Reason', (run) => run.reason],
  ['Started', (run) => moment(run.started)],
  ['Elapsed', (run) => duration(run.elapsed_s)],
  ['Time left', (run) => (LIVE.has(run.state) ? duration(timeLeft(run)) : '')],
  ['Epoch', (run) => of(run.epoch, run.max_epochs)],
  ['Step', (run) => of(run.step, run.total_steps)],
  ['Learning rate', (run) => number(run.learning_rate)],
  ['Images/s', (run) => count(run.images_per_s)],
  ['Workers', (run) => count(run.workers)],
  ['Device', (run) => run.device],
  ['Precision', (run) => run.precision],
  ['Host', (run) => run.host],
  ['Best', (run) => (run.monitor && Number.isFinite(run.best) ? `${run.monitor} ${score(run.best)}` : score(run.best))],
  ['Weights', (run) => run.weights_sha256?.slice(0, 12)],
  ['Metrics', (run) => (run.metrics_epoch ? `of epoch ${run.metrics_epoch}` : '')],
];

export class Details {
  /** `get(path)` resolves to the answer of the plugin, `control` belongs to the Stop button. */
  constructor(control, get) {
    this.get = get;
    this.run = null;
    this.state = makeState();
    this.name = make('h2');
    this.stop = new StopButton(control);
    this.progress = makeProgress();
    this.commands = {resume: makeCommand(control.say), command: makeCommand(control.say)};
    this.resume = make('div', {className: 'resume'}, make('span', {textContent: 'Resume:'}), this.commands.resume);
    const again = make('div', {className: 'again'}, make('span', {textContent: 'Train again:'}), this.commands.command);
    this.notes = new Notes(control);
    this.fields = make('dl');
    this.charts = {loss: new Chart('Loss', 'epoch'), accuracy: new Chart('Accuracy', 'epoch'),
      steps: new Chart('Loss of a step', 'step')};
    this.confusion = new Confusion();
    this.overrides = make('ul', {className: 'overrides'});
    const charts = [...Object.values(this.charts), this.confusion].map((chart) => chart.element);
    this.element = make('section', {className: 'details', 'aria-label': 'Selected run', hidden: true},
      make('header', {}, this.state, this.name, this.progress, this.stop.element), this.resume, again,
      this.notes.element,
      make('div', {className: 'facts'}, this.fields, make('div', {className: 'charts'}, ...charts)),
      make('h3', {textContent: 'Settings of the command line'}), this.overrides);
  }

  /** Show a run, or nothing; fetch its details if it has changed. */
  async show(run) {
    this.element.hidden = !run;
    if (!run) {
      this.run = null;
      return;
    }
    const isOther = this.run?.id !== run.id;
    const isChanged = isOther || this.run.updated !== run.updated || this.run.state !== run.state;
    this.run = run;
    this.write(run);
    if (isOther) this.forget();
    if (isChanged) {
      this.changedAt = performance.now();
      await this.load(run);
    }
    this.loadCurves(run).catch(() => {}); // the list shows if TensorBoard does not answer
  }

  write(run) {
    setState(this.state, run.state);
    setText(this.name, run.run);
    setProgress(this.progress, run.percent, run.state);
    this.stop.show(run);
    this.notes.show(run);
    const scores = Object.entries(run.metrics).map(([name, value]) => [name, score(value)]);
    const rows = FIELDS.map(([name, text]) => [name, text(run) || '–']).filter(([, text]) => text !== '–');
    setPairs(this.fields, [...rows, ...scores]);
    setItems(this.overrides, run.overrides.length ? run.overrides : ['none: all defaults']);
    this.overrides.classList.toggle('faint', !run.overrides.length);
  }

  /** Clear the details of the previous run. */
  forget() {
    this.curves = null;
    this.curvesAt = -Infinity;
    this.resume.hidden = true;
    for (const chart of Object.values(this.charts)) chart.show([]);
    this.charts.steps.element.hidden = true;
    this.confusion.show(null);
  }

  async load(run) {
    const details = await this.get(`run?id=${run.id}`);
    if (this.run?.id !== run.id) return; // another run was selected since
    this.curves = details.curves;
    this.confusion.show(details.confusion);
    this.resume.hidden = !details.resume;
    for (const [name, command] of Object.entries(this.commands)) setCommand(command, details[name] ?? '');
    for (const name of ['loss', 'accuracy']) {
      this.charts[name].show([
        {name: 'train', kind: 'train', points: points(details.rows, `train/${name}`)},
        {name: 'validation', kind: 'validation', points: points(details.rows, `val/${name}`)},
      ]);
    }
  }

  /** Fetch the loss of each step from TensorBoard's own plugin, while there may be new ones. */
  async loadCurves(run) {
    const now = performance.now();
    const mayGrow = LIVE.has(run.state) || now - this.changedAt < CURVES_AFTER_END_MS;
    const isDue = this.curvesAt === -Infinity || (mayGrow && now - this.curvesAt > CURVES_EVERY_MS);
    if (!this.curves || !isDue) return;
    this.curvesAt = now;
    const query = new URLSearchParams(this.curves);
    const signal = AbortSignal.timeout(CURVES_EVERY_MS);
    const answer = await fetch(`../scalars/scalars?${query}`, {cache: 'no-store', signal});
    const values = answer.ok ? await answer.json() : []; // 404: none are logged, or not yet
    if (this.run?.id !== run.id) return;
    const found = values.filter(([, step, value]) => Number.isFinite(step) && Number.isFinite(value));
    this.charts.steps.element.hidden = !found.length;
    this.charts.steps.show([{name: 'train', kind: 'train',
      points: found.map(([, step, value]) => [step, value]).sort(([a], [b]) => a - b)}]);
  }
}

/** Change the texts of a list of pairs, and its length where that has changed. */
function setPairs(list, pairs) {
  while (list.children.length > 2 * pairs.length) list.lastChild.remove();
  while (list.children.length < 2 * pairs.length) list.append(make('dt'), make('dd'));
  pairs.flat().forEach((text, place) => setText(list.children[place], text));
}

function setItems(list, texts) {
  while (list.children.length > texts.length) list.lastChild.remove();
  while (list.children.length < texts.length) list.append(make('li', {}, make('code')));
  texts.forEach((text, place) => setText(list.children[place].firstChild, text));
}
