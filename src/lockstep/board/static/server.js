// Requests to the plugin.

const PATIENCE_MS = 10000;

/** TensorBoard answered with a refusal. */
export class Refusal extends Error {}

/** The answer of the plugin as text. Throws Refusal with the reason of a refusal. */
export async function request(path, options = {}) {
  const answer = await fetch(`./${path}`, {cache: 'no-store', signal: AbortSignal.timeout(PATIENCE_MS), ...options});
  const text = await answer.text();
  if (!answer.ok) throw new Refusal(reasonIn(text) ?? (answer.status === 403 ? text : `TensorBoard answered ${answer.status}.`));
  return text;
}

export const get = async (path) => JSON.parse(await request(path));

function reasonIn(text) {
  try {
    return JSON.parse(text).message;
  } catch {
    return undefined;
  }
}

/** Requests that stop a run or write a note, and the reason if they are off. */
export class Control {
  constructor(say, refresh) {
    this.say = say;
    this.refresh = refresh;
    this.isLoaded = false;
    this.reason = 'Stop is not ready yet.';
  }

  /** Check whether this TensorBoard may stop runs; a restarted one may answer differently. */
  async load() {
    const {reason} = await get('control');
    this.isLoaded = true;
    this.reason = isFramedByStranger()
      ? 'Stop and notes are off inside a page of another site: open TensorBoard in a window of its own.' : reason;
  }

  /** Send a request, show the answer, and read all runs again. Resolves to whether it was granted. */
  async ask(path, body) {
    const headers = {'Content-Type': 'application/json'};
    let isGranted = true;
    try {
      this.say(JSON.parse(await request(path, {method: 'POST', headers, body: JSON.stringify(body)})).message);
    } catch (error) {
      this.say(error.message);
      this.isLoaded = isGranted = false; // TensorBoard may have been restarted
    }
    await this.refresh();
    return isGranted;
  }
}

function isFramedByStranger() {
  try {
    return window.top.location.origin !== window.location.origin;
  } catch {
    return true; // only a page of another origin denies access
  }
}
