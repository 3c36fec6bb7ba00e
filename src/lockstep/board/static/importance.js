// The importance of the settings of a search, as Optuna computes it from the finished trials.
import {make, setText} from './elements.js';

const TIMES_MS = [0, 10000]; // a search tells Optuna a little after the end of a trial

export class Importance {
  /** `get(path)` resolves to the answer of the plugin. */
  constructor(get) {
    this.get = get;
    this.list = make('ol', {className: 'importance'});
    this.note = make('p', {className: 'faint'});
    this.element = make('figure', {className: 'chart', hidden: true},
      make('figcaption', {}, make('h3', {textContent: 'Importance of settings'})), this.list, this.note);
  }

  /** Show the importances of the search `name`; ask for them when another trial has finished. No poll waits for them. */
  show(name, sweep) {
    this.element.hidden = !sweep.is_search;
    if (!sweep.is_search) return;
    const seen = `${name} ${sweep.trials.filter(({state}) => state === 'finished').length}`;
    if (seen === this.seen) return;
    if (name !== this.name) {
      this.list.replaceChildren();
      setText(this.note, 'Computing…');
    }
    Object.assign(this, {name, seen});
    for (const ms of TIMES_MS) setTimeout(() => this.ask(seen, sweep.metrics[0]), ms);
  }

  async ask(seen, objective) {
    if (seen !== this.seen) return;
    try {
      const answer = await this.get(`importance?name=${encodeURIComponent(this.name)}`);
      if (seen === this.seen) this.draw(answer, objective);
    } catch (error) {
      if (seen !== this.seen) return;
      this.seen = null; // ask again
      setText(this.note, error.message);
    }
  }

  draw({num_finished, least, importances, chance}, objective) {
    this.list.setAttribute('aria-label', `Importance of settings for ${objective}`);
    this.list.replaceChildren(...Object.entries(importances).map(([key, value]) => {
      const low = Math.min(chance[key], 1); // the browser colors a meter that does not exceed it
      const percent = ` ${Math.round(100 * value)} %${value > chance[key] ? '' : ', may be chance'}`;
      return make('li', {title: key}, make('span', {textContent: key}),
        make('meter', {value, low, high: low, optimum: 1, 'aria-label': key}), make('span', {textContent: percent}));
    }));
    setText(this.note, num_finished < least
      ? `Too few trials: it needs ${least} finished ones; there are ${num_finished}.`
      : `How much each setting decided which of the ${num_finished} finished trials are the best quarter by `
        + `${objective} (PED-ANOVA); not which of its values are better, nor what settings do only together. A setting may `
        + 'be chance if it reaches no more than with the results shuffled over the trials (19 times).');
  }
}
