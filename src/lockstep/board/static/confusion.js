// Confusion matrix: true classes down, predicted ones across, shaded by the fraction of the true class.
import {count, make} from './elements.js';

const MOST_NUMBERS = 20; // classes of a matrix with numbers, as in the picture

const SPLITS = {test: 'test', val: 'validation'};

export class Confusion {
  constructor() {
    this.head = make('h3');
    this.note = make('span', {className: 'faint'});
    this.table = make('table', {className: 'confusion'});
    this.element = make('figure', {className: 'chart', hidden: true}, make('figcaption', {}, this.head, this.note),
      make('div', {className: 'matrix', tabIndex: 0, role: 'region', 'aria-label': 'Confusion matrix'}, this.table));
  }

  /** Show a matrix of the plugin, or none. */
  show(confusion) {
    this.element.hidden = !confusion;
    const seen = JSON.stringify(confusion);
    if (!confusion || seen === this.seen) return;
    this.seen = seen;
    const {classes, counts, split, step} = confusion;
    const widest = Math.max(...classes.map((name) => name.length));
    const rest = confusion.num_classes > classes.length ? `, the ${classes.length} least accurate of ${count(confusion.num_classes)}` : '';
    this.head.textContent = 'Confusion matrix';
    this.note.textContent = `${SPLITS[split]}, step ${count(step)}${rest}: true down, predicted across`;
    this.table.classList.toggle('dense', classes.length > MOST_NUMBERS);
    this.table.style.setProperty('--classes', classes.length);
    this.table.style.setProperty('--label', `${Math.min(widest, 16) + 1}ch`);
    const caption = make('caption', {className: 'unseen',
      textContent: `Predictions (columns) of each true class (rows): ${SPLITS[split]}`});
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
  const fraction = total ? number / total : 0;
  const title = `${count(number)} of ${count(total)} of class ${name} ${name === taken ? 'are right' : `were predicted as ${taken}`}`;
  const made = make('td', {title, textContent: number ? count(number) : ''});
  made.style.setProperty('--fraction', `${Math.round(100 * fraction)}%`);
  made.classList.toggle('most', fraction > 0.5);
  return made;
}
