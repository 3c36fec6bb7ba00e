// The heads of a table: a press sorts it.
import {make, setText} from './elements.js';

export class Heads {
  /** `changed()` is called after a press. */
  constructor(changed) {
    this.changed = changed;
    this.sort = {name: '', isDown: false};
  }

  /**
   * Make the heads of columns. A column has a name, perhaps a label and a hint, `value(row)`, by which it sorts, and
   * `isDown` if the largest comes first.
   */
  show(columns) {
    this.columns = columns;
    this.elements = columns.map((column) => this.head(column));
    this.mark();
  }

  head(column) {
    const mark = make('span', {className: 'mark', 'aria-hidden': 'true'});
    const label = make('span', {className: 'label'}, column.label ?? column.name, mark);
    const button = make('button', {type: 'button', title: column.hint ?? ''}, label);
    button.onclick = () => {
      const {name, isDown} = this.sort;
      this.sort = {name: column.name, isDown: name === column.name ? !isDown : Boolean(column.isDown)};
      this.mark();
      this.changed();
    };
    return make('th', {scope: 'col', className: column.className}, button);
  }

  rename(name, label) {
    const at = this.columns.findIndex((column) => column.name === name);
    this.elements[at].querySelector('.label').firstChild.data = label;
  }

  mark() {
    this.columns.forEach(({name}, index) => {
      const isSorted = name === this.sort.name;
      if (isSorted) this.elements[index].setAttribute('aria-sort', this.sort.isDown ? 'descending' : 'ascending');
      else this.elements[index].removeAttribute('aria-sort');
      setText(this.elements[index].querySelector('.mark'), isSorted ? (this.sort.isDown ? '▾' : '▴') : '');
    });
  }

  /** Sort rows by the chosen column, if there is one. */
  sorted(rows) {
    const column = this.columns.find(({name}) => name === this.sort.name);
    if (!column) return rows;
    const keyed = rows.map((row) => [column.value(row), row]);
    return keyed.sort(([a], [b]) => compare(a, b, this.sort.isDown ? -1 : 1)).map(([, row]) => row);
  }
}

export const words = new Intl.Collator('en', {numeric: true});
const isMissing = (value) => value === undefined || value === null || value === '' || Number.isNaN(value);

/** Missing values come last in both directions. */
function compare(a, b, direction) {
  if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
  return direction * (typeof a === 'number' && typeof b === 'number' ? a - b : words.compare(a, b));
}
