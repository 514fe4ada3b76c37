// Draws the page: lanes, memory by category, the address map, all on one time axis; and the loss by step. Wheel and drag
// zoom and move; the pointer tells what is under it. The part that is shown is kept in the address (#from,to).
'use strict';

// As in plots/colours.gp.
const CATEGORY_COLOURS = {
  runtime: '#B8B8B8', weights: '#0072B2', optimizer: '#CC79A7', gradients: '#D55E00', residuals: '#56B4E9',
  kv: '#009E73', kv_gradients: '#F0E442', logits: '#882255', workspace: '#E69F00', staging: '#332288',
  communication: '#117733', allocator: '#5A5A5A',
};
const GROUP_COLOURS = {
  product: '#6B4A2B', attention: '#C9A87C', head: '#2E1C0C', optimizer: '#9C4A1A', copy: '#A08468', other: '#E8D9C0',
};
// From the bottom: what stays through the step is below what comes and goes.
const STACK = ['runtime', 'weights', 'optimizer', 'gradients', 'residuals', 'kv', 'staging', 'communication',
  'allocator', 'kv_gradients', 'logits', 'workspace'].map(name => facts.categories.indexOf(name));
const colourOfCategory = facts.categories.map(name => CATEGORY_COLOURS[name] || '#808080');
const colourOfGroup = facts.groups.map(name => GROUP_COLOURS[name] || '#808080');
const colourOfKind = groupOfKind.map(group => colourOfGroup[group]);
const TEXT = '#202020', QUIET = '#606060', GRID = '#E4E4E4', WAIT = '#F6D5D0';

const TEXT_COLOURS = ['#D55E00', '#009E73', '#CC79A7', '#E69F00', '#882255', '#332288']; // of texts to evaluate on
const LEFT = 84, RIGHT = 12, LANE = 26, GAP = 26, MEMORY = 190, MAP = 190;
const MOST_OPS = 60000; // whose memory is drawn op by op; of more, from columns and the raster
const MOST_ARROWS = 150;

const hash = location.hash.slice(1); // before it is replaced
const view = {side: sides[sides.length - 1], from: 0, to: 1};
view.to = view.side.end;

const element = (name, id, parent = document.body) => {
  const made = document.createElement(name);
  if (id) made.id = id;
  parent.append(made);
  return made;
};
document.title = facts.title;
element('h1').textContent = facts.title;
element('div', 'subtitle').textContent = facts.subtitle;
const bar = element('div', 'bar'), legend = element('div', 'legend');
const canvas = element('canvas', 'step'), lossCanvas = element('canvas', 'loss'), tip = element('div', 'tip');
const pen = canvas.getContext('2d');

const usedLanes = facts.lanes.map((_, lane) => lane).filter(lane => ops.lane.includes(lane));
const usedPlaces = facts.places.map((_, place) => place).filter(place => placePeak[place].bytes > 0);
let width = 0, panels = [];

function layOut() {
  panels = [];
  let top = 4;
  const add = (kind, height, more) => {
    panels.push({kind, top, height, ...more});
    top += height + (kind === 'lane' ? 3 : GAP);
  };
  for (const lane of usedLanes) add('lane', LANE, {lane});
  top += GAP - 3;
  for (const place of usedPlaces) add('memory', MEMORY, {place});
  for (const place of usedPlaces) add('map', MAP, {place});
  width = canvas.clientWidth;
  const scale = window.devicePixelRatio || 1;
  canvas.style.height = top + 'px';
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(top * scale);
  pen.setTransform(scale, 0, 0, scale, 0, 0);
}

const plotWidth = () => width - LEFT - RIGHT;
const xOf = seconds => LEFT + (seconds - view.from) / (view.to - view.from) * plotWidth();
const secondsAt = x => view.from + (x - LEFT) / plotWidth() * (view.to - view.from);

function words(text, x, y, colour = QUIET, align = 'left') {
  pen.fillStyle = colour;
  pen.textAlign = align;
  pen.fillText(text, x, y);
}

// Ops of a lane from the first that ends after the view begins.
function firstVisible(list) {
  const side = view.side;
  return search(0, list.length, i => side.start[list[i]] + side.seconds[list[i]] > view.from);
}

function drawColumnsOfLane(panel, details) {
  const columns = COLUMNS / view.side.end * (view.to - view.from), step = columns / plotWidth();
  const first = view.from / view.side.end * COLUMNS;
  for (let x = 0; x < plotWidth(); x++) {
    const from = Math.floor(first + x * step), to = Math.max(from + 1, Math.floor(first + (x + 1) * step));
    let base = panel.top + panel.height;
    for (let group = 0; group < groupCount; group++) {
      const row = (panel.lane * groupCount + group) * COLUMNS;
      let share = 0;
      for (let i = from; i < to && i < COLUMNS; i++) share += details.busy[row + i];
      const height = Math.min(1, share / (to - from)) * panel.height;
      if (height <= 0) continue;
      pen.fillStyle = colourOfGroup[group];
      pen.fillRect(LEFT + x, base - height, 1, height);
      base -= height;
    }
  }
}

function drawOpsOfLane(panel, list, first, last) {
  const side = view.side;
  let painted = -1; // up to this pixel
  for (let i = first; i < last; i++) {
    const op = list[i], start = side.start[op], x1 = Math.min(LEFT + plotWidth(), xOf(start + side.seconds[op]));
    const x0 = Math.max(LEFT, xOf(start));
    const before = i > 0 ? side.start[list[i - 1]] + side.seconds[list[i - 1]] : 0;
    const idle = Math.max(LEFT, xOf(before));
    if (x0 - idle > 1 && side.waited[op] !== NONE) {
      pen.fillStyle = WAIT;
      pen.fillRect(idle, panel.top, x0 - idle, panel.height);
      if (x0 - idle > 90) {
        pen.save();
        pen.beginPath();
        pen.rect(idle, panel.top, x0 - idle, panel.height);
        pen.clip();
        words('waits for ' + opName(side.waited[op]), idle + 3, panel.top + 17);
        pen.restore();
      }
    }
    if (x1 <= painted) continue;
    const end = Math.max(x1, x0 + 0.7);
    pen.fillStyle = colourOfKind[ops.kind[op]];
    pen.fillRect(x0, panel.top, end - x0, panel.height);
    painted = Math.floor(end);
    if (x1 - x0 > 44) {
      pen.save();
      pen.beginPath();
      pen.rect(x0, panel.top, x1 - x0 - 2, panel.height);
      pen.clip();
      const group = facts.groups[groupOfKind[ops.kind[op]]];
      words(opName(op), x0 + 3, panel.top + 17, group === 'other' || group === 'attention' ? TEXT : '#fff');
      pen.restore();
      pen.fillStyle = '#fff';
      pen.fillRect(x1 - 0.5, panel.top, 0.5, panel.height);
    }
  }
}

function drawLane(panel) {
  const details = detailsOf(view.side), list = details.lanes[panel.lane];
  pen.fillStyle = '#F2F2F2';
  pen.fillRect(LEFT, panel.top, plotWidth(), panel.height);
  words(facts.lanes[panel.lane], LEFT - 6, panel.top + 17, TEXT, 'right');
  const first = firstVisible(list), last = search(first, list.length, i => view.side.start[list[i]] >= view.to);
  panel.drawn = last - first;
  if (last - first > 4 * plotWidth()) drawColumnsOfLane(panel, details);
  else drawOpsOfLane(panel, list, first, last);
}

// From the op that was waited for to the one that waited.
function drawArrows() {
  const lanes = panels.filter(panel => panel.kind === 'lane');
  const rowOf = lane => lanes.find(panel => panel.lane === lane), arrows = [];
  for (const panel of lanes) {
    if (panel.drawn > 4 * plotWidth()) return;
    const list = detailsOf(view.side).lanes[panel.lane], first = firstVisible(list);
    for (let i = first; i < first + panel.drawn; i++) if (view.side.waited[list[i]] !== NONE) arrows.push(list[i]);
    if (arrows.length > MOST_ARROWS) return;
  }
  pen.strokeStyle = pen.fillStyle = '#C03028';
  for (const op of arrows) {
    const awaited = view.side.waited[op];
    const x0 = xOf(view.side.start[awaited] + view.side.seconds[awaited]), x1 = xOf(view.side.start[op]);
    if (x1 < LEFT || x0 < LEFT || x1 > width - RIGHT) continue;
    const from = rowOf(ops.lane[awaited]), to = rowOf(ops.lane[op]);
    const down = to.top > from.top, y0 = down ? from.top + LANE : from.top, y1 = down ? to.top : to.top + LANE;
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.lineTo(x1 - 3, y1 + (down ? -5 : 5));
    pen.lineTo(x1 + 3, y1 + (down ? -5 : 5));
    pen.fill();
  }
}

// The stack of each pixel, where the place holds most: of the columns, or of every op that is seen.
function stacksOf(place) {
  const n = Math.ceil(plotWidth()), stacks = new Float64Array(n * categoryCount), totals = new Float64Array(n);
  const side = view.side, step = (view.to - view.from) / n, first = opAt(side, view.from), last = opAt(side, view.to);
  const keep = (pixel, total, from, base, stride) => {
    if (pixel < 0 || pixel >= n || total <= totals[pixel]) return;
    totals[pixel] = total;
    for (let c = 0; c < categoryCount; c++) stacks[pixel * categoryCount + c] = from[base + c * stride];
  };
  if (last - first > MOST_OPS) {
    const details = detailsOf(side), columns = COLUMNS / side.end, base = place * categoryCount * COLUMNS;
    const end = Math.min(COLUMNS, Math.ceil(view.to * columns));
    for (let i = Math.floor(view.from * columns); i < end; i++) {
      const until = Math.floor(((i + 1) / columns - view.from) / step);
      for (let pixel = Math.max(0, Math.floor((i / columns - view.from) / step)); pixel < Math.max(until, 1); pixel++)
        keep(pixel, details.totals[place * COLUMNS + i], details.memory, base + i, COLUMNS);
      keep(until, details.totals[place * COLUMNS + i], details.memory, base + i, COLUMNS);
    }
    return stacks;
  }
  const now = memoryAt(first), base = place * categoryCount;
  let pixel = 0, total = totalOf(now, place);
  keep(0, total, now, base, 1);
  for (let op = first + 1; op <= last; op++) {
    const target = Math.floor((side.clock[op] - view.from) / step);
    while (pixel < target) keep(pixel++, total, now, base, 1);
    moveTo(op, now);
    total = totalOf(now, place);
    keep(target, total, now, base, 1);
  }
  while (pixel < n) keep(pixel++, total, now, base, 1);
  return stacks;
}

// Memory outside the arena, if it does not hide what is in it.
function runtimeDrawn(place) {
  const runtime = facts.places[place].runtime;
  return runtime <= placePeak[place].bytes ? runtime : 0;
}

function topOf(place) {
  const row = facts.places[place], most = placePeak[place].bytes + runtimeDrawn(place);
  if (runtimeDrawn(place) < row.runtime) return most * 1.05;
  return row.limit > 0 && row.limit <= 1.5 * most ? Math.max(most, row.limit) * 1.02 : most * 1.05;
}

function drawMemory(panel) {
  const row = facts.places[panel.place], top = topOf(panel.place), stacks = stacksOf(panel.place);
  const up = panel.height / top, base = panel.top + panel.height, runtime = runtimeDrawn(panel.place);
  pen.strokeStyle = GRID;
  for (let i = 0; i <= 4; i++) {
    const y = base - panel.height * i / 4;
    pen.beginPath();
    pen.moveTo(LEFT, y);
    pen.lineTo(width - RIGHT, y);
    pen.stroke();
    words(sizeOf(Math.round(top * i / 4)), LEFT - 6, y + 4, QUIET, 'right');
  }
  const ends = xOf(view.side.end), n = Math.ceil(plotWidth());
  for (let x = 0; x < n && LEFT + x < ends; x++) {
    let y = base;
    for (const c of STACK) {
      const bytes = facts.categories[c] === 'runtime' ? runtime : stacks[x * categoryCount + c];
      if (bytes <= 0) continue;
      pen.fillStyle = colourOfCategory[c];
      pen.fillRect(LEFT + x, y - bytes * up, 1, bytes * up);
      y -= bytes * up;
    }
  }
  if (row.limit > 0 && row.limit <= top && runtime === row.runtime) {
    pen.strokeStyle = '#000';
    pen.setLineDash([5, 4]);
    pen.beginPath();
    pen.moveTo(LEFT, base - row.limit * up);
    pen.lineTo(width - RIGHT, base - row.limit * up);
    pen.stroke();
    pen.setLineDash([]);
  }
  const peak = placePeak[panel.place];
  words(row.name + ': values ' + sizeOf(peak.bytes) + ' at most' +
    (row.runtime > 0 ? ', and runtime ' + sizeOf(row.runtime) + (runtime > 0 ? '' : ' (not drawn)') : '') +
    ', at ' + opWhere(peak.op),
    LEFT + 4, panel.top - 5, TEXT);
}

// The arena's bytes from the bottom up.
function drawMap(panel) {
  const row = facts.places[panel.place], side = view.side, base = panel.top + panel.height;
  pen.fillStyle = '#F2F2F2';
  pen.fillRect(LEFT, panel.top, plotWidth(), panel.height);
  for (let i = 0; i <= 4; i++)
    words(sizeOf(Math.round(row.arena * i / 4)), LEFT - 6, base - panel.height * i / 4 + 4, QUIET, 'right');
  words('addresses in the arena of the ' + row.name + ', ' + sizeOf(row.arena), LEFT + 4, panel.top - 5, TEXT);
  const from = opAt(side, view.from), to = opAt(side, view.to);
  pen.imageSmoothingEnabled = false;
  if (to - from > MOST_OPS) {
    const raster = rasterOf(side, panel.place, colourOfCategory), across = RASTER_WIDTH / side.end;
    pen.drawImage(raster, view.from * across, 0, (view.to - view.from) * across, RASTER_HEIGHT, LEFT, panel.top,
      plotWidth(), panel.height);
    return;
  }
  const image = imageOf(side, panel.place, view.from, view.to, Math.ceil(plotWidth()), panel.height, colourOfCategory);
  pen.drawImage(image, LEFT, panel.top);
  nameLives(panel, from, to);
}

// Writes the names of those that are drawn large enough.
function nameLives(panel, from, to) {
  const side = view.side, up = panel.height / facts.places[panel.place].arena, base = panel.top + panel.height;
  eachLife(from, to, life => {
    const height = lives.bytes[life] * up;
    if (height <= 12 || lives.place[life] !== panel.place) return;
    const x0 = Math.max(LEFT, xOf(side.clock[lives.first[life]])), x1 = Math.min(width - RIGHT, xOf(goneAt(side, life)));
    if (x1 - x0 <= 90) return;
    const y = base - lives.offset[life] * up - height;
    pen.save();
    pen.beginPath();
    pen.rect(x0, y, x1 - x0, height);
    pen.clip();
    words(tensorName(lives, life), x0 + 3, y + Math.min(height - 2, 12), '#fff');
    pen.restore();
  });
}

function drawAxis() {
  const span = view.to - view.from, bottom = panels[panels.length - 1];
  const raw = span / 8, power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].find(n => n * power >= raw) * power;
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    pen.fillStyle = '#00000018';
    pen.fillRect(xOf(at), 4, 1, bottom.top + bottom.height - 4);
    words(timeOf(at), xOf(at), bottom.top + bottom.height + 15, QUIET, 'center');
  }
}

const draws = {lane: drawLane, memory: drawMemory, map: drawMap};
function draw() {
  const began = performance.now();
  pen.clearRect(0, 0, width, canvas.height);
  pen.font = '11px system-ui, sans-serif';
  for (const panel of panels) draws[panel.kind](panel);
  drawArrows();
  drawAxis();
  view.drawMilliseconds = performance.now() - began;
}

let asked = false;
function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    draw();
  });
}

function show(from, to) {
  const span = Math.max(Math.min(to - from, view.side.end), view.side.end * 1e-8);
  view.from = Math.max(0, Math.min(from, view.side.end - span));
  view.to = view.from + span;
  history.replaceState(null, '', '#' + view.from + ',' + view.to);
  redraw();
}

// What is under the pointer.

function tellOp(op) {
  const side = view.side, lines = [opWhere(op) + ' (op ' + op + ', ' + facts.lanes[ops.lane[op]] + ')'];
  lines.push(timeOf(side.seconds[op]) + ' from ' + timeOf(side.start[op]));
  for (const other of sides)
    if (other !== side && !Number.isNaN(other.start[op])) lines.push(other.name + ' ' + timeOf(other.seconds[op]));
  if (tensors.buffer[op] !== NONE)
    lines.push('writes ' + tensorName(tensors, op) + ' in ' + facts.buffers[tensors.buffer[op]].name);
  let work = sizeOf(ops.bytes[op]) + ' read and written';
  if (ops.tokens[op] > 0) work += ', ' + ops.tokens[op].toLocaleString('en') + ' tokens';
  if (ops.flops[op] > 0)
    work += ', ' + (ops.flops[op] / 1e9).toFixed(2) + ' GFLOP, ' +
      (ops.flops[op] / side.seconds[op] / 1e12).toFixed(1) + ' TFLOP/s';
  lines.push(work);
  if (side.waited[op] !== NONE) lines.push('its lane waited for ' + opWhere(side.waited[op]));
  return lines.join('\n');
}

function tellLane(panel, seconds) {
  const list = detailsOf(view.side).lanes[panel.lane], side = view.side;
  const i = search(0, list.length, k => side.start[list[k]] > seconds) - 1;
  if (i >= 0 && seconds <= side.start[list[i]] + side.seconds[list[i]]) return tellOp(list[i]);
  if (i + 1 >= list.length) return facts.lanes[panel.lane] + ' is idle to the end';
  const next = list[i + 1];
  return facts.lanes[panel.lane] + ' is idle until ' + opWhere(next) +
    (side.waited[next] === NONE ? '' : '\nit waits for ' + opWhere(side.waited[next]));
}

function tellMemory(panel, seconds) {
  const op = opAt(view.side, seconds), now = memoryAt(op), row = facts.places[panel.place];
  const lines = [row.name + ' at ' + timeOf(seconds) + ': values ' + sizeOf(totalOf(now, panel.place))];
  for (const c of [...STACK].reverse()) {
    const bytes = now[panel.place * categoryCount + c];
    if (bytes > 0) lines.push(facts.categories[c] + ' ' + sizeOf(bytes));
  }
  lines.push('during ' + opWhere(op));
  return lines.join('\n');
}

function tellMap(panel, seconds, y) {
  const op = opAt(view.side, seconds), row = facts.places[panel.place];
  const address = (panel.top + panel.height - y) / panel.height * row.arena;
  let found = -1;
  eachLife(op, op, life => {
    if (lives.place[life] === panel.place && lives.first[life] <= op && lives.offset[life] <= address &&
        address < lives.offset[life] + lives.bytes[life]) found = life;
  });
  if (found < 0) return 'nothing at ' + sizeOf(Math.floor(address));
  return tensorName(lives, found) + '\n' + sizeOf(lives.bytes[found]) + ' at ' + sizeOf(lives.offset[found]) + ', ' +
    facts.categories[lives.category[found]] + '\nin ' + facts.buffers[lives.buffer[found]].name + ', slot ' +
    lives.slot[found] + '\nfrom ' + opWhere(lives.first[found]) + '\nto ' + opWhere(lives.last[found]);
}

function tell(x, y) {
  const panel = panels.find(p => y >= p.top && y <= p.top + p.height);
  const seconds = secondsAt(x);
  if (!panel || x < LEFT || x > width - RIGHT || seconds < 0 || seconds > view.side.end) return '';
  if (panel.kind === 'lane') return tellLane(panel, seconds);
  return panel.kind === 'memory' ? tellMemory(panel, seconds) : tellMap(panel, seconds, y);
}

function showTip(text, event) {
  tip.style.display = text ? 'block' : 'none';
  tip.textContent = text;
  tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + 'px';
  tip.style.top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + 'px';
}

let held = null;
canvas.addEventListener('wheel', event => {
  event.preventDefault();
  const at = secondsAt(event.offsetX), factor = Math.exp(event.deltaY * 0.0015);
  show(at - (at - view.from) * factor, at + (view.to - at) * factor);
}, {passive: false});
canvas.addEventListener('pointerdown', event => {
  held = {x: event.offsetX, from: view.from, to: view.to};
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener('pointerup', () => { held = null; });
canvas.addEventListener('pointermove', event => {
  if (held) {
    const moved = (held.x - event.offsetX) / plotWidth() * (held.to - held.from);
    show(held.from + moved, held.to + moved);
  }
  showTip(held ? '' : tell(event.offsetX, event.offsetY), event);
});
canvas.addEventListener('pointerleave', event => showTip('', event));
canvas.addEventListener('dblclick', () => show(0, view.side.end));
document.addEventListener('keydown', event => {
  const span = view.to - view.from, move = {ArrowLeft: -0.2, ArrowRight: 0.2}[event.key];
  const grow = {'+': 0.5, '=': 0.5, '-': 2}[event.key], middle = (view.from + view.to) / 2;
  if (move) show(view.from + move * span, view.to + move * span);
  else if (grow) show(middle - span * grow / 2, middle + span * grow / 2);
  else if (event.key === '0') show(0, view.side.end);
});

// Buttons, legend, loss.

function chooseSide(side) {
  const share = [view.from / view.side.end, view.to / view.side.end];
  view.side = side;
  for (const button of bar.querySelectorAll('button[data-side]'))
    button.classList.toggle('on', Number(button.dataset.side) === side.number);
  show(share[0] * side.end, share[1] * side.end);
}

function addButtons() {
  for (const side of sides) {
    const button = element('button', '', bar);
    button.dataset.side = side.number;
    button.textContent = side.name + (side.name === 'measured' ? ', step ' + facts.step : '') + ': ' + timeOf(side.end) +
      (facts.unfinished && side.name === 'measured' ? ', not finished' : '');
    button.addEventListener('click', () => chooseSide(side));
  }
  const whole = element('button', '', bar);
  whole.textContent = 'whole step';
  whole.addEventListener('click', () => show(0, view.side.end));
  element('span', '', bar).textContent = ops.count.toLocaleString('en') + ' ops. Wheel: zoom; drag: move.';
}

function addLegend() {
  const add = (colour, text) => {
    const entry = element('span', '', legend);
    element('i', '', entry).style.background = colour;
    entry.append(text);
  };
  const heading = text => { element('span', '', legend).textContent = text; };
  heading('ops:');
  for (const group of facts.groups.keys())
    if (ops.kind.some(kind => groupOfKind[kind] === group)) add(colourOfGroup[group], facts.groups[group]);
  add(WAIT, 'waits');
  heading('memory:');
  for (const c of STACK)
    if (usedPlaces.some(place => categoryUsed[place * categoryCount + c] ||
        (facts.categories[c] === 'runtime' && facts.places[place].runtime > 0)))
      add(colourOfCategory[c], facts.categories[c]);
}

// Marks the last step if it is not a number, as plot --loss does. Returns the words at its line, or ''.
function markFailed(brush, at, height) {
  if (facts.failed === null) return '';
  const words = 'step ' + facts.steps[facts.steps.length - 1][0] + ': its ' + facts.failed + ' is not a number';
  const left = at > brush.measureText(words).width + LEFT;
  brush.strokeStyle = brush.fillStyle = TEXT;
  brush.lineWidth = 1;
  brush.setLineDash([4, 3]);
  brush.beginPath();
  brush.moveTo(at, 20);
  brush.lineTo(at, height - 20);
  brush.stroke();
  brush.setLineDash([]);
  brush.textAlign = left ? 'right' : 'left';
  brush.fillText(words, at + (left ? -6 : 6), height - 26);
  return words;
}

// Returns what it says of the last step.
function drawLoss() {
  const steps = facts.steps.filter(step => step[1] !== null);
  if (steps.length === 0) {
    lossCanvas.style.display = 'none';
    return '';
  }
  const height = 170, scale = window.devicePixelRatio || 1, wide = lossCanvas.clientWidth;
  lossCanvas.style.height = height + 'px';
  lossCanvas.width = Math.round(wide * scale);
  lossCanvas.height = Math.round(height * scale);
  const brush = lossCanvas.getContext('2d');
  brush.setTransform(scale, 0, 0, scale, 0, 0);
  brush.font = '11px system-ui, sans-serif';
  const evaluated = facts.evaluations.filter(row => row[1] !== null);
  const all = [...steps, ...evaluated].map(row => row[1]);
  let low = all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b));
  if (high === low) [low, high] = [low - 0.5, high + 0.5];
  const first = steps[0][0], end = facts.steps[facts.steps.length - 1][0], last = Math.max(first + 1, end);
  const x = step => LEFT + (step - first) / (last - first) * (wide - LEFT - RIGHT);
  const y = loss => 24 + (high - loss) / (high - low) * (height - 48);
  brush.fillStyle = QUIET;
  brush.textAlign = 'right';
  for (const loss of [low, (low + high) / 2, high]) brush.fillText(loss < 1e4 ? loss.toFixed(3) : loss.toExponential(2), LEFT - 6, y(loss) + 4);
  brush.textAlign = 'center';
  brush.fillText('step ' + first, x(first) + 14, height - 6);
  brush.fillText('step ' + last, x(last) - 18, height - 6);
  brush.textAlign = 'left';
  brush.fillStyle = TEXT;
  brush.fillText('loss by step' + (evaluated.length > 0 ? '; points: of evaluations' : ''), LEFT + 4, 14);
  brush.strokeStyle = '#0072B2';
  brush.lineWidth = 1.5;
  brush.beginPath();
  for (const step of steps) brush.lineTo(x(step[0]), y(step[1]));
  brush.stroke();
  brush.fillStyle = steps.length < 100 ? '#0072B2' : '#00000000';
  for (const step of steps) brush.fillRect(x(step[0]) - 1.5, y(step[1]) - 1.5, 3, 3);
  const texts = [...new Set(evaluated.map(row => row[2]))];
  for (const row of evaluated) {
    brush.fillStyle = TEXT_COLOURS[texts.indexOf(row[2]) % TEXT_COLOURS.length];
    brush.fillRect(x(row[0]) - 3, y(row[1]) - 3, 6, 6);
  }
  lossCanvas.onpointermove = event => {
    const at = first + (event.offsetX - LEFT) / (wide - LEFT - RIGHT) * (last - first);
    const step = steps[Math.min(steps.length - 1, search(0, steps.length, i => steps[i][0] >= at - 0.5))];
    const of = evaluated.filter(row => row[0] === step[0]);
    showTip('step ' + step[0] + ': loss ' + step[1].toFixed(4) +
      (step[2] === null ? '' : '\ngradient norm ' + step[2].toPrecision(4)) +
      '\n' + timeOf(step[3]) + ', ' + Math.round(step[4] / step[3]).toLocaleString('en') + ' tokens/s' +
      of.map(row => '\nevaluation ' + (texts.length > 1 ? row[2] + ' ' : '') + row[1].toFixed(4)).join(''), event);
  };
  lossCanvas.onpointerleave = event => showTip('', event);
  return markFailed(brush, x(end), height);
}

// With #check, for tests: zooms through the step and says what was drawn, and how long it took.
function check() {
  const result = {ops: ops.count, lives: lives.count, peaks: placePeak.map(peak => peak.bytes), frames: []};
  const peak = placePeak[0].op, middle = view.side.start[peak] + view.side.seconds[peak] / 2;
  for (let share = 1; share > 1e-6; share /= 2) {
    view.from = Math.max(0, middle - view.side.end * share / 2);
    view.to = view.from + view.side.end * share;
    draw();
    result.frames.push(Math.round(view.drawMilliseconds * 10) / 10);
  }
  view.from = 0;
  view.to = view.side.end;
  draw();
  result.tips = panels.map(panel => tell(xOf(middle), panel.top + panel.height / 2));
  result.failed = drawLoss();
  element('pre', 'check').textContent = JSON.stringify(result, null, 1);
}

addButtons();
addLegend();
layOut();
chooseSide(view.side);
drawLoss();
window.addEventListener('resize', () => {
  layOut();
  draw();
  drawLoss();
});
const wanted = hash.split(',').map(Number);
if (wanted.length === 2 && wanted.every(Number.isFinite)) show(wanted[0], wanted[1]);
if (hash === 'check') check();
