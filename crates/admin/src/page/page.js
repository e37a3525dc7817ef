"use strict";
const at = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en");
const clock = (seconds) => new Date(1000 * seconds).toTimeString().slice(0, 5);
const dayAndClock = (seconds) => `${new Date(1000 * seconds).toDateString().slice(4, 10)} ${clock(seconds)}`;
const number = (n) => n === null || n === undefined ? "–" : whole.format(Math.round(n));
const bytes = (n) => {
  if (n === null || n === undefined) return "not known";
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (n >= size) return `${(n / size).toFixed(n >= 100 * size ? 0 : 1)} ${unit}`;
  }
  return `${number(n)} bytes`;
};
const time = (seconds) => {
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.max(0, Math.round(seconds))} s`;
};
const TOKEN = "eyelet-token";
// What a token, and a field's value, may have.
const PRINTABLE = /^[\x21-\x7e]+$/;
// A minute of documents tells what goes on now. The log keeps a few screens.
const KEPT = 61;
const LOG_LINES = 300;
// What changes slowly is asked for each minute.
const SLOW_MS = 60000;
const CHART_MS = 5000;
const CHART_POINTS = 300;
// A certificate is renewed when a third of its time is left. Of a long one two weeks are enough.
const SOON_SECONDS = 14 * 86400;
const soonSeconds = (one) => Math.min(SOON_SECONDS, (one.not_after_unix_seconds - one.not_before_unix_seconds) / 3);
const isUrgent = (one, left) => left < Math.min(86400, soonSeconds(one) / 2);
const FULL = 0.875;
const SILENCE_MS = 10000;
const ASK_MS = 10000;
const RETRY_MS = 1000;
const kept = [];
const lines = [];
let dropped = 0;
let certificates = [];
let certificatesCount = 0;
// The document of certificates has the first of many thousands, the lists of problems and of names a few.
const CERTIFICATES = 50;
const FEW = 3;
let logIs = "json";

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function text(id, value) {
  if (at(id).textContent !== value) at(id).textContent = value;
}

// Rows of cells: a text, a number (in its column), or an element. Rows that stay are not replaced, so
// that what is marked or focused stays so.
function rows(id, list, none) {
  const body = at(id);
  const shown = list.length ? list : [[none]];
  if (body.dataset.none !== String(!list.length)) body.replaceChildren();
  body.dataset.none = String(!list.length);
  while (body.rows.length > shown.length) body.deleteRow(-1);
  shown.forEach((cells, y) => {
    const row = body.rows[y] ?? body.insertRow();
    while (row.cells.length > cells.length) row.deleteCell(-1);
    cells.forEach((cell, x) => {
      const [value, className] = Array.isArray(cell) ? cell : [cell, ""];
      const place = row.cells[x] ?? row.appendChild(element(x || !list.length ? "td" : "th"));
      if (place.tagName === "TH") place.scope = "row";
      place.className = className;
      if (!list.length) place.colSpan = 9;
      // A button that is there stays: it may have the focus.
      if (value instanceof Node) { if (place.firstChild !== value || place.childNodes.length > 1) place.replaceChildren(value); }
      else if (place.textContent !== value) place.textContent = value;
    });
  });
}

const n = (value) => [number(value), "n"];

function pairs(id, list) {
  at(id).replaceChildren(...list.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
}

// A stream has a limit of its own; all else is answered soon.
async function ask(path, signal = AbortSignal.timeout(ASK_MS), method = "GET") {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(path, { method, headers, signal, cache: "no-store" });
  // 400: not even a field's value.
  if (response.status === 401 || (token && response.status === 400 && !path.includes("?"))) {
    sessionStorage.removeItem(TOKEN);
    askToken(Boolean(token));
  }
  if (!response.ok) {
    const why = (await response.text()).trim();
    throw Object.assign(new Error(`${response.status}: ${why}`), { status: response.status });
  }
  return response;
}

function askToken(isWrong) {
  if (isWrong) text("token-state", "The server does not take this token.");
  if (!at("token-form").hidden) return;
  at("token-form").hidden = false;
  at("token").focus();
}

// How much a counter has grown in the documents that are kept: a minute, or since the page began.
function grown(of) {
  const [first, last] = [kept[0], kept.at(-1)];
  return Math.max(0, of(last) - of(first));
}

function seconds() {
  return Math.max(1, kept.at(-1).unix_seconds - kept[0].unix_seconds);
}

// A tab that sleeps gets no documents: what is kept then spans more than a minute.
const recently = () => seconds() < KEPT - 2 || seconds() > 90 ? time(seconds()) : "minute";
const lately = () => `in the last ${recently()}`;

// What an operator should know first. Each is [is it bad, the text].
function problems(now) {
  const { status, memory, counts } = now;
  const found = [];
  const say = (is, bad, what) => { if (is) found.push([bad, what]); };
  const { connections_bytes: used, connections_bytes_max: most } = memory.budget;
  say(status.draining, false, "It drains: it takes no new connections.");
  say(used >= most * FULL, true, `Connections hold ${bytes(used)} of ${bytes(most)}: it reads less, and sheds next.`);
  const { open } = status.connections, { connections_max: openMost } = status.limits;
  say(open >= openMost, true, "It is at its limit of connections: new ones wait.");
  say(open < openMost && open >= openMost * FULL, false, `It has ${number(open)} connections, near its limit of ${number(openMost)}.`);
  const grew = (key, bad, what) => {
    const count = grown((tick) => tick.counts[key]);
    say(count > 0, bad, `${number(count)} ${what} ${lately()}.`);
  };
  grew("shed", true, "connections were shed for lack of memory");
  grew("accept_pauses", true, "times accepting paused");
  grew("kernel_dropped", true, "connections were dropped by the kernel at a full queue");
  const requests = grown((tick) => tick.counts.requests), unserved = grown((tick) => tick.counts.failed_requests);
  say(unserved > 0, unserved > requests / 2, `${number(unserved)} of ${number(requests)} requests failed ${lately()}.`);
  grew("lost_log_lines", false, "access lines were lost");
  grew("acme_failures", false, "orders at the ACME server failed");
  grew("source_failures", false, "changed files could not be used");
  grew("fleet_store_failures", false, "times the fleet's store failed");
  const { down, all, listed } = now.upstreams;
  const names = listed.filter((one) => !one.up).map((one) => one.upstream);
  say(down > 0, true, `${number(down)} of ${number(all)} upstreams ${down === 1 ? "is" : "are"} down: ${[...new Set(names)].slice(0, 3).join(", ")}.`);
  found.push(...certificateProblems(now.unix_seconds));
  const wrong = grown((tick) => tick.counts.failed), accepted = grown((tick) => tick.counts.accepted);
  say(accepted >= 20 && wrong > accepted / 5, false, `${number(wrong)} of ${number(accepted)} connections failed ${lately()}.`);
  return found;
}

// The first few of each kind, and how many more there are at least: only the first certificates are here.
function certificateProblems(unixSeconds) {
  const left = (one) => one.not_after_unix_seconds - unixSeconds;
  const [broken, soon] = [certificates.filter((one) => one.error), certificates.filter((one) => !one.error && left(one) < soonSeconds(one))];
  const atLeast = certificatesCount > certificates.length ? "At least " : "";
  const found = [];
  for (const one of broken.slice(0, FEW)) found.push([true, `The certificate ${one.from} cannot be used: ${one.error}`]);
  if (broken.length > FEW) found.push([true, `${atLeast}${number(broken.length - FEW)} more certificates cannot be used.`]);
  for (const one of soon.slice(0, FEW)) {
    const name = one.names?.[0] ?? one.from;
    found.push([isUrgent(one, left(one)), left(one) < 0 ? `The certificate of ${name} has expired.` : `The certificate of ${name} expires in ${time(left(one))}.`]);
  }
  const more = soon.slice(FEW);
  if (more.length) found.push([more.some((one) => isUrgent(one, left(one))), `${atLeast}${number(more.length)} more certificates have expired or expire soon.`]);
  return found;
}

function showHealth(now) {
  const found = problems(now);
  const worst = found.some(([bad]) => bad) ? "bad" : found.length ? "warn" : "good";
  at("health").className = `wide ${worst}`;
  text("verdict", { good: "It is well.", warn: "It serves; look at this:", bad: "Something is wrong:" }[worst]);
  const shown = found.map(([, what]) => what);
  if (at("problems").textContent !== shown.join("")) {
    at("problems").replaceChildren(...shown.map((what) => element("li", what)));
  }
}

function showFigures(now) {
  const { status, memory, counts } = now;
  const { open, parked, accepted } = status.connections;
  const { connections_bytes: used, connections_bytes_max: most } = memory.budget;
  const each = parked ? `${number(now.parked_bytes / parked)} bytes each` : "";
  const kernel = memory.kernel_bytes !== null && open ? `${bytes(memory.kernel_bytes / open)} of the kernel each` : "";
  text("edge", `${status.version}, pid ${status.pid}, up ${time(status.uptime_seconds)}, configuration ${status.generation}, ${status.listeners.join(" ")}`);
  text("open", number(open));
  const { connections_max: all, connections_with_upstream_max: some } = status.limits;
  text("open-of", `of ${number(all)} at most${some < all ? `, ${number(some)} with an upstream each` : ""}`);
  text("parked", number(parked));
  text("parked-each", [each, kernel].filter(Boolean).join("; "));
  text("memory", bytes(memory.accounted_bytes));
  text("memory-of", `${bytes(used)} of ${bytes(most)} for connections; limit ${bytes(memory.budget.memory_max)}`);
  at("memory-bar").value = used / most;
  at("memory-bar").className = used >= most * FULL ? "full" : "";
  text("rate", (grown((tick) => tick.counts.accepted) / seconds()).toFixed(1));
  text("accepted", `${number(accepted)} since the start`);
  for (const key of ["refused", "failed"]) {
    text(key, number(counts[key]));
    text(`${key}-now`, `${number(grown((tick) => tick.counts[key]))} ${lately()}`);
  }
}

function showTables(now) {
  const { memory, handshakes, rules, upstreams, compression, evidence } = now;
  const before = new Map(kept[0].reasons.map((one) => [one.reason, one.count]));
  text("lately", recently());
  rows("reasons", now.reasons.map(({ reason, count }) =>
    [reason, n(count), n(count - (before.get(reason) ?? 0))]), "Nothing was refused, and nothing failed.");
  const ago = (at_) => at_ === null ? "never" : `${time(now.unix_seconds - at_)} ago`;
  const first = ({ listed, all }) => all > listed.length ? ` The first ${number(listed.length)} are here.` : "";
  text("rules-state", rules.never_hit ? `${number(rules.never_hit)} of ${number(rules.all)} have decided nothing yet.${first(rules)}` : first(rules));
  rows("rules", rules.listed.map((one) =>
    [one.rule, [one.action, "k"], n(one.hits), [ago(one.last_hit_unix_seconds), "n"]]), "There are no rules.");
  const kinds = Object.entries(memory.kinds).sort((a, b) => b[1] - a[1]);
  const share = (part) => [`${(100 * part / memory.accounted_bytes).toFixed(1)} %`, "n"];
  rows("kinds", [...kinds.map(([kind, held]) => [kind, [bytes(held), "n"], share(held)]),
    ["sum", [bytes(memory.accounted_bytes), "n"], ""],
    ["kernel, outside of the sum", [bytes(memory.kernel_bytes), "n"], ""]], "");
  rows("handshakes", [
    ["TLS 1.3", n(handshakes.tls13_full), n(handshakes.tls13_resumed)],
    ["TLS 1.2", n(handshakes.tls12_full), n(handshakes.tls12_resumed)],
    ["failed, or the client left", n(handshakes.failed), ""],
    ...handshakes.groups.map(({ group, count }) => [group, [`${number(count)} in all`, "n"], ""])], "");
  text("upstreams-state", upstreams.all ? `Down: ${number(upstreams.down)} of ${number(upstreams.all)}.${first(upstreams)}` : "");
  rows("upstreams", upstreams.listed.map((one) => [one.upstream,
    one.up ? [one.checked ? "up" : "up, as far as is known", "up k"] : ["down", "down k"],
    n(one.open), n(one.failures + one.check_failures)]), "No rule has a list of upstreams, or checks one.");
  pairs("evidence", [["agrees", number(evidence.agrees)], ["disagrees", number(evidence.disagrees)], ["unknown", number(evidence.unknown)]]);
  const saved = compression.bytes_identity - compression.bytes_sent;
  const part = compression.bytes_identity ? ` (${(100 * saved / compression.bytes_identity).toFixed(1)} %)` : "";
  pairs("compression", [["responses coded", number(compression.responses)], ["bytes saved", bytes(saved) + part],
    ["time spent", `${compression.cpu_seconds.toFixed(2)} s of workers`]]);
  rows("left-alone", compression.left_alone.map(({ why, count }) => [why, n(count)]), "Nothing.");
}

function showCertificates(unixSeconds) {
  text("certificates-state", certificatesCount > certificates.length ? `The first ${number(certificates.length)} of ${number(certificatesCount)}.` : "");
  rows("certificates", certificates.map((one) => {
    const names = one.names ?? [];
    const more = names.length > FEW ? ` and ${number(names.length - FEW)} more` : "";
    const shown = names.slice(0, FEW).join(", ") + more || (one.source === "local" ? "the local authority" : "–");
    if (one.error) return [shown, `${one.source}: ${one.from}: ${one.error}`, ["cannot be used", "n down"]];
    const left = one.not_after_unix_seconds - unixSeconds;
    const look = isUrgent(one, left) ? "n down" : left < soonSeconds(one) ? "n soon" : "n";
    return [shown, `${one.source}: ${one.from}`, [left < 0 ? "expired" : time(left), look]];
  }), "None is served.");
}

async function followCertificates() {
  const found = await (await ask(`/certificates?sort=expiry&limit=${CERTIFICATES}`)).json();
  [certificates, certificatesCount] = [found.certificates, found.all];
  showCertificates(kept.at(-1)?.unix_seconds ?? Date.now() / 1000);
}

// The highest of each few values, so that a line has no more points than a chart shows.
function points(times, list) {
  const step = Math.ceil(list.length / CHART_POINTS);
  const found = [];
  for (let i = 0; i < list.length; i += step) found.push([times[i], Math.max(...list.slice(i, i + step))]);
  found.push([times.at(-1), list.at(-1)]);
  return found;
}

// A chart of one or two series over the last 24 hours, from its oldest sample to its newest.
function chart(title, times, series, unit) {
  const [wide, high] = [600, 100];
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const most = Math.max(1, ...series.map(([, list]) => list.reduce((a, b) => Math.max(a, b), 0)));
  const [first, last] = [times[0], times.at(-1)];
  const x = (t) => last > first ? (t - first) / (last - first) * wide : 0;
  const newest = series.map(([name, list]) => `${name} ${unit(list.at(-1))}`).join(", ");
  svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${title}: now ${newest}, at most ${unit(most)}`);
  for (const [, list] of series) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", points(times, list).map(([t, v], i) =>
      `${i ? "L" : "M"}${x(t).toFixed(1)} ${(high - 4 - v / most * (high - 8)).toFixed(1)}`).join(""));
    svg.append(path);
  }
  const figure = element("figure");
  const caption = element("figcaption", `${title} `);
  const said = element("small", `at most ${unit(most)}, now `);
  said.append(...series.flatMap(([name, list], i) => [i ? ", " : "", element("b", `${name} ${unit(list.at(-1))}`, ["first", "second"][i])]));
  caption.append(said);
  figure.append(caption, svg);
  return figure;
}

let day = null;

async function followDay() {
  day = await (await ask("/history")).json();
  showDay();
}

// The samples, and what is known since the last one.
function showDay() {
  const now = kept.at(-1);
  if (!day || !now) return;
  const step = day.step_seconds;
  const times = [...day.unix_seconds, now.unix_seconds];
  const gauge = (name, newest) => [...day[name], newest ?? 0];
  const counted = (newest, ...names) =>
    [...day.unix_seconds.map((_, i) => names.reduce((all, name) => all + day[name][i], 0)), grown(newest) / seconds() * step];
  const rate = (n) => `${(n / step).toFixed(1)}/s`;
  const { status, memory } = now;
  const kernel = memory.kernel_bytes === null ? [] : [["kernel", gauge("kernel_bytes", memory.kernel_bytes)]];
  const wrong = ({ counts }) => counts.refused + counts.failed;
  const full = ({ handshakes }) => handshakes.tls12_full + handshakes.tls13_full;
  const resumed = ({ handshakes }) => handshakes.tls12_resumed + handshakes.tls13_resumed;
  text("day-state", `From ${dayAndClock(times[0])} to ${dayAndClock(times.at(-1))}, a sample every ${step} s. A name has the colour of its line; the second line is dashed.`);
  at("charts").replaceChildren(
    chart("Connections", times, [["open", gauge("open", status.connections.open)], ["parked", gauge("parked", status.connections.parked)]], number),
    chart("Memory", times, [["user", gauge("user_bytes", memory.accounted_bytes)], ...kernel], bytes),
    chart("Accepted", times, [["accepted", counted(({ counts }) => counts.accepted, "accepted")],
      ["refused or failed", counted(wrong, "refused", "failed")]], rate),
    chart("Handshakes", times, [["full", counted(full, "handshakes_full")], ["resumed", counted(resumed, "handshakes_resumed")]], rate));
}

function lineShown(line) {
  const item = element("li");
  if (typeof line === "string") {
    item.textContent = line;
    return item;
  }
  item.className = line.outcome;
  const request = line.http;
  const what = line.event === "request" && request ? `${request.method} ${request.path} ${request.status ?? "no response"}`
    : line.event === "decided" ? `decided: ${line.outcome}` : line.outcome;
  const facts = [line.sni ?? line.connect ?? "no name", line.client, line.rule && `rule ${line.rule}`, line.reason,
    line.upstream && `to ${line.upstream}`, line.coding && `${line.coding}: ${number(line.bytes_identity)} to ${number(line.bytes_sent)} bytes`, line.id];
  item.append(`${line.time.slice(11, 23)} `, element("b", what), ` ${facts.filter(Boolean).join(" · ")}`);
  return item;
}

function showLog() {
  // A line of text has no outcome to choose by.
  at("outcome").disabled = logIs === "text";
  const [has, outcome] = [at("has").value.toLowerCase(), logIs === "text" ? "" : at("outcome").value];
  const shown = lines.filter(({ raw, line }) => raw.toLowerCase().includes(has) && (!outcome || line.outcome === outcome));
  at("log").replaceChildren(...shown.map(({ line }) => lineShown(line)));
  const off = { off: "The access log is off: [log] says so. ", text: "The log is written as text: it has no outcome to choose by. ", json: "" }[logIs];
  const lost = dropped ? `; ${number(dropped)} more were left out` : "";
  text("log-state", `${off}${number(shown.length)} of ${number(lines.length)} lines${lost}`);
}

function takeLines(log) {
  for (const raw of log.lines) {
    let line = raw;
    try { line = JSON.parse(raw); } catch { /* the log is written as text */ }
    lines.unshift({ raw, line });
  }
  lines.length = Math.min(lines.length, LOG_LINES);
  dropped += log.dropped;
  if (log.lines.length || log.dropped || !at("log-state").textContent) showLog();
}

// The buttons of each question. A question that is still there keeps its own.
const verdicts = new Map();

function verdictButtons(one) {
  const box = element("span");
  const name = one.name.includes(":") ? `[${one.name}]` : one.name;
  const called = `${name}:${one.port}${one.method ? ` ${one.method} ${one.path}` : ""}`;
  const add = (label, query) => {
    const button = element("button", label);
    button.type = "button";
    button.setAttribute("aria-label", `${label}: ${called}`);
    button.addEventListener("click", () => decide(one.id, query));
    box.append(button, " ");
  };
  add("once", "verdict=allow");
  add("1 hour", "verdict=allow&for=1h");
  if (one.list) add("always", "verdict=allow&always");
  add("refuse", "verdict=refuse");
  return { called, box };
}

async function decide(id, query) {
  try {
    text("held-said", (await (await ask(`/held/${id}?${query}`, undefined, "POST")).text()).trim());
    // Nobody waits for the next second.
    showHeld(await (await ask("/held")).json());
  } catch (error) {
    text("held-said", error.message);
  }
}

function showHeld(held) {
  const now = Date.now();
  at("held-section").hidden = !held.questions && !at("held-said").textContent;
  text("held-state", `${number(held.connections)} connections and requests wait for ${number(held.questions)} verdicts, with ${bytes(held.bytes)}.`);
  const open = new Set(held.listed.map((one) => one.id));
  for (const id of verdicts.keys()) if (!open.has(id)) verdicts.delete(id);
  rows("held", held.listed.map((one) => {
    if (!verdicts.has(one.id)) verdicts.set(one.id, verdictButtons(one));
    const { called, box } = verdicts.get(one.id);
    const who = one.program ? `${one.client}, ${one.program}` : one.client;
    return [called, box, who, one.rule, n(one.waiting), [time((now - one.since_unix_ms) / 1000), "n"]];
  }), "Nothing is held.");
}

function show(tick) {
  // Another process has other counters.
  if (kept.length && kept.at(-1).status.pid !== tick.status.pid) kept.length = 0;
  if (!kept.length) performance.mark("first-figure");
  kept.push(tick);
  if (kept.length > KEPT) kept.shift();
  logIs = tick.status.access_log;
  showHealth(tick);
  showHeld(tick.held);
  showFigures(tick);
  showTables(tick);
  if (at("pause").checked) dropped += tick.log.lines.length + tick.log.dropped;
  else takeLines(tick.log);
  tick.log.lines.length = 0;
}

// Server-sent events by fetch: an EventSource cannot send the token.
async function follow() {
  const silence = new AbortController();
  let timer;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silence.abort(), SILENCE_MS);
  };
  heard();
  try {
    const response = await ask("/events", silence.signal);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    text("link", "live");
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      heard();
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.split("\n").find((line) => line.startsWith("data: "));
        if (data) show(JSON.parse(data.slice(6)));
      }
    }
    // A reload ends the stream: what is shown is a second old, and says nothing bad.
    text("link", "the edge closed the stream; asking again");
    return;
  } catch (error) {
    text("link", silence.signal.aborted ? "no answer; asking again" : `lost (${error.message}); asking again`);
    const isFull = error.status === 503;
    if (at("token-form").hidden) {
      at("health").className = isFull ? "wide warn" : "wide bad";
      text("verdict", `${isFull ? "Too many pages are open at this edge" : "No answer"}. What is below is old.`);
    }
  } finally {
    clearTimeout(timer);
  }
}

async function list(query) {
  try {
    return await (await ask(`/connections${query}`)).json();
  } catch (error) {
    text("found", error.message);
    return null;
  }
}

async function find(event) {
  event?.preventDefault();
  const query = new URLSearchParams({ sort: at("sort").value, limit: 50 });
  for (const [key, id] of [["state", "state"], ["rule", "of-rule"], ["sni", "of-sni"], ["client", "of-client"]]) {
    if (at(id).value.trim()) query.set(key, at(id).value.trim());
  }
  const found = await list(`?${query}`);
  if (!found) return;
  text("found", `${number(found.length)} connections`);
  at("found-box").hidden = false;
  rows("connections", found.map((one) => {
    const button = element("button", one.id);
    button.type = "button";
    button.addEventListener("click", () => takeApart(one.id));
    const [first] = one.requests;
    const name = [one.sni ?? "–", first && `${first.method ?? ""} ${first.path ?? ""}`.trim()];
    return [button, [one.state, "k"], one.client, name.filter(Boolean).join(" "), one.rule ?? "–", [time(one.age_ms / 1000), "n"],
      [bytes(one.bytes_to_client + one.bytes_to_upstream), "n"]];
  }), "None.");
}

// A request that waits or rests. Without an access log its path is not known.
function requestShown({ kind, method, path, upstream }) {
  return [kind, method, path, upstream && `at ${upstream}`].filter(Boolean).join(" ");
}

// One connection: what is listed of it, and its lines of the log.
async function takeApart(id) {
  const found = await list(`/${id}`);
  if (!found) return;
  const box = at("apart");
  const [one] = found;
  const ms = (value) => value === null ? "not known" : time(value / 1000);
  const facts = one ? [["state", one.state], ["what passes", one.kind ?? "not known yet"], ["client", one.client],
    ["listener", one.listener], ["name in the hello", one.sni ?? "none"], ["TLS version", one.tls_version ?? "not known"],
    ["rule", one.rule ?? "none yet"], ["upstream", one.upstream ?? "none"], ["age", ms(one.age_ms)], ["idle", ms(one.idle_ms)],
    ["bytes to the upstream", number(one.bytes_to_upstream)], ["bytes to the client", number(one.bytes_to_client)],
    ...one.requests.map((request) => ["request", requestShown(request)])]
    : [["state", "it has ended"]];
  const facts_ = element("dl");
  facts_.append(...facts.flatMap(([name, value]) => [element("dt", name), element("dd", String(value))]));
  const logged = lines.filter(({ line }) => line.id === id);
  const said = element("ol");
  said.append(...logged.map(({ line }) => lineShown(line)));
  box.replaceChildren(element("h3", `Connection ${id}`), facts_, element("p", `${number(logged.length)} lines of it in the log below`, "quiet"), said);
  box.hidden = false;
  box.focus();
}

async function begin() {
  for (const name of ["peeking", "deciding", "handshaking", "dialling", "serving", "held", "moving", "parked"]) at("state").append(element("option", name));
  at("find").addEventListener("submit", find);
  at("filter").addEventListener("submit", (event) => event.preventDefault());
  for (const id of ["has", "outcome", "pause"]) at(id).addEventListener("input", showLog);
  at("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const token = at("token").value.trim();
    at("token").value = "";
    if (!PRINTABLE.test(token)) {
      text("token-state", "A token has printable ASCII characters without a space.");
      at("token").focus();
      return;
    }
    sessionStorage.setItem(TOKEN, token);
    at("token-form").hidden = true;
    text("token-state", "");
  });
  // What is not the stream waits until the stream has shown the first figures.
  const beside = (what) => { if (kept.length && at("token-form").hidden) what().catch(() => {}); };
  const slowly = () => { beside(followCertificates); beside(followDay); };
  setInterval(slowly, SLOW_MS);
  setInterval(showDay, CHART_MS);
  const first = setInterval(() => { if (kept.length) { clearInterval(first); slowly(); } }, 50);
  for (;;) {
    if (at("token-form").hidden) await follow();
    await new Promise((resolve) => { setTimeout(resolve, RETRY_MS); });
  }
}
begin();
