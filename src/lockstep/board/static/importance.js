// The importance of the settings of a search, as Optuna computes it from the finished trials.
import {make, setText} from './elements.js';

const TIMES_MS = [0, 10000]; // a search tells Optuna a little after the end of a trial

export class Importance {
  /** `get(path)` resolves to the answer of the plugin. */
  constructor(get) {
    this.get = get;
    this.bars = make('ol', {className: 'importance'});
    this.note = make('p', {className: 'faint'});
    this.element = make('figure', {className: 'chart', hidden: true},
      make('figcaption', {}, make('h3', {textContent: 'Importance of settings'})), this.bars, this.note);
  }

  /** Show the importances of the search `name`; ask for them when another trial has finished. No poll waits for them. */
  show(name, sweep) {
    this.element.hidden = !sweep.is_search;
    if (!sweep.is_search) return;
    const seen = `${name} ${sweep.trials.filter(({state}) => state === 'finished').length}`;
    if (seen === this.seen) return;
    if (name !== this.name) {
      this.bars.replaceChildren();
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
    this.bars.setAttribute('aria-label', `Importance of settings for ${objective}`);
    this.bars.replaceChildren(...Object.entries(importances).map(([key, part]) => {
      const isChance = part <= chance[key];
      const bar = make('span', {className: 'bar', 'aria-hidden': 'true'}, make('span'), make('i'));
      bar.firstChild.style.width = `${100 * part}%`;
      bar.lastChild.style.left = `${Math.min(100 * chance[key], 100)}%`;
      const percent = make('span', {textContent: ` ${Math.round(100 * part)} %${isChance ? ', may be chance' : ''}`});
      const className = isChance ? 'chance' : '';
      return make('li', {title: key, className}, make('span', {textContent: key}), bar, percent);
    }));
    setText(this.note, num_finished < least
      ? `Too few trials: it needs ${least} finished ones; there are ${num_finished}.`
      : `How much each setting decided which of the ${num_finished} finished trials are the best quarter by `
        + `${objective} (PED-ANOVA); not which of its values are better, nor what settings do only together. The marks `
        + 'are what settings reach where results are shuffled over the trials: chance passes one in one case of 20.');
  }
}
