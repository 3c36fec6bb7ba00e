// The button that stops a run by two presses; the second one confirms.
import {make, setText} from './elements.js';

const CONFIRM_MS = 4000;
const CALM_MS = 300; // a double click is one press

export const LIVE = new Set(['starting', 'training', 'validating', 'testing', 'stopping']);

/**
 * A Stop button of one run at a time. `control` has `reason` if Stop is off, `ask(path, body)`, which resolves when the
 * runs were read again, and `say`, which shows a message.
 */
export class StopButton {
  constructor(control) {
    this.control = control;
    this.run = null;
    this.asked = null; // the id of the run that is being asked
    this.element = make('button', {type: 'button', className: 'stop'});
    this.element.onclick = (event) => {
      event.stopPropagation(); // a press on the row would select its run
      this.press();
    };
    this.element.onkeydown = (event) => {
      if (event.repeat) event.preventDefault(); // a key held down is one press
    };
    this.disarm();
  }

  /** Show the button for a run; it is hidden for one that is not live. */
  show(run) {
    if (this.run?.id !== run.id) this.disarm();
    this.run = run;
    const isStopping = run.state === 'stopping' || this.asked === run.id;
    const {element, control} = this;
    element.hidden = !LIVE.has(run.state);
    element.disabled = isStopping || control.reason !== '';
    element.title = control.reason;
    setText(element, isStopping ? 'Stopping…' : this.armedAt ? 'Stop now?' : 'Stop');
    element.setAttribute('aria-label', `${element.textContent} ${run.run}`);
    element.classList.toggle('armed', Boolean(this.armedAt) && !element.disabled);
  }

  async press() {
    const {run, control} = this;
    if (!this.armedAt) {
      this.armedAt = performance.now();
      this.timer = setTimeout(() => {
        this.disarm();
        this.show(this.run);
      }, CONFIRM_MS);
      control.say(`Press again within 4 seconds to stop ${run.run}.`);
      this.show(run);
      return;
    }
    if (performance.now() - this.armedAt < CALM_MS) return;
    this.disarm();
    this.asked = run.id;
    this.show(run);
    await control.ask('stop', {run: run.id}); // until its state was read again
    this.asked = null;
    this.show(this.run);
  }

  disarm() {
    clearTimeout(this.timer);
    this.armedAt = 0;
  }
}
