// The note and the tags of a run.
import {make, setText} from './elements.js';

const words = (text) => text.split(/[\s,]+/).filter(Boolean);

export class Notes {
  /** `control` as that of a StopButton. */
  constructor(control) {
    this.control = control;
    this.run = null;
    this.note = make('textarea', {id: 'note', rows: 1});
    const title = 'Words with spaces between them';
    this.tags = make('input', {id: 'tags', autocomplete: 'off', spellcheck: false, title});
    this.save = make('button', {type: 'submit', className: 'quiet', textContent: 'Save'});
    this.reason = make('span', {className: 'faint'});
    this.element = make('form', {className: 'notes'}, make('label', {htmlFor: 'note', textContent: 'Note'}), this.note,
      make('label', {htmlFor: 'tags', textContent: 'Tags'}), this.tags, this.save, this.reason);
    this.element.onsubmit = (event) => {
      event.preventDefault();
      this.send();
    };
  }

  /** Save what is written, unless another page has saved since: then show what it saved; the next press replaces it. */
  async send() {
    const [note, tags] = this.written();
    const {id} = this.run;
    const isSaved = await this.control.ask('notes', {run: id, note, tags, noted: this.noted});
    const {run} = this;
    if (isSaved || run.id !== id || run.noted === this.noted) return;
    this.noted = run.noted;
    const text = [run.note, ...(run.tags ?? [])].filter(Boolean).join(' ');
    this.other = `Changed elsewhere to “${text}”. Save again to replace it.`;
    setText(this.reason, this.other);
  }

  written() {
    return [this.note.value.trim(), words(this.tags.value)];
  }

  /** Show the note and tags of a run, unless somebody is writing them. */
  show(run) {
    const saved = JSON.stringify([(run.note ?? '').trim(), words((run.tags ?? []).join(' '))]);
    const isWriting = ![this.saved, saved].includes(JSON.stringify(this.written()));
    if (this.run?.id !== run.id || (saved !== this.saved && !isWriting)) {
      this.note.value = run.note ?? '';
      this.tags.value = (run.tags ?? []).join(' ');
      this.saved = saved;
      this.other = '';
    }
    if (saved === this.saved) this.noted = run.noted;
    this.run = run;
    for (const each of [this.note, this.tags, this.save]) each.disabled = this.control.reason !== '';
    setText(this.reason, this.control.reason || this.other);
  }
}
