// The data of a page: arrays of ops and of values, and what is made of them when the page is opened: the ops of each
// lane, columns and a raster for the whole step, and checkpoints of memory, so that any part is drawn quickly.
'use strict';

const NONE = 0xffffffff, NO_LAYER = 0xffff;
const COLUMNS = 32768; // of the whole step, where ops are too many to draw
const CHECKPOINT = 2048; // ops from one checkpoint of memory to the next
const RASTER_WIDTH = 4096, RASTER_HEIGHT = 512;

const facts = JSON.parse(document.getElementById('facts').textContent);

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const bytes = new Uint8Array(text.length / 4 * 3);
  for (let from = 0, at = 0; from < text.length; from += 1 << 20) {
    const part = atob(text.slice(from, from + (1 << 20)));
    for (let i = 0; i < part.length; i++) bytes[at++] = part.charCodeAt(i);
  }
  return bytes;
}

// An array that the page has as an element; the element is removed.
function takeArray(id) {
  const element = document.getElementById(id);
  const type = globalThis[element.dataset.type];
  const array = new type(bytesOf(element.textContent).buffer, 0, Number(element.dataset.count));
  element.remove();
  return array;
}

const ops = {};
for (const name of ['kind', 'phase', 'lane', 'layer', 'chunk', 'part', 'bytes', 'flops', 'tokens'])
  ops[name] = takeArray('op_' + name);
ops.count = ops.kind.length;
const tensors = {};
for (const name of ['content', 'part', 'layer', 'chunk', 'buffer']) tensors[name] = takeArray('tensor_' + name);
const lives = {};
for (const name of ['first', 'last', 'offset', 'bytes', 'buffer', 'slot', 'content', 'part', 'layer', 'chunk'])
  lives[name] = takeArray('life_' + name);
lives.count = lives.first.length;
lives.place = Uint8Array.from(lives.buffer, b => facts.buffers[b].place);
lives.category = Uint8Array.from(lives.buffer, b => facts.buffers[b].category);

const sides = facts.sides.map(side => ({
  ...side,
  start: takeArray('op_start' + side.number), // seconds; NaN: the op did not end
  seconds: takeArray('op_seconds' + side.number),
  waited: takeArray('op_waited' + side.number),
  clock: takeArray('op_clock' + side.number), // when an op changes memory
}));

const laneCount = facts.lanes.length, groupCount = facts.groups.length;
const placeCount = facts.places.length, categoryCount = facts.categories.length;
const groupOfKind = facts.groupOfKind.map(name => facts.groups.indexOf(name));

// Values by rising last op: lives.ending[endingFrom[op]...] have that last op.
const endingFrom = new Uint32Array(ops.count + 1);
for (let i = 0; i < lives.count; i++) endingFrom[lives.last[i] + 1]++;
for (let op = 0; op < ops.count; op++) endingFrom[op + 1] += endingFrom[op];
lives.ending = new Uint32Array(lives.count);
{
  const next = endingFrom.slice();
  for (let i = 0; i < lives.count; i++) lives.ending[next[lives.last[i]]++] = i;
}
// The first value that begins at an op or later.
const beginningFrom = new Uint32Array(ops.count + 1);
for (let op = 0, i = 0; op <= ops.count; op++) {
  while (i < lives.count && lives.first[i] < op) i++;
  beginningFrom[op] = i;
}
// Values by how long they live, 2^level to 2^(level + 1) - 1 ops, each by rising first op.
const levelOf = life => 31 - Math.clz32(lives.last[life] - lives.first[life] + 1);
const levels = [];
{
  const counts = new Uint32Array(32);
  for (let i = 0; i < lives.count; i++) counts[levelOf(i)]++;
  for (const count of counts) levels.push(new Uint32Array(count));
  counts.fill(0);
  for (let i = 0; i < lives.count; i++) levels[levelOf(i)][counts[levelOf(i)]++] = i;
}

// Bytes by place and category, as one array.
function moveTo(op, now) {
  if (op > 0)
    for (let i = endingFrom[op - 1]; i < endingFrom[op]; i++) {
      const life = lives.ending[i];
      now[lives.place[life] * categoryCount + lives.category[life]] -= lives.bytes[life];
    }
  for (let life = beginningFrom[op]; life < beginningFrom[op + 1]; life++)
    now[lives.place[life] * categoryCount + lives.category[life]] += lives.bytes[life];
}

function totalOf(now, place) {
  let total = 0;
  for (let c = 0; c < categoryCount; c++) total += now[place * categoryCount + c];
  return total;
}

const checkpoints = [];
const placePeak = facts.places.map(() => ({bytes: 0, op: 0}));
const categoryUsed = new Uint8Array(placeCount * categoryCount);
{
  const now = new Float64Array(placeCount * categoryCount);
  for (let op = 0; op < ops.count; op++) {
    moveTo(op, now);
    if (op % CHECKPOINT === 0) checkpoints.push(now.slice());
    for (let place = 0; place < placeCount; place++) {
      const total = totalOf(now, place);
      if (total > placePeak[place].bytes) placePeak[place] = {bytes: total, op};
    }
  }
  for (let i = 0; i < lives.count; i++) categoryUsed[lives.place[i] * categoryCount + lives.category[i]] = 1;
}

// The bytes while an op runs.
function memoryAt(op) {
  const from = Math.floor(op / CHECKPOINT);
  const now = checkpoints[from].slice();
  for (let next = from * CHECKPOINT + 1; next <= op; next++) moveTo(next, now);
  return now;
}

// The first index of [low, high) for which `past` holds; high if for none.
function search(low, high, past) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (past(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

// The op that was the last to change memory by a time.
function opAt(side, seconds) {
  return Math.max(0, search(0, ops.count, op => side.clock[op] > seconds) - 1);
}

// What a side shows of the whole step; made when it is first shown.
function detailsOf(side) {
  if (side.details) return side.details;
  const counts = new Uint32Array(laneCount);
  for (let op = 0; op < ops.count; op++) if (!Number.isNaN(side.start[op])) counts[ops.lane[op]]++;
  const lanes = Array.from(counts, count => new Uint32Array(count));
  const busy = new Float32Array(laneCount * groupCount * COLUMNS);
  const memory = new Float64Array(placeCount * categoryCount * COLUMNS);
  const totals = new Float64Array(placeCount * COLUMNS);
  const width = side.end / COLUMNS;
  const columnOf = seconds => Math.min(COLUMNS - 1, Math.floor(seconds / width));
  const now = new Float64Array(placeCount * categoryCount);
  counts.fill(0);
  // A column shows the state at which a place holds most, so that no peak is lost.
  const keep = column => {
    for (let place = 0; place < placeCount; place++) {
      const total = totalOf(now, place);
      if (total <= totals[place * COLUMNS + column]) continue;
      totals[place * COLUMNS + column] = total;
      for (let c = 0; c < categoryCount; c++)
        memory[(place * categoryCount + c) * COLUMNS + column] = now[place * categoryCount + c];
    }
  };
  let column = 0;
  for (let op = 0; op < ops.count; op++) {
    for (const target = columnOf(side.clock[op]); column < target;) {
      column++;
      keep(column);
    }
    moveTo(op, now);
    keep(column);
    const start = side.start[op], end = start + side.seconds[op];
    if (Number.isNaN(start)) continue;
    lanes[ops.lane[op]][counts[ops.lane[op]]++] = op;
    const row = (ops.lane[op] * groupCount + groupOfKind[ops.kind[op]]) * COLUMNS;
    for (let i = columnOf(start), last = columnOf(end); i <= last; i++) {
      const share = (Math.min(end, width * (i + 1)) - Math.max(start, width * i)) / width;
      if (share > 0) busy[row + i] += share;
    }
  }
  while (++column < COLUMNS) keep(column);
  side.details = {lanes, busy, memory, totals, rasters: []};
  return side.details;
}

// When the value is gone.
function goneAt(side, life) {
  return lives.last[life] + 1 < ops.count ? side.clock[lives.last[life] + 1] : side.end;
}

// Which category the bytes of an arena have from one time to another, as an image: a canvas.
function imageOf(side, place, from, to, width, height, colours) {
  const canvas = document.createElement('canvas');
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext('2d'), image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const tones = colours.map(hex => 0xff000000 | parseInt(hex.slice(5, 7) + hex.slice(3, 5) + hex.slice(1, 3), 16));
  const across = width / (to - from), up = height / facts.places[place].arena;
  eachLife(opAt(side, from), opAt(side, to), life => {
    if (lives.place[life] !== place) return;
    const x0 = Math.max(0, Math.floor((side.clock[lives.first[life]] - from) * across));
    const x1 = Math.min(width, Math.max(x0 + 1, Math.floor((goneAt(side, life) - from) * across)));
    const y0 = Math.floor(lives.offset[life] * up);
    const y1 = Math.min(height, Math.max(y0 + 1, Math.floor((lives.offset[life] + lives.bytes[life]) * up)));
    if (x0 >= x1) return;
    for (let y = y0; y < y1; y++) {
      const row = (height - 1 - y) * width;
      pixels.fill(tones[lives.category[life]], row + x0, row + x1);
    }
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

// The same of the whole step; made when it is first shown.
function rasterOf(side, place, colours) {
  const details = detailsOf(side);
  if (!details.rasters[place])
    details.rasters[place] = imageOf(side, place, 0, side.end, RASTER_WIDTH, RASTER_HEIGHT, colours);
  return details.rasters[place];
}

// Calls `see` with the values of which some op of [from, to] is in the life.
function eachLife(from, to, see) {
  for (let level = 0; level < levels.length; level++) {
    const list = levels[level], earliest = from - 2 ** (level + 1);
    for (let i = search(0, list.length, k => lives.first[list[k]] > earliest); i < list.length; i++) {
      if (lives.first[list[i]] > to) break;
      if (lives.last[list[i]] >= from) see(list[i]);
    }
  }
}

// Words.

function sizeOf(bytes) {
  for (const unit of ['B', 'KiB', 'MiB']) {
    if (bytes < 1024) return (unit === 'B' ? bytes : bytes.toFixed(2)) + ' ' + unit;
    bytes /= 1024;
  }
  return bytes.toFixed(2) + ' GiB';
}

function timeOf(seconds) {
  const size = Math.abs(seconds);
  if (size >= 1) return seconds.toFixed(3) + ' s';
  if (size >= 1e-3) return (seconds * 1e3).toFixed(3) + ' ms';
  return (seconds * 1e6).toFixed(3) + ' µs';
}

// "kv_pages, layer 4, chunk 2", of the arrays of ops' tensors or of lives. Layers and chunks count from 1.
function tensorName(of, i) {
  const content = facts.contents[of.content[i]], part = facts.parts[of.part[i]], layer = of.layer[i];
  let name = content + (part === undefined ? '' : ' ' + part);
  if (layer < facts.layers) name += ', layer ' + (layer + 1);
  if (of.chunk[i] !== NONE) name += ', chunk ' + (of.chunk[i] + 1);
  return name;
}

function opName(op) {
  const part = facts.parts[ops.part[op]], kind = facts.kinds[ops.kind[op]];
  if (part !== undefined && part !== kind) return kind + ' ' + part;
  return kind === 'copy' && tensors.buffer[op] !== NONE ? 'copy ' + facts.contents[tensors.content[op]] : kind;
}

function opWhere(op) {
  let where = facts.phases[ops.phase[op]] + ' ' + opName(op);
  if (ops.layer[op] < facts.layers) where += ', layer ' + (ops.layer[op] + 1);
  if (ops.chunk[op] !== NONE) where += ', chunk ' + (ops.chunk[op] + 1);
  return where;
}
