// Elements and their texts. Content of run folders is set as text, so that the browser never interprets it.

/** An element with its properties (attributes where it has no such property) and children. */
export function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const SVG = 'http://www.w3.org/2000/svg';

/** An element of a drawing, with its attributes and perhaps a text. */
export function draw(tag, attributes = {}, text = '') {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

/** Change a text only if it differs, so that a selection stays. */
export function setText(found, text) {
  if (found.textContent !== text) found.textContent = text;
}

/** Offer these values in a list, which changes only when they do; the first of `wanted` replaces a choice that is gone. */
export function offer(list, values, ...wanted) {
  if (values.join() === [...list.options].map((each) => each.value).join()) return;
  const {value} = list;
  list.replaceChildren(...values.map((name) => make('option', {value: name, textContent: name})));
  list.value = [value, ...wanted, ...values].find((name) => values.includes(name)) ?? '';
}

/** Make these the children of an element. Those in their place are not touched, and the focus stays. */
export function arrange(parent, children) {
  const focused = document.activeElement;
  const kept = new Set(children);
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  children.forEach((child, place) => {
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
  });
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({preventScroll: true}); // it moved
}

export function makeState() {
  return make('span', {className: 'state'});
}

export function setState(pill, state) {
  setText(pill, state === 'stopping' ? 'stopping…' : state);
  pill.dataset.state = state;
}

/** A bar that `setProgress` fills, and its number. */
export function makeProgress() {
  const bar = make('span', {className: 'bar', 'aria-hidden': 'true'}, make('span'));
  return make('span', {className: 'progress'}, bar, make('span', {className: 'percent'}));
}

export function setProgress(progress, percent, state) {
  const isKnown = Number.isFinite(percent);
  const shown = isKnown ? Math.min(100, Math.max(0, percent)) : 0;
  progress.dataset.state = state;
  progress.firstChild.firstChild.style.width = `${shown}%`;
  setText(progress.lastChild, isKnown ? `${Math.floor(shown)} %` : '–');
}

/** A command with a button that copies it. `say` shows a message. */
export function makeCommand(say) {
  const code = make('code', {tabIndex: 0});
  const button = make('button', {type: 'button', className: 'quiet', textContent: 'Copy'});
  button.onclick = async () => {
    await copy(code.textContent);
    say('Command copied.');
  };
  return make('div', {className: 'command'}, code, button);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // only pages of this machine may use the clipboard
    const focused = document.activeElement;
    const box = make('textarea', {value: text});
    document.body.append(box);
    box.select();
    document.execCommand('copy');
    box.remove();
    focused?.focus();
  }
}

export function setCommand(command, text) {
  setText(command.firstChild, text);
  command.lastChild.setAttribute('aria-label', `Copy ${text}`);
}

// -- numbers as texts --------------------------------------------------------------------------------------------------

const COUNT = new Intl.NumberFormat('en-US', {maximumFractionDigits: 0});
const DAY = new Intl.DateTimeFormat('en-GB', {month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit'});
const MOMENT = new Intl.DateTimeFormat('en-GB', {dateStyle: 'medium', timeStyle: 'medium'});

export const count = (value) => (Number.isFinite(value) ? COUNT.format(value) : '–');
export const number = (value, digits = 4) => (Number.isFinite(value) ? String(+value.toPrecision(digits)) : '–');
export const day = (time) => (isTime(time) ? DAY.format(time * 1000) : '–');
export const moment = (time) => (isTime(time) ? MOMENT.format(time * 1000) : '–');
export const of = (done, all) => (Number.isFinite(all) ? `${count(done)} / ${count(all)}` : count(done));

/** A text as the number it is, or else as it is. */
export const typed = (value) => (String(value).trim() !== '' && Number.isFinite(Number(value)) ? Number(value) : value);

const isTime = (time) => Number.isFinite(time) && Math.abs(time) < 8.64e12; // the days a Date knows

/** A loss or an accuracy with four decimals. */
export function score(value) {
  if (!Number.isFinite(value)) return '–';
  return Math.abs(value) < 1000 ? value.toFixed(4) : value.toExponential(3);
}

/** Seconds without a unit, with three significant digits. */
export function seconds(value) {
  if (!Number.isFinite(value)) return '–';
  return value < 100 ? value.toFixed(value < 10 ? 2 : 1) : count(value);
}

/** Seconds as 7.3 s, 4:05 or 1:02:03. */
export function duration(time) {
  if (!Number.isFinite(time)) return '–';
  if (time < 60) return `${Math.max(0, time).toFixed(1)} s`;
  const whole = Math.round(time);
  const two = (part) => String(part).padStart(2, '0');
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}
