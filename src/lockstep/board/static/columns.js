// The columns of the table of a sweep, as Grid takes them: of its trials, and of its settings.
import {duration, make, number, of, score, setState, typed} from './elements.js';
import {ORDER, REPEATS} from './table.js';

/** Columns of Grid. */
const numbers = (name, value, text = score) =>
  ({name, value, text: (row) => text(value(row)), className: 'number', isDown: true});

const setting = (key, label, rows) => {
  const isNumber = rows.every(({settings}) => typeof typed(settings[key] ?? 0) === 'number');
  const shown = (text) => (isNumber && text.length > 8 ? number(Number(text)) : text);
  return {name: key, label, hint: key, className: isNumber ? 'number' : '',
    value: ({settings}) => typed(settings[key] ?? ''), text: ({settings}) => shown(settings[key] ?? '–')};
};

const words = (name, value) => ({name, value, text: value, className: ''});

export function columnsOfTrials(answer, rows) {
  const {keys, metrics} = answer;
  const metric = (name) => numbers(name, ({values}) => values[name]);
  return [
    {...numbers('trial', (row) => row.trial, String), label: 'Trial', isDown: false},
    {...words('state', (row) => row.state), label: 'State', value: (row) => ORDER.indexOf(row.state),
      className: 'pill', fill: fillState},
    ...metrics.slice(0, 1).map(metric), ...settings(keys, rows), ...metrics.slice(1).map(metric),
    {...numbers('epoch', (row) => row.epoch), label: 'Epoch', text: (row) => of(row.epoch, row.max_epochs)},
    {...numbers('training_s', (row) => row.training_s, duration), label: 'Time'},
    {...words('tags', (row) => (row.tags ?? []).join(' ')), label: 'Tags'},
    {...words('note', (row) => row.note ?? ''), label: 'Note'},
  ];
}

export function columnsOfSettings({keys, groups, metrics}, rows) {
  const spread = (of, found) => {
    const [low, high] = ['low', 'high'].map((end) => numbers(`${of} ${end}`, (row) => found(row)?.[end]));
    const text = (row) => (Number.isFinite(low.value(row)) ? `${low.text(row)} to ${high.text(row)}` : '–');
    return [numbers(of, (row) => found(row)?.mean),
      {...low, name: `${of} interval`, label: '95 % interval', hint: INTERVAL, text}];
  };
  const tests = Object.keys(Object.assign({}, ...groups.map((group) => group.tests)));
  return [
    {...numbers('setting', (row) => row.key + 1, String), label: 'Setting', isDown: false},
    ...settings(keys.filter((key) => !REPEATS.has(key)), rows),
    {...numbers('n', (row) => row.n), label: keys.includes('data.fold') ? 'Folds' : 'Seeds', text: repetitions},
    ...spread(metrics[0], (row) => row), {...numbers('deviation', (row) => row.deviation), label: 'Deviation'},
    ...tests.flatMap((test) => spread(test, (row) => row.tests[test])),
  ];
}

const INTERVAL = 'Of the mean, by Student’s t, within what is possible; sorted by its low end';

const repetitions = ({n, trials, num_trials}) =>
  (trials.length < num_trials ? `${n}, ${num_trials - trials.length} missing` : String(n));

/** Columns of settings; the last parts of their keys are the labels where that is clear. */
function settings(keys, rows) {
  const short = keys.map((key) => key.split('.').at(-1));
  return keys.map((key, place) => setting(key, new Set(short).size < keys.length ? key : short[place], rows));
}

function fillState(cell, row) {
  const pill = cell.firstChild ?? cell.appendChild(make('span', {className: 'state'}));
  setState(pill, row.state);
}
