// A table of any number of rows and columns, of which only the rows in view are drawn. A row keeps its elements.
import {arrange, make, setText} from './elements.js';
import {Heads} from './heads.js';

const HEIGHT = 30; // of a row, as in style.css
const MORE = 10; // rows above and below the view
const WIDEST = 36; // characters

export class Grid {
  /** `choose(row)` is called for a pressed row, `check(row, isOn)` for its checkbox. */
  constructor(label, choose, check) {
    this.rows = [];
    this.lines = new Map(); // those that are drawn, by the key of their row
    this.mark = () => ({});
    this.heads = new Heads(() => this.sort());
    this.widths = make('colgroup');
    this.head = make('tr');
    this.above = make('tbody', {'aria-hidden': 'true'});
    this.body = make('tbody');
    this.below = make('tbody', {'aria-hidden': 'true'});
    this.table = make('table', {}, make('caption', {className: 'unseen', textContent: label}), this.widths,
      make('thead', {}, this.head), this.above, this.body, this.below);
    this.element = make('div', {className: 'runs sheet', tabIndex: 0, role: 'region', 'aria-label': label}, this.table);
    this.element.onscroll = () => this.draw();
    const rowOf = (event) => this.lines.get(event.target.closest('tr').dataset.key).row;
    this.body.onclick = (event) => {
      if (!event.target.closest('.pick') && window.getSelection().isCollapsed) choose(rowOf(event));
    };
    this.body.onchange = (event) => check(rowOf(event), event.target.checked);
  }

  /**
   * Show rows, each with a `key`. A column is one of Heads with `text(row)`, perhaps `fill(cell, row)`; the first has the
   * button of the row. `mark(row)` returns isChosen, isBest, and the fraction of it that is compared.
   */
  show(columns, rows, mark) {
    this.mark = mark;
    this.given = rows;
    const names = JSON.stringify(columns.map(({name, className}) => [name, className]));
    if (names !== this.names) {
      this.names = names;
      this.lines.clear();
      this.heads.show(columns);
      const compare = make('span', {className: 'unseen', textContent: 'Compare'});
      const first = make('th', {scope: 'col', className: 'pick'}, compare);
      this.head.replaceChildren(first, ...this.heads.elements, make('td'));
    }
    this.columns = this.heads.columns = columns;
    const widths = columns.map(({name, label = name, text}) =>
      Math.min(WIDEST, rows.reduce((most, row) => Math.max(most, text(row).length), label.length + 1)));
    const styles = ['30px', ...widths.map((width) => `calc(${width}ch + 18px)`), 'auto'];
    if (styles.join() !== this.styles) {
      this.styles = styles.join();
      this.widths.replaceChildren(...styles.map((width) => {
        const column = make('col');
        column.style.width = width;
        return column;
      }));
      const all = widths.reduce((a, b) => a + b, 0);
      this.table.style.minWidth = `calc(${all}ch + ${30 + 18 * columns.length}px)`;
    }
    this.sort();
  }

  sort() {
    this.rows = this.heads.sorted(this.given);
    this.table.setAttribute('aria-rowcount', this.rows.length + 1);
    this.draw();
  }

  /** Draw the rows in view, and an empty space as high as the others. */
  draw() {
    const first = Math.max(0, Math.min(Math.floor(this.element.scrollTop / HEIGHT), this.rows.length) - MORE);
    const shown = this.rows.slice(first, first + Math.ceil(window.innerHeight / HEIGHT) + 2 * MORE);
    this.space(this.above, first);
    this.space(this.below, this.rows.length - first - shown.length);
    const lines = shown.map((row, index) => {
      const line = this.lines.get(String(row.key)) ?? new Line(this.columns);
      line.show(row, this.columns, this.mark(row), first + index + 2);
      return [String(row.key), line];
    });
    this.lines = new Map(lines);
    arrange(this.body, lines.map(([, {element}]) => element));
  }

  space(body, num_rows) {
    if (Number(body.dataset.rows ?? 0) === num_rows) return;
    body.dataset.rows = num_rows;
    const row = make('tr', {}, make('td', {colSpan: this.columns.length + 2}));
    row.firstChild.style.height = `${HEIGHT * num_rows}px`;
    body.replaceChildren(...(num_rows ? [row] : []));
  }
}

class Line {
  constructor(columns) {
    this.pick = make('input', {type: 'checkbox'});
    this.button = make('button', {type: 'button', className: 'name'});
    this.cells = columns.map(({className}, index) => (index
      ? make('td', {className}) : make('th', {scope: 'row', className}, this.button)));
    this.element = make('tr', {}, make('td', {className: 'pick'}, this.pick), ...this.cells, make('td'));
  }

  show(row, columns, {isChosen, isBest, compared}, place) {
    this.row = row;
    if (this.element.dataset.key !== String(row.key)) this.element.dataset.key = row.key;
    this.element.ariaRowIndex = place;
    columns.forEach(({text, fill}, index) => {
      const cell = index ? this.cells[index] : this.button;
      if (fill) fill(cell, row);
      else setText(cell, text(row));
      if (index && cell.title !== cell.textContent) cell.title = cell.textContent;
    });
    const name = `${columns[0].name} ${columns[0].value(row)}`;
    this.button.ariaLabel = isBest ? `${name}, the best` : name;
    this.button.ariaPressed = isChosen;
    this.pick.ariaLabel = `Compare ${name}`;
    this.pick.checked = compared === 1;
    this.pick.indeterminate = compared > 0 && compared < 1;
    this.element.classList.toggle('chosen', isChosen);
    this.element.classList.toggle('best', isBest);
  }
}
