// The filter box: words that must all occur, and comparisons such as optimizer.lr>=0.05, state=failed or tag=keep.
// `lockstep runs --filter` has the same grammar.

const COMPARISON = /^([^=!<>]*)(!=|<=|>=|=|<|>)(.*)$/;
const TESTS = {'=': (a, b) => a === b, '!=': (a, b) => a !== b, '<': (a, b) => a < b, '<=': (a, b) => a <= b,
  '>': (a, b) => a > b, '>=': (a, b) => a >= b};

/** A text as the number it is, or else as it is. */
export const typed = (value) => (String(value).trim() !== '' && Number.isFinite(Number(value)) ? Number(value) : value);

export class Filter {
  constructor(text) {
    this.terms = text.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
      const [, key, operator, value] = word.match(COMPARISON) ?? [];
      return {word, key, operator, value: typed(value)};
    });
  }

  /** The ids of the matching ones of `runs`, and what is wrong with the filter: a text, or empty. */
  applied(runs) {
    const all = runs.map((run) => [run, textOf(run), valuesOf(run)]);
    const terms = this.terms.filter((term) => !problemOf(term));
    const matching = all.filter(([, text, values]) => terms.every((term) => matches(term, text, values)));
    const isKnown = ({word, key}) => !key || all.some(([, text, values]) => values.has(key) || text.includes(word));
    const unknown = terms.find((term) => all.length && !isKnown(term));
    const wrong = this.terms.map(problemOf).find(Boolean) ?? (unknown ? `No run has ${unknown.key}.` : '');
    return [matching.map(([run]) => run), wrong];
  }
}

function problemOf({word, key, operator, value}) {
  if (operator && (!key || value === '')) return `${word} is incomplete: write it as optimizer.lr>=0.05.`;
  return /[<>]/.test(operator ?? '') && typeof value !== 'number' ? `${word} needs a number.` : '';
}

function matches({word, key, operator, value}, text, values) {
  if (!key || (operator === '=' && text.includes(word))) return text.includes(word);
  const found = values.get(key) ?? [];
  const test = (each) => typeof each === typeof value && TESTS[operator](each, value);
  return operator === '!=' ? found.length > 0 && !found.includes(value) : found.some(test);
}

const textOf = (run) =>
  [run.run, run.state, run.device, ...run.overrides, run.note, ...(run.tags ?? [])].join(' ').toLowerCase();

/** The values of a run by key, in small letters: its settings, metrics, tags and other facts. */
function valuesOf(run) {
  const settings = run.overrides.map((each) => each.match(/^\+*([^=]*)=(.*)$/s)?.slice(1) ?? [each, '']);
  const tags = (run.tags ?? []).map((tag) => ['tag', tag]);
  const facts = {...run, ...run.metrics, 's/epoch': run.epoch_s, state: run.state.replace(' ', '-')};
  const values = new Map();
  for (const [key, value] of [...settings, ...tags, ...Object.entries(facts)]) {
    if (typeof value !== 'string' && typeof value !== 'number') continue;
    const known = typed(typeof value === 'string' ? value.toLowerCase() : value);
    values.set(key.toLowerCase(), [...(values.get(key.toLowerCase()) ?? []), known]);
  }
  return values;
}
