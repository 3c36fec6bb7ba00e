// What classes were taken for: true classes down, predicted ones across, shaded by the shard of the true class.
import {count, make} from './elements.js';

const MOST_NUMBERS = 20; // classes of a matrix with room for numbers, as in the picture

const SPLITS = {test: 'test', val: 'validation'};

export class Confusion {
  constructor() {
    this.head = make('h3');
    this.note = make('span', {className: 'faint'});
    this.table = make('table', {className: 'confusion'});
    this.element = make('figure', {className: 'chart', hidden: true}, make('figcaption', {}, this.head, this.note),
      make('div', {className: 'matrix', tabIndex: 0, role: 'region', 'aria-label': 'Confusion matrix'}, this.table));
  }

  /** Show a matrix as the plugin tells it, or none. */
  show(told) {
    this.element.hidden = !told;
    const seen = JSON.stringify(told);
    if (!told || seen === this.seen) return;
    this.seen = seen;
    const {classes, counts, split, step} = told;
    const widest = Math.max(...classes.map((name) => name.length));
    const rest = told.num_classes > classes.length ? `, the ${classes.length} least accurate of ${count(told.num_classes)}` : '';
    this.head.textContent = 'Confusion matrix';
    this.note.textContent = `${SPLITS[split]}, step ${count(step)}${rest}: true down, predicted across`;
    this.table.classList.toggle('dense', classes.length > MOST_NUMBERS);
    this.table.style.setProperty('--classes', classes.length);
    this.table.style.setProperty('--label', `${Math.min(widest, 16) + 1}ch`);
    const caption = make('caption', {className: 'unseen',
      textContent: `Of each true class (rows) what it was taken for (columns): ${SPLITS[split]}`});
    const head = make('tr', {}, make('td'),
      ...classes.map((name) => make('th', {scope: 'col', title: name}, make('span', {textContent: name}))));
    this.table.classList.toggle('long', widest > 3);
    const columns = make('colgroup', {}, make('col', {className: 'labels'}), make('col', {span: classes.length}));
    this.table.replaceChildren(caption, columns, make('thead', {}, head), make('tbody', {}, ...counts.map((row, place) => {
      const total = row.reduce((a, b) => a + b, 0);
      return make('tr', {}, make('th', {scope: 'row', title: classes[place], textContent: classes[place]}),
        ...row.map((number, other) => cell(number, total, classes[place], classes[other])));
    })));
  }
}

function cell(number, total, name, taken) {
  const share = total ? number / total : 0;
  const title = `${count(number)} of ${count(total)} of class ${name} ${name === taken ? 'are right' : `were taken for ${taken}`}`;
  const made = make('td', {title, textContent: number ? count(number) : ''});
  made.style.setProperty('--share', `${Math.round(100 * share)}%`);
  made.classList.toggle('most', share > 0.5);
  return made;
}
