// The page of a mirrorq cluster. Everything that others have named is put in as text, never as markup.
"use strict";

const LOOK_MS = 1000;
const ANSWER_MS = 10000;
const POINTS_MAX = 180;
const POINTS_MIN = 60; // a plot is at least so many points wide
const CARDS_MAX = 60;
const SVG = "http://www.w3.org/2000/svg";
const at = (id) => document.getElementById(id);

let state = null;      // the last answer
let times = [];        // wall clock of each point
let points = new Map(); // queue -> [[ready, unacked, published, delivered, acked], …], newest last
let cards = new Map();  // queue -> what of its card changes
let lastMasters = new Map();
let adminKey = "";
let isAdmin = false;
let timer = 0;

// --- Building -----------------------------------------------------------------------------

function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null).map(asNode));
  return made;
}

function draw(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.map(asNode));
  return made;
}

// What turns the direction of a line or ends it could make one name look like another.
function shown(text) {
  return String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
    (obeyed) => "\\u" + obeyed.charCodeAt(0).toString(16).padStart(4, "0"));
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(shown(child));
}

function say(element, given) {
  const text = shown(given);
  if (element.textContent !== text) element.textContent = text;
}

function count(value) {
  if (value >= 1e9) return (value / 1e9).toFixed(1) + " G";
  if (value >= 1e6) return (value / 1e6).toFixed(value < 1e7 ? 2 : 1) + " M";
  if (value >= 1e4) return (value / 1e3).toFixed(value < 1e5 ? 1 : 0) + " k";
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return (unit && value < 100 ? value.toFixed(1) : String(Math.round(value))) + " " + units[unit];
}

function clock(ms) {
  return new Date(ms).toLocaleTimeString([], { hour12: false });
}

function clip(text, most) {
  const letters = Array.from(text);
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : text;
}

// --- Talking ------------------------------------------------------------------------------

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (adminKey) headers.Authorization = "Bearer " + adminKey;
  const answer = await fetch(path, { ...options, headers, signal: AbortSignal.timeout(ANSWER_MS) });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error || "HTTP " + answer.status);
  return told;
}

async function look() {
  clearTimeout(timer);
  try {
    const told = await ask("/api/state");
    if (state === null || (told.number !== state.number && told.number !== state.number + 1)) {
      await takePast();
    } else if (told.number === state.number + 1) {
      takePoint(told);
    }
    state = told;
    show();
  } catch (error) {
    say(at("live"), "no answer");
    at("live").className = "live off";
    trouble("The dashboard's server does not answer: " + error.message);
  }
  if (!document.hidden) timer = setTimeout(look, LOOK_MS);
}

async function takePast() {
  const told = await ask("/api/past");
  times = told.times_ms;
  points = new Map(Object.entries(told.points));
}

function takePoint(told) {
  times.push(told.at_ms);
  if (times.length > POINTS_MAX) times.shift();
  const kept = new Map();
  for (const queue of told.queues) {
    const known = points.get(queue.name) || [];
    known.push(queue.point);
    if (known.length > POINTS_MAX) known.shift();
    kept.set(queue.name, known);
  }
  points = kept;
}

function trouble(text) {
  at("trouble").hidden = !text;
  say(at("trouble"), text);
}

// --- Showing ------------------------------------------------------------------------------

function show() {
  say(at("live"), state.error ? "cluster unreachable" : "live");
  at("live").className = state.error ? "live off" : "live on";
  trouble(state.error);
  showTiles();
  showAlarms();
  showQueues();
  showNodes();
  showChanges();
  showPolicies();
}

function newest(index) {
  return state.queues.reduce((sum, queue) => sum + queue.point[index], 0);
}

function showTiles() {
  const alive = state.nodes.filter((node) => node.alive).length;
  const broken = state.queues.filter((queue) => queue.state === "down" || queue.state === "paused");
  const syncing = state.queues.filter((queue) => queue.state === "syncing").length;
  const tiles = [
    [alive + " / " + state.nodes.length, "nodes running", alive < state.nodes.length ? "bad" : ""],
    [count(state.queue_count), broken.length ? broken.length + " without service" : syncing
      ? "queues, " + syncing + " syncing" : "queues", broken.length ? "bad" : syncing ? "warn" : ""],
    [count(newest(0)), "messages ready", ""],
    [count(newest(1)), "unacknowledged", ""],
    [count(newest(2)), "published / s", ""],
    [count(newest(4)), "acked / s", ""],
  ];
  const section = at("tiles");
  if (section.children.length !== tiles.length) {
    section.replaceChildren(...tiles.map(() => make("div", {}, make("b"), make("span"))));
  }
  tiles.forEach(([value, label, kind], index) => {
    const tile = section.children[index];
    tile.className = "tile " + kind;
    say(tile.children[0], value);
    say(tile.children[1], label);
  });
}

function showAlarms() {
  const nodes = new Map();
  for (const node of state.nodes) {
    for (const name of node.alarms) nodes.set(name, [...(nodes.get(name) || []), node.name]);
  }
  const found = [...nodes].map(([name, names]) => make("div", { class: "alarm" },
    make("b", {}, name + " on " + names.join(", ")),
    Object.hasOwn(state.advice, name) ? ": " + state.advice[name] : ""));
  at("alarms").hidden = found.length === 0;
  at("alarms").replaceChildren(...found);
}

function showQueues() {
  const wanted = at("search").value.trim().toLowerCase();
  const all = state.queues.filter((queue) => queue.name.toLowerCase().includes(wanted));
  const shown = all.slice(0, CARDS_MAX);
  const names = new Set(shown.map((queue) => queue.name));
  for (const [name, card] of cards) {
    if (!names.has(name)) { card.element.remove(); cards.delete(name); }
  }
  shown.forEach((queue, index) => {
    let card = cards.get(queue.name);
    if (!card) { card = makeCard(queue); cards.set(queue.name, card); }
    const place = at("queues").children[index];
    if (place !== card.element) at("queues").insertBefore(card.element, place || null);
    fillCard(card, queue);
  });
  const left = state.queue_count - shown.length;
  const hidden = wanted ? 0 : left;
  at("more").hidden = hidden <= 0 && shown.length > 0;
  say(at("more"), shown.length === 0 ? (wanted ? "No queue is called so." : "No queues yet.")
    : hidden + " more queues: find them by name.");
}

function makeCard(queue) {
  const card = { ring: null, signature: "" };
  card.badge = make("span", { class: "badge" });
  card.facts = make("div", { class: "facts" });
  card.ringPlace = make("div");
  card.rates = makePlot("messages / s", [["published", "published"], ["delivered", "delivered"],
    ["acked", "acked"]]);
  card.depth = makePlot("depth", [["ready", "ready"], ["unacked", "unacked"]]);
  card.sync = make("div", { class: "sync-bar" });
  card.syncText = make("span");
  card.syncFill = make("i");
  card.sync.append(make("div", { class: "bar" }, card.syncFill), card.syncText);
  card.notes = make("ul", { class: "notes" });
  card.acts = make("div", { class: "acts" });
  card.element = make("article", { class: "card", "aria-label": "Queue " + queue.name },
    make("div", { class: "head" }, make("div", {}, make("h3", {}, queue.name), card.facts), card.badge),
    make("div", { class: "body" }, card.ringPlace,
      make("div", { class: "plots" }, card.rates.element, card.depth.element)),
    card.sync, card.notes, card.acts);
  return card;
}

function fillCard(card, queue) {
  const isBroken = queue.state === "down" || queue.state === "paused";
  const needs = queue.warnings.length > 0 || queue.deliveries_paused || queue.blocked_by !== "" || queue.state === "syncing";
  card.element.className = "card" + (isBroken ? " broken" : needs ? " attention" : "");
  card.badge.className = "badge " + queue.state;
  say(card.badge, queue.state);
  const facts = ["epoch " + queue.epoch, queue.consumers + (queue.consumers === 1 ? " consumer"
    : " consumers"), bytes(queue.store_bytes) + " here"];
  if (queue.policy) facts.push("policy " + queue.policy);
  for (const [key, value] of Object.entries(queue.arguments || {})) facts.push(key + " " + value);
  if (queue.deliveries_paused) facts.push("PAUSED: hands out nothing");
  if (queue.messages_delayed) facts.push(count(queue.messages_delayed) + " delayed");
  say(card.facts, facts.join(" · "));
  fillRing(card, queue);
  const known = points.get(queue.name) || [];
  fillPlot(card.rates, known, [2, 3, 4]);
  fillPlot(card.depth, known, [0, 1]);
  fillSync(card, queue);
  fillNotes(card, queue);
  fillActs(card, queue);
}

// --- The ring -----------------------------------------------------------------------------

function fillRing(card, queue) {
  const first = queue.master || lastMasters.get(queue.name) || "no master";
  if (queue.master) lastMasters.set(queue.name, queue.master);
  const alive = new Map(state.nodes.map((node) => [node.name, node.alive]));
  const members = [[first, queue.master ? "master" : "down"]];
  for (const name of queue.mirrors) {
    const kind = alive.get(name) === false ? "down"
      : queue.synchronised_mirrors.includes(name) ? "sync" : "join";
    members.push([name, kind]);
  }
  // Out of the ring, and back in it as soon as they run.
  for (const name of queue.missing) if (name !== first) members.push([name, "down"]);
  const signature = JSON.stringify(members);
  if (signature !== card.signature) {
    card.signature = signature;
    card.ring = makeRing(members);
    card.ringPlace.replaceChildren(card.ring.element);
  }
  say(card.ring.depth, count(queue.messages_ready));
  say(card.ring.small, count(queue.messages_unacknowledged) + " unacked");
  const rate = queue.point[2] + queue.point[4];
  card.ring.flow.classList.toggle("on", rate > 0);
  const pace = Math.max(0.4, 2.2 - 0.45 * Math.log10(rate + 1));
  card.ring.flow.style.setProperty("--pace", pace.toFixed(1) + "s");
}

function makeRing(members) {
  const middle = 120;
  const radius = 82;
  const spot = (angle, distance = radius) => [middle + distance * Math.cos(angle),
    middle + distance * Math.sin(angle)];
  const angleOf = (index) => -Math.PI / 2 + (2 * Math.PI * index) / members.length;
  const words = members.map(([name, kind]) => name + " (" + { master: "master", sync: "in sync",
    join: "joining", down: "not running" }[kind] + ")").join(", ");
  const element = draw("svg", { class: "ring", viewBox: "0 0 240 240", role: "img",
    "aria-label": "Ring: " + words });
  element.append(draw("circle", { class: "track", cx: middle, cy: middle, r: radius }));
  const flow = draw("circle", { class: "flow", cx: middle, cy: middle, r: radius });
  element.append(flow);
  members.forEach(([name, kind], index) => {
    const next = members[(index + 1) % members.length];
    if (members.length > 1 && next[1] !== "down") {
      element.append(arrow(spot, angleOf(index) + Math.PI / members.length));
    }
    const [x, y] = spot(angleOf(index));
    const label = clip(name, 8);
    const width = Math.max(34, 18 + 7.8 * Array.from(label).length);
    const left = Math.min(Math.max(x - width / 2, 2), 238 - width);
    const group = draw("g", { class: kind });
    group.append(draw("title", {}, name), draw("rect", { class: "pill", x: left, y: y - 15, width,
      height: 30, rx: 15 }), draw("text", { x: left + width / 2, y: y + 0.5 }, label));
    element.append(group);
  });
  const depth = draw("text", { class: "depth", x: middle, y: middle - 20 });
  const small = draw("text", { class: "small", x: middle, y: middle + 15 });
  element.append(depth, draw("text", { class: "small", x: middle, y: middle }, "ready"), small);
  return { element, flow, depth, small };
}

function arrow(spot, angle) {
  const [x, y] = spot(angle);
  const turn = (angle * 180) / Math.PI + 90;
  return draw("path", { class: "arrow", d: "M-5,-6 L7,0 L-5,6 Z",
    transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) rotate(${turn.toFixed(1)})` });
}

// --- Plots --------------------------------------------------------------------------------

const PLOT_WIDTH = 300;
const PLOT_HEIGHT = 60;

function makePlot(name, lines) {
  const values = lines.map(() => make("b"));
  const paths = lines.map(([kind]) => draw("path", { class: kind }));
  const most = make("span", { class: "max" });
  const picture = draw("svg", { class: "plot", viewBox: `0 0 ${PLOT_WIDTH} ${PLOT_HEIGHT}`,
    preserveAspectRatio: "none", "aria-hidden": "true" },
  draw("line", { class: "grid", x1: 0, x2: PLOT_WIDTH, y1: PLOT_HEIGHT - 1, y2: PLOT_HEIGHT - 1 }),
  draw("line", { class: "grid", x1: 0, x2: PLOT_WIDTH, y1: 1, y2: 1 }), ...paths);
  const chips = lines.map(([kind, label], index) => make("span", {}, make("i", { class: kind }),
    label + " ", values[index]));
  const element = make("div", {}, make("div", { class: "plot-head" },
    make("span", { class: "name" }, name), make("span", { class: "values" }, ...chips)),
  make("div", { class: "frame" }, picture, most));
  return { element, values, paths, most };
}

function fillPlot(plot, known, indexes) {
  let most = 0;
  for (const point of known) for (const index of indexes) most = Math.max(most, point[index]);
  const top = niceTop(most);
  say(plot.most, count(top));
  indexes.forEach((index, line) => {
    const latest = known.length ? known[known.length - 1][index] : 0;
    say(plot.values[line], count(latest));
    plot.paths[line].setAttribute("d", pathOf(known, index, top));
  });
}

function niceTop(most) {
  if (most <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= most);
}

function pathOf(known, index, top) {
  const shown = Math.max(known.length, POINTS_MIN);
  const step = PLOT_WIDTH / (shown - 1);
  const begin = shown - known.length;
  return known.map((point, place) => (place ? "L" : "M") + ((begin + place) * step).toFixed(1) + ","
    + (PLOT_HEIGHT - 2 - (point[index] / top) * (PLOT_HEIGHT - 4)).toFixed(1)).join("");
}

// --- What a queue needs -------------------------------------------------------------------

function fillSync(card, queue) {
  card.sync.hidden = queue.sync_progress === null;
  if (queue.sync_progress === null) return;
  card.syncFill.style.width = (100 * queue.sync_progress).toFixed(1) + "%";
  const parts = ["synchronising " + Math.floor(100 * queue.sync_progress) + " %",
    count(queue.sync_messages_left) + " messages left"];
  if (queue.sync_seconds_left !== null) parts.push(Math.ceil(queue.sync_seconds_left) + " s");
  say(card.syncText, parts.join(" · "));
}

function fillNotes(card, queue) {
  const notes = [];
  if (queue.blocked_by) notes.push(make("li", { class: "bad" }, "Puts wait: " + queue.blocked_by));
  for (const text of queue.warnings) notes.push(make("li", {}, text));
  card.notes.hidden = notes.length === 0;
  card.notes.replaceChildren(...notes);
}

function fillActs(card, queue) {
  card.acts.hidden = !isAdmin;
  const lacks = queue.synchronised_mirrors.length < queue.mirrors.length;
  card.queue = queue;
  const offered = isAdmin
    ? JSON.stringify([queue.synchronised_mirrors, lacks, queue.deliveries_paused]) : "";
  if (card.offered === offered) return;
  card.offered = offered;
  card.acts.replaceChildren();
  if (!isAdmin) return;
  const button = (text, act) => {
    const made = make("button", { type: "button" }, text);
    made.addEventListener("click", () => tell(act(), queue.name + ": " + text.toLowerCase()));
    return made;
  };
  // What ends or moves messages, or stops them, is asked about: by name and number.
  const asking = (text, what, question) => {
    const made = make("button", { type: "button" }, text);
    made.addEventListener("click", async () => {
      if (await sure(question(card.queue), text)) {
        tell({ what, queue: queue.name }, queue.name + ": " + text.toLowerCase());
      }
    });
    return made;
  };
  const ready = (now) => count(now.messages_ready) + " ready messages of queue " + now.name;
  const messages = make("button", { type: "button" }, "Messages");
  messages.addEventListener("click", () => openMessages(queue.name));
  card.acts.append(messages,
    asking("Redrive", "redrive", (now) => "Move the dead letters among " + ready(now)
      + " back to the queues where they died?"),
    asking("Purge", "purge", (now) => "End all " + ready(now) + "? They are gone then."),
    queue.deliveries_paused
      ? asking("Resume", "resume", (now) => "Have queue " + now.name + " hand out messages again?")
      : asking("Pause", "pause", (now) => "Have queue " + now.name + ", with "
        + now.consumers + " consumers, hand out nothing until somebody resumes it?"));
  if (lacks) {
    card.acts.append(button("Synchronise", () => ({ what: "sync", queue: queue.name })),
      button("Cancel synchronisation", () => ({ what: "cancel-sync", queue: queue.name })));
  }
  if (queue.synchronised_mirrors.length === 0) return;
  const choice = make("select", { "aria-label": "New master" },
    ...queue.synchronised_mirrors.map((name) => make("option", { value: name }, name)));
  card.acts.append(button("Move master to", () => ({ what: "transfer", queue: queue.name,
    node: choice.value })), choice);
}

// --- Tables -------------------------------------------------------------------------------

const shownTables = new Map();

function fillTable(id, heads, rows, empty, source) {
  const text = JSON.stringify(source);
  if (shownTables.get(id) === text) return;
  shownTables.set(id, text);
  const body = rows.length ? rows : [[[empty, "quiet"]]];
  at(id).replaceChildren(
    make("thead", {}, make("tr", {}, ...heads.map(([head, kind]) => make("th", { class: kind }, head)))),
    make("tbody", {}, ...body.map((row) => make("tr", {}, ...row.map(([value, kind], index) => {
      const cell = make("td", { class: kind, "data-head": heads[index][0] }, value);
      if (!rows.length) cell.setAttribute("colspan", String(heads.length));
      return cell;
    })))));
}

function showNodes() {
  const rows = state.nodes.map((node) => {
    const tags = make("span");
    if (node.leader) tags.append(make("span", { class: "tag" }, "leads the catalog"));
    if (node.witness) tags.append(make("span", { class: "tag" }, "witness"));
    for (const name of node.alarms) {
      tags.append(make("span", { class: "tag warn", title: Object.hasOwn(state.advice, name) ? state.advice[name] : "" }, name));
    }
    if (node.messages_spooled) {
      tags.append(make("span", { class: "tag", title: "Accepted on this node's disk, not confirmed by their queues yet" },
        count(node.messages_spooled) + " spooled, " + node.spooled_oldest_s + " s"));
    }
    const lives = make("span", { class: node.alive ? "state" : "state bad" },
      node.alive ? "running" : "not running");
    return [[node.name, ""], [lives, "nowrap"], [tags, ""], [node.endpoint, "wide"],
      [String(node.incarnation), "wide"]];
  });
  fillTable("nodes", [["node", ""], ["state", ""], ["", ""], ["endpoint", "wide"],
    ["incarnation", "wide"]], rows, "No nodes are known yet.", state.nodes);
}

function showChanges() {
  const rows = state.changes.map((change) => [[clock(change.at_ms), "nowrap"], [change.queue, ""],
    [(change.before || "?") + " → " + (change.after || "?"), ""], [String(change.epoch), ""]]);
  fillTable("changes", [["time", ""], ["queue", ""], ["master", ""], ["epoch", ""]], rows,
    "None since this dashboard began.", state.changes);
}

function showPolicies() {
  const rows = state.policies.map((policy) => [[policy.name, ""],
    [make("code", {}, policy.pattern), ""], [make("code", {}, JSON.stringify(policy.definition)), ""],
    [String(policy.priority), ""], [policy.apply_to, ""]]);
  fillTable("policies", [["policy", ""], ["pattern", ""], ["definition", ""], ["priority", ""],
    ["applies to", ""]], rows, "No policies: every queue has a copy on every node, synchronised by itself.",
  state.policies);
}

// --- The admin ----------------------------------------------------------------------------

async function act(asked) {
  return ask("/api/act", { method: "POST", body: JSON.stringify(asked),
    headers: { "Content-Type": "application/json" } });
}

async function tell(asked, text) {
  try {
    const told = await act(asked);
    const number = told.count === null ? "" : ", " + told.count + " messages";
    say(at("said"), text + (asked.node ? " " + asked.node : "") + ": done" + number);
  } catch (error) {
    say(at("said"), text + " failed: " + error.message);
  }
  at("unlock").hidden = false;
  look();
}

// --- Messages -----------------------------------------------------------------------------

const MESSAGES_MAX = 50; // of one answer
let looked = "";         // the queue whose messages are shown
let following = 1;       // the sequence at which the next page begins

let answer = null;       // of the question that is open

function sure(text, verb) {
  say(at("sure-text"), text);
  say(at("sure-yes"), verb);
  at("sure").showModal();
  at("sure-no").focus();
  return new Promise((resolve) => { answer = resolve; });
}

function answered(isYes) {
  // Not by the dialog's event "close", which comes later: the next question may be open then.
  at("sure").close();
  answer(isYes);
}

function openMessages(name) {
  looked = name;
  say(at("messages-title"), "Messages of " + name);
  at("messages").showModal();
  browse(1);
}

async function browse(from) {
  try {
    const told = await ask("/api/browse?queue=" + encodeURIComponent(looked) + "&from=" + from);
    const last = told.messages[told.messages.length - 1];
    following = last ? last.sequence + 1 : 1;
    at("messages-next").disabled = told.messages.length < MESSAGES_MAX;
    say(at("messages-said"), "");
    showMessages(told.messages);
  } catch (error) {
    say(at("messages-said"), error.message);
  }
}

function showMessages(messages) {
  const rows = messages.map((message) => {
    const named = [];
    if (message.message_id !== null) named.push("id " + message.message_id);
    if (message.key !== null) named.push("key " + message.key);
    for (const [key, value] of Object.entries(message.headers)) named.push(key + ": " + value);
    const death = message.death;
    const died = death.queue ? "in " + death.queue + " by " + death.reason
      + (death.time ? ", " + new Date(1000 * Number(death.time)).toLocaleString() : "")
      + (death.count > 1 ? ", " + death.count + " times" : "") : "";
    const remove = make("button", { type: "button" }, "Delete");
    remove.addEventListener("click", () => removeMessage(message.sequence));
    return [[String(message.sequence), ""], [clock(message.put_ms), "nowrap"],
      [String(message.returned), ""], [died, ""], [named.join(" · "), ""],
      [make("code", {}, message.body), ""], [bytes(message.size), "nowrap"], [remove, ""]];
  });
  shownTables.delete("message-rows");
  fillTable("message-rows", [["sequence", ""], ["put", ""], ["returned", ""], ["died", ""],
    ["properties", ""], ["body", ""], ["size", ""], ["", ""]], rows, "No messages from here on.", messages);
}

async function removeMessage(sequence) {
  if (!await sure("End message " + sequence + " of queue " + looked + "? It is gone then.", "Delete")) return;
  try {
    const told = await act({ what: "delete", queue: looked, sequence });
    await browse(sequence);
    say(at("messages-said"), told.count ? "Message " + sequence + " has ended."
      : "Message " + sequence + " stays: a consumer holds it, or it is gone.");
  } catch (error) {
    say(at("messages-said"), error.message);
  }
}

at("sure-yes").addEventListener("click", () => answered(true));
at("sure-no").addEventListener("click", () => answered(false));
at("sure").addEventListener("cancel", () => answer(false));
at("messages-close").addEventListener("click", () => at("messages").close());
at("messages-next").addEventListener("click", () => browse(following));

async function learnRights() {
  try {
    const rights = await ask("/api/rights");
    at("admin").hidden = !rights.possible;
    isAdmin = rights.admin;
  } catch {
    isAdmin = false;
  }
  at("rebalance").hidden = !isAdmin;
  if (state) showQueues();
}

at("admin").addEventListener("click", () => {
  at("unlock").hidden = !at("unlock").hidden;
  if (!at("unlock").hidden) at("key").focus();
});
at("unlock").addEventListener("submit", async (event) => {
  event.preventDefault();
  adminKey = at("key").value;
  at("key").value = "";
  await learnRights();
  say(at("said"), isAdmin ? "Unlocked until this page is closed." : "This is not the admin key.");
});
at("rebalance").addEventListener("click", () => tell({ what: "rebalance" }, "Rebalance"));
at("search").addEventListener("input", () => { if (state) showQueues(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
learnRights();
look();
