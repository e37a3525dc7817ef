"use strict";
const at = (id) => document.getElementById(id);
const number = (n) => n.toLocaleString("en");
const NGINX_BYTES = 14400;
const LOG_LINES = 60;
const WEIGHED_MIN = 1000;
const STORE_MS = 1000;
const other = (name) => `https://${name}.localhost${location.port ? ":" + location.port : ""}/`;

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

async function post(path) {
  const response = await fetch(path, { method: "POST" });
  if (!response.ok) throw new Error(await response.text());
  const answer = await response.json();
  if (answer.error) throw new Error(answer.error);
  return answer;
}

// A button that does one thing at a time and shows why it failed.
function button(id, text, act) {
  const self = at(id);
  self.addEventListener("click", async () => {
    self.disabled = true;
    try {
      await act(self);
    } catch (error) {
      text(error.message);
    }
    self.disabled = false;
  });
}

async function showHello() {
  const response = await fetch("/api/hello");
  if (!response.ok) {
    at("explained").textContent = await response.text();
    return;
  }
  const hello = await response.json();
  const list = (items) => items.join(", ") || "none";
  const extras = [hello.ech ? "ECH or its GREASE" : hello.grease && "GREASE", hello.resumes && "a session to resume"];
  at("hello-name").textContent = hello.name;
  at("hello-alpn").textContent = list(hello.alpn);
  at("hello-versions").textContent = list(hello.versions);
  at("hello-shares").textContent = list(hello.key_shares);
  at("hello-offers").textContent = [`${hello.cipher_suites} cipher suites`,
    `${hello.extensions} extensions`, `${number(hello.bytes)} bytes`, ...extras.filter(Boolean)].join(", ");
  at("hello-ja4").textContent = hello.ja4;
  at("explained").textContent = hello.explained.trim();
}

function showGauge(gauge) {
  at("parked").textContent = number(gauge.parked);
  at("memory").textContent = `${(gauge.anonymous / 2 ** 20).toFixed(1)} MiB`;
  at("park").disabled = at("park-some").disabled = gauge.phase !== "empty";
  at("release").disabled = gauge.phase === "empty" || gauge.phase === "leaving";
  const bar = at("park-progress");
  bar.max = gauge.wanted || gauge.room;
  bar.value = gauge.opened;
  // A few connections fit into pages that the process has anyway.
  const each = gauge.opened < WEIGHED_MIN || gauge.held <= 0 ? 0 : Math.round(gauge.held / gauge.opened);
  const shown = gauge.phase === "full" ? (each ? number(each) : "few") : gauge.phase === "empty" ? "–" : "…";
  at("each").textContent = shown;
  at("bar-eyelet").style.width = each ? `${Math.min(100, each / NGINX_BYTES * 100)}%` : "0";
  at("bar-eyelet-text").textContent = each ? `${number(each)} bytes` : "–";
  at("park-text").textContent = parkText(gauge, each);
}

function parkText(gauge, each) {
  const limit = gauge.limit ? ` Only ${gauge.limit}.` : "";
  const failed = gauge.failed ? ` A connection failed: ${gauge.failed}.` : "";
  switch (gauge.phase) {
    case "settling":
      return "Reading the gauge before…";
    case "filling":
      return `${number(gauge.opened)} of ${number(gauge.wanted)} handshakes are done.${limit}${failed}`;
    case "weighing":
      return "All are there. Reading the gauge after…";
    case "full": {
      const nginx = (gauge.opened * NGINX_BYTES / 1e6).toFixed(0);
      const here = each ? `take ${(gauge.held / 1e6).toFixed(1)} MB here` : "take too little to be weighed";
      return `${number(gauge.opened)} connections ${here}; in nginx they would take ${nginx} MB.${limit}${failed}`;
    }
    case "leaving":
      return "They are closing.";
    default:
      return `Nobody is parked yet.${limit}${failed}`;
  }
}

function logLine(line) {
  const item = element("li", undefined, line.outcome);
  const request = line.http;
  const what = line.event === "request" && request
    ? `${request.method} ${request.path} ${request.status ?? ""}`
    : line.event === "decided" ? `decided: ${line.outcome}` : `ended: ${line.outcome}`;
  item.append(element("time", line.time.slice(11, 23)), " ", element("b", what));
  const facts = [line.sni ?? line.connect, line.rule && `rule ${line.rule}`, line.reason,
    line.coding && `${line.coding}: ${number(line.bytes_identity)} → ${number(line.bytes_sent)} bytes`];
  item.append(element("span", facts.filter(Boolean).join(" · ")));
  return item;
}

function showLines(lines, leftOut) {
  const log = at("log");
  for (const line of lines) log.prepend(logLine(line));
  if (leftOut) {
    // Those that follow each other are one line.
    let item = log.firstElementChild;
    if (!item?.dataset.crowd) {
      item = element("li");
      item.dataset.crowd = 0;
      log.prepend(item);
    }
    item.dataset.crowd = Number(item.dataset.crowd) + leftOut;
    item.replaceChildren(element("span", `… and ${number(Number(item.dataset.crowd))} lines of the crowd`));
  }
  while (log.childElementCount > LOG_LINES) log.lastElementChild.remove();
}

function follow() {
  const events = new EventSource("/events");
  events.onopen = () => {
    // After a break the newest lines come again.
    at("log").replaceChildren();
    at("log-state").textContent = "live";
  };
  events.onerror = () => { at("log-state").textContent = "lost; the browser tries again"; };
  events.onmessage = (event) => {
    const { lines = [], left_out: leftOut, gauge } = JSON.parse(event.data);
    showLines(lines, leftOut);
    if (gauge) showGauge(gauge);
  };
}

function bars(rows) {
  const most = Math.max(...rows.map((row) => row.bytes));
  at("codings-bars").replaceChildren(...rows.map((row) => {
    const line = element("div"), track = element("i"), bar = element("u");
    bar.style.width = `${row.bytes / most * 100}%`;
    track.append(bar);
    line.append(element("span", row.label), track, element("em", `${number(row.bytes)} bytes`));
    return line;
  }));
}

// The same in this browser: it chooses by itself, and has the edition before if it keeps it.
async function own() {
  await (await fetch("/manual/1.txt")).text();
  // It stores what is to be a dictionary behind the page's back.
  await new Promise((resolve) => { setTimeout(resolve, STORE_MS); });
  const url = `/manual/2-${Date.now()}.txt`;
  const response = await fetch(url);
  await response.text();
  const entry = performance.getEntriesByName(new URL(url, location).href)[0];
  const coding = response.headers.get("content-encoding") ?? "identity";
  return { label: `your browser: ${coding}`, bytes: entry.encodedBodySize };
}

function answer(id, className, title, text) {
  const box = at(id);
  box.className = `answer ${className}`;
  box.replaceChildren(element("b", title), ` ${text}`);
}

at("splice-link").href = other("origin");
at("refuse-link").href = other("nobody");
const failed = (id) => (text) => answer(id, "bad", "Failed:", text);
for (const id of ["park", "park-some"]) {
  at(id).addEventListener("click", async (event) => {
    at("park").disabled = at("park-some").disabled = true;
    at("park-text").textContent = "Starting the clients…";
    try {
      await post(`/api/park?count=${event.target.dataset.count}`);
    } catch (error) {
      at("park-text").textContent = error.message;
    }
  });
}
at("release").addEventListener("click", () => post("/api/release").catch(() => {}));
button("splice", failed("splice-text"), async () => {
  try {
    const text = await (await fetch(other("origin"), { cache: "no-store" })).text();
    answer("splice-text", "good", "Spliced.", text);
  } catch {
    answer("splice-text", "", "Your browser does not trust the origin's own certificate yet.",
      "The edge cannot help: it has no part in that TLS session. Open the origin in a tab of its own, below.");
  }
});
button("refuse", failed("splice-text"), async () => {
  try {
    await fetch(other("nobody"), { cache: "no-store" });
    answer("splice-text", "", "Answered,", "and it should not have been.");
  } catch {
    answer("splice-text", "bad", "Refused.", "The edge sent the alert unrecognized_name; the log says why.");
  }
});
button("lie", failed("lie-text"), async () => {
  const told = await post("/api/lie");
  const box = at("lie-text");
  box.replaceChildren(...told.rows.map((row) => {
    const item = element("li", undefined, row.passed ? "good" : "bad");
    item.append(element("b", row.name), ` on the way to ${told.destination}: ${row.text}`);
    return item;
  }));
});
button("codings", (text) => { at("codings-text").textContent = text; }, async () => {
  const { rows, changed } = await post("/api/codings");
  const named = { identity: "as it is", dictionary: "with the edition before" };
  const labelled = rows.map(({ asked, coding, bytes }) =>
    ({ label: named[asked] ? `${named[asked]}${asked === coding ? "" : ` (${coding})`}` : coding, bytes }));
  at("codings-text").textContent =
    `The edition before lacks a section of ${number(changed)} bytes. The bytes are those of the body on the wire.`;
  bars(labelled);
  bars([...labelled, await own()]);
});
showHello();
follow();
