// The page of --film. `films` holds one film, or two that are played side by side, as common/harness/film.cpp wrote them.
// A film has launches; a launch has filmed blocks; a block has events in the order in which its threads caused them.
'use strict';

const films = JSON.parse(document.getElementById('films').textContent);
const SVG = 'http://www.w3.org/2000/svg';
const ORDER = ['Q', 'K', 'V', 'S', 'P', 'O', 'LSE', 'dO', 'delta', 'dP', 'dS', 'dQ', 'dK', 'dV', ''];
const isPair = (tensor) => ['S', 'P', 'dP', 'dS'].includes(tensor);  // an element per query and key
const isScalar = (tensor) => /LSE|lse2|delta/.test(tensor);           // one per query
const SECTOR = 32;  // bytes: the unit in which memory answers
const number = new Intl.NumberFormat('en-US');
const count = (n) => number.format(n);
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? '' : word.endsWith('s') ? 'es' : 's'}`;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) key in made ? (made[key] = value) : made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// ---- what the events mean ----------------------------------------------------------------------------------------------

/// Rows and columns of one head of a tensor.
function dimensions(film, tensor) {
  if (isPair(tensor)) return {rows: film.seqlen_q, cols: film.seqlen_k};
  if (isScalar(tensor)) return {rows: 1, cols: film.seqlen_q};
  return {rows: ['K', 'V', 'dK', 'dV'].includes(tensor) ? film.seqlen_k : film.seqlen_q, cols: film.head_dim};
}

/// A step may see a tensor's heads as one matrix: then a row's number counts over all of them.
function placeInHead(film, event) {
  const {rows, cols} = dimensions(film, event.tensor);
  const [first, last] = event.rows, [left, right] = event.cols;
  const head = event.head + Math.floor(first / rows) + (rows === 1 ? Math.floor(left / cols) : 0);
  return {head, first: first % rows, last: Math.min(rows - 1, first % rows + last - first), left: left % cols, right: Math.min(cols - 1, left % cols + right - left)};
}

/// Of the first accesses of a warp's lanes: where each begins, in bytes, how many bytes it asks for, and the sectors that they touch.
function firstAccesses(film, event) {
  const {cols} = dimensions(film, event.tensor), bytes = event.bytes / event.accesses, element = bytes / event.elements;
  const lanes = event.lanes.map(([lane, row, col]) => ({lane, at: (row * cols + col) * element}));
  const sectors = new Set();
  for (const {at} of lanes)
    for (let byte = at; byte < at + bytes; byte += element) sectors.add(Math.floor(byte / SECTOR));
  return {lanes, bytes, sectors: [...sectors].sort((a, b) => a - b)};
}

/// How many pairs of the tile made of the last loaded Q and K rows the mask hides.
function hiddenPairs(film, q, k) {
  if (!film.causal || !q || !k) return 0;
  let hidden = 0;
  for (let i = q.first; i <= q.last; ++i) hidden += Math.max(0, Math.min(k.last - k.first + 1, k.last - (i + film.seqlen_k - film.seqlen_q)));
  return hidden;
}

/// m of before and after: how many rows got a larger maximum, and the smallest factor that their past is scaled by.
function growth(film, before, after) {
  let grown = 0, first = 0, alpha = 1;
  after.forEach((m, row) => {
    const old = before?.[row] ?? null;
    if (m === null) return;
    if (old === null) ++first;
    else if (m > old) ++grown, alpha = Math.min(alpha, Math.exp(film.softmax_scale * (old - m)));
  });
  return {grown, first, alpha};
}

function describe(film, state) {
  const event = state.event;
  const size = event.bytes ? `${count(event.bytes)} bytes` : '';
  switch (event.kind) {
    case 'load':
    case 'store': {
      const at = placeInHead(film, event), {rows} = dimensions(film, event.tensor);
      const part = rows === 1 ? `rows ${at.left} to ${at.right}` : `rows ${at.first} to ${at.last}, columns ${at.left} to ${at.right}`;
      return [event.kind === 'load' ? `${event.tensor} comes from HBM` : `${event.tensor} goes to HBM`,
        `head ${at.head}, ${part}: ${size} in ${plural(event.accesses, 'access')}.`];
    }
    case 'sram write': return ['SRAM is written', `${size}, within its bytes ${count(event.cols[0])} to ${count(event.cols[1])}.`];
    case 'sram read': return ['SRAM is read', `${size}, within its bytes ${count(event.cols[0])} to ${count(event.cols[1])}. A value is read as often as it is used.`];
    case 'product': return ['A tile product', `${count(event.flops)} FLOPs on operands from SRAM and registers. No byte crosses from HBM.`];
    case 'barrier': return ['__syncthreads', 'Every thread of the block has arrived. What was written before is there for all.'];
    case 'copy arrives': return ['Asynchronous copies arrive', `${size} that were on their way are in SRAM now.`];
    case 'row max': {
      const {grown, first, alpha} = growth(film, state.maximaBefore, event.maxima);
      const hidden = hiddenPairs(film, state.last.Q, state.last.K);
      const mask = hidden ? ` The mask hides ${plural(hidden, 'pair')} of this tile.` : '';
      if (grown) return ['Maxima grow', `${plural(grown, 'row')} of ${event.maxima.length} found a larger score. What they summed up is scaled by alpha, ${alpha.toPrecision(3)} at the least.${mask}`];
      if (first) return ['First maxima', `${plural(first, 'row')} know their first maximum m.${mask}`];
      return ['Maxima stay', `No row found a larger score: alpha is 1 for all.${mask}`];
    }
  }
  return [event.kind, ''];
}

// ---- one film ------------------------------------------------------------------------------------------------------------

class Film {
  constructor(film) {
    this.film = film;
    const rank = (one) => (ORDER.indexOf(one.tensor) + ORDER.length) % ORDER.length;  // others stand last
    for (const launch of film.launches) launch.counted.sort((a, b) => rank(a) - rank(b));
    this.blockShare = 0;  // which of the filmed blocks: 0 is the first, 1 the last
    this.position = 0;
    this.build();
    this.cut();
  }

  /// The events to play: of each launch those of one block.
  cut() {
    this.events = [];
    for (const launch of this.film.launches) {
      const block = launch.filmed[Math.round(this.blockShare * (launch.filmed.length - 1))];
      for (const event of block.events) this.events.push({launch, block, event});
    }
    this.goTo(Math.min(this.position, this.events.length));
  }

  /// Shows the film after its first `position` events.
  goTo(position) {
    this.position = Math.max(0, Math.min(position, this.events.length));
    const state = {seen: [], bytes: {}, last: {}, sram: [], flops: 0};
    const current = this.events[this.position - 1];
    for (let n = 0; n < this.position; ++n) {
      const {launch, event} = this.events[n];
      if (launch !== current.launch) continue;  // each launch starts with nothing
      this.take(state, event);
    }
    this.draw(current, state);
  }

  take(state, event) {
    if (event.kind === 'load' || event.kind === 'store') {
      const at = placeInHead(this.film, event);
      state.seen.push({event, at});
      state.last[event.tensor] = at;
      const bytes = (state.bytes[event.tensor] ??= {load: 0, store: 0});
      bytes[event.kind] += event.bytes;
    }
    if (event.kind === 'sram write') state.sram.push(event);
    if (event.kind === 'product') state.flops += event.flops;
    state.maximaBefore = event.kind === 'row max' ? state.maxima : state.maximaBefore;
    if (event.kind === 'row max') state.maxima = event.maxima;
    state.event = event;
  }

  build() {
    const {film} = this;
    const mask = film.causal ? ', causal' : '';
    const size = film.seqlen_q === film.seqlen_k ? `N ${film.seqlen_q}` : `Nq ${film.seqlen_q}, Nk ${film.seqlen_k}`;
    this.now = element('div', {className: 'card now', role: 'status', ariaLive: 'polite'});
    this.picture = element('div', {className: 'card'});
    this.bytes = element('div', {className: 'card'});
    this.code = element('div', {className: 'card'});
    this.root = element('section', {className: 'film'},
      element('h2', {textContent: `${film.step}  ${film.title}`}),
      element('p', {className: 'quiet', textContent: `${film.dtype}, batch ${film.batch}, ${plural(film.heads, 'head')}, ${size}, d ${film.head_dim}${mask}, tile ${film.tile}. ${film.verdict}.`}),
      this.now, element('div', {className: 'parts'}, element('div', {}, this.picture), element('div', {}, this.bytes, this.code)));
  }

  draw(current, state) {
    if (!current) {
      this.now.replaceChildren(element('p', {}, element('strong', {textContent: 'The start. '}), 'Nothing has moved yet. Press play, or the right arrow key.'));
      this.picture.replaceChildren();
      this.drawBytes(this.film.launches[0], {});
      this.code.replaceChildren();
      return;
    }
    const {launch, block, event} = current;
    const [title, text] = describe(this.film, state);
    this.now.replaceChildren(
      element('p', {}, element('strong', {textContent: `${title}. `}), text),
      element('p', {className: 'quiet', textContent: `kernel ${launch.kernel}, block ${count(block.block)} of ${count(launch.blocks)} (${launch.filmed.length === launch.blocks ? 'all are' : `${launch.filmed.length} are`} on the film), ${event.at}`}));
    this.picture.replaceChildren(this.drawMemory(launch, state), ...(event.lanes ? [this.drawLanes(event)] : []));
    this.drawBytes(launch, state.bytes);
    this.drawCode(event);
  }

  /// Of a picture, in its own units: a narrow screen gets a narrow picture with letters as large.
  width() { return this.root.clientWidth && this.root.clientWidth < 560 ? 360 : 640; }

  /// HBM as strips of one head's tensors, and the block's SRAM and registers below.
  drawMemory(launch, state) {
    const total = this.width();
    const svg = shape('svg', {viewBox: `0 0 ${total} 330`, role: 'img', 'aria-label': 'HBM, SRAM and registers'});
    const tensors = launch.counted.map((one) => one.tensor);
    const tall = 150, gap = 14;
    const widths = tensors.map((tensor) => isPair(tensor) ? 120 : Math.max(isScalar(tensor) ? 24 : 40, 7 * tensor.length));
    const fit = Math.min(1, (total - 12) / widths.reduce((sum, width) => sum + width + gap, 0));
    let x = 6;
    svg.append(shape('text', {x, y: 14}, `HBM: head ${state.seen.at(-1)?.at.head ?? 0}`));
    tensors.forEach((tensor, n) => {
      const {rows, cols} = dimensions(this.film, tensor);
      const scalars = isScalar(tensor), width = widths[n] * fit;
      const group = shape('g', {transform: `translate(${x} 38)`});
      group.append(shape('text', {x: 0, y: -6}, tensor));
      const draw = (at, className) => {
        const [first, last, left, right, high, wide] = scalars ? [at.left, at.right, 0, 0, cols, 1] : [at.first, at.last, at.left, at.right, rows, cols];
        group.append(shape('rect', {class: className, x: left / wide * width, y: first / high * tall, width: Math.max(2, (right - left + 1) / wide * width),
          height: Math.max(1.5, (last - first + 1) / high * tall)}));
      };
      for (const {event, at} of state.seen) if (event.tensor === tensor) draw(at, 'seen');
      if (state.event.tensor === tensor) draw(state.seen.at(-1).at, 'current');
      group.append(shape('rect', {class: 'tensor', width, height: tall}));
      svg.append(group);
      x += width + gap * fit;
    });
    this.drawSram(svg, launch, state);
    this.drawRegisters(svg, state);
    return svg;
  }

  drawSram(svg, launch, state) {
    const y = 218, width = this.width() - 12;
    svg.append(shape('text', {x: 6, y: y - 6}, launch.sram_bytes ? `SRAM of the block: ${count(launch.sram_bytes)} bytes` : 'SRAM: this kernel uses none'));
    if (!launch.sram_bytes) return;
    const draw = (event, className) => svg.append(shape('rect', {class: className, x: 6 + event.cols[0] / launch.sram_bytes * width, y,
      width: Math.max(2, (event.cols[1] - event.cols[0] + 1) / launch.sram_bytes * width), height: 22}));
    for (const event of state.sram) draw(event, 'seen');
    if (state.event.kind.startsWith('sram')) draw(state.event, 'current');
    svg.append(shape('rect', {class: 'tensor', x: 6, y, width, height: 22}));
  }

  drawRegisters(svg, state) {
    const y = 262, high = 56;
    svg.append(shape('text', {x: 6, y}, `Registers: ${count(state.flops)} FLOPs of products so far${state.maxima ? '; a bar is a row\'s running maximum m' : ''}`));
    if (!state.maxima) return;
    const known = state.maxima.filter((m) => m !== null);
    const low = Math.min(...known, 0), top = Math.max(...known, 1e-6);
    const wide = (this.width() - 12) / state.maxima.length;
    state.maxima.forEach((m, row) => {
      if (m === null) return;
      const before = state.maximaBefore?.[row] ?? null, tall = Math.max(1, (m - low) / (top - low) * high);
      const grown = state.event.kind === 'row max' && (before === null || m > before);
      svg.append(shape('rect', {class: grown ? 'grown' : 'bar', x: 6 + row * wide, y: y + 8 + high - tall, width: Math.max(.6, wide - 1), height: tall}));
    });
  }

  /// Where the 32 lanes of a warp went with their first access, each a column of its sector.
  drawLanes(event) {
    const {lanes, bytes, sectors} = firstAccesses(this.film, event);
    const asked = lanes.length * bytes, moved = sectors.length * SECTOR;
    const total = this.width(), apart = (total - 24) / 31.5, wide = Math.min(60, (total - 12) / sectors.length);
    const svg = shape('svg', {viewBox: `0 0 ${total} 74`, role: 'img', 'aria-label': 'First access of each lane of a warp'});
    sectors.forEach((_, n) => svg.append(shape('rect', {class: 'tensor', x: 6 + n * wide, y: 40, width: wide - 2, height: 26})));
    for (const {lane, at} of lanes) {
      const x = 6 + sectors.indexOf(Math.floor(at / SECTOR)) * wide + (at % SECTOR) / SECTOR * (wide - 2), width = Math.max(1.5, bytes / SECTOR * (wide - 2));
      svg.append(shape('rect', {class: 'lane', x, y: 42, width, height: 22}));
      svg.append(shape('line', {class: 'tile-line', x1: 12 + lane * apart, y1: 14, x2: x + width / 2, y2: 40}));
      svg.append(shape('circle', {class: 'lane', cx: 12 + lane * apart, cy: 10, r: 4}));
    }
    return element('figure', {style: 'margin: 8px 0 0'}, svg, element('figcaption', {className: 'quiet',
      textContent: `First access of warp 0: ${lanes.length} lanes ask for ${asked} bytes and touch ${plural(sectors.length, 'sector')} of ${SECTOR} bytes (${moved} bytes): ` +
        (moved > asked ? `${Math.round(100 * asked / moved)} % of what comes is used at once.` : 'nothing of them is wasted.')}));
  }

  drawBytes(launch, soFar) {
    const table = element('table', {}, element('caption', {className: 'quiet', textContent: `Bytes between HBM and the kernel ${launch.kernel}`}));
    table.append(element('tr', {}, ...['tensor', 'this block, loaded', 'stored', 'all blocks, loaded', 'stored'].map((name) => element('th', {scope: 'col', textContent: name}))));
    const sum = {block: {load: 0, store: 0}, all: {load: 0, store: 0}};
    const line = (name, block, all, className = '') => table.append(element('tr', {className}, ...[name, ...[block.load, block.store, all.load, all.store].map(count)].map((text) => element('td', {textContent: text}))));
    for (const all of launch.counted) {
      const block = soFar[all.tensor] ?? {load: 0, store: 0};
      line(all.tensor, block, all);
      for (const way of ['load', 'store']) sum.block[way] += block[way], sum.all[way] += all[way];
    }
    line('together', sum.block, sum.all, 'total');
    this.bytes.replaceChildren(table);
  }

  drawCode(event) {
    const [file, at] = event.at.split(':');
    const lines = this.film.sources[file] ?? [];
    if (lines.length === 0) return this.code.replaceChildren(element('p', {className: 'quiet', textContent: `${event.at}: the source was not found when the film was made.`}));
    const pre = element('pre', {tabIndex: 0, ariaLabel: `${file}, line ${at}`});
    const first = Math.max(0, at - 7);
    lines.slice(first, Number(at) + 6).forEach((text, n) => {
      const here = first + n + 1 === Number(at);
      pre.append(element('span', {className: here ? 'line current-line' : 'line', textContent: `${String(first + n + 1).padStart(4)}  ${text}`}));
    });
    this.code.replaceChildren(pre);
  }
}

// ---- one row, tile by tile -----------------------------------------------------------------------------------------------

/// The online softmax of one row: m, alpha, l and the sums of P V after each key tile, and what an ordinary softmax gives.
function recurrence(scores, values, tileKeys) {
  const columns = values[0]?.length ?? 0;
  let m = -Infinity, l = 0, o = Array(columns).fill(0);
  const tiles = [];
  for (let first = 0; first < scores.length; first += tileKeys) {
    const tile = scores.slice(first, first + tileKeys);
    const grown = Math.max(m, ...tile), alpha = m === -Infinity ? 0 : Math.exp(m - grown);
    const p = tile.map((s) => Math.exp(s - grown));
    l = alpha * l + p.reduce((sum, x) => sum + x, 0);
    o = o.map((sum, c) => alpha * sum + p.reduce((more, x, j) => more + x * values[first + j][c], 0));
    m = grown;
    tiles.push({first, last: first + tile.length - 1, m, alpha, l, o: o.map((x) => x / l)});
  }
  const top = Math.max(...scores), weights = scores.map((s) => Math.exp(s - top)), sum = weights.reduce((a, b) => a + b, 0);
  const exact = Array.from({length: columns}, (_, c) => weights.reduce((more, w, j) => more + w / sum * values[j][c], 0));
  return {tiles, exact, lse: top + Math.log(sum)};
}

function rowView(film) {
  const {row} = film;
  if (row.scores.length === 0) return element('p', {className: 'quiet', textContent: `Query ${row.query} sees no key.`});
  const scores = row.scores.slice();
  const tileKeys = row.tile_keys || 64;
  const table = element('table');
  const short = (x) => x === undefined ? '' : x.toPrecision(6);
  const show = () => {
    const {tiles, exact, lse} = recurrence(scores, row.values, tileKeys);
    table.replaceChildren(element('tr', {}, ...['key tile', 'keys', 'm', 'alpha', 'l', ...exact.map((_, c) => `O[${c}]`)].map((name) => element('th', {scope: 'col', textContent: name}))));
    const line = (cells, className = '') => table.append(element('tr', {className}, ...cells.map((text) => element('td', {textContent: text}))));
    tiles.forEach((tile, n) => line([n, `${tile.first} to ${tile.last}`, short(tile.m), short(tile.alpha), short(tile.l), ...tile.o.map(short)]));
    line(['softmax of the whole row', '', '', '', '', ...exact.map(short)], 'total');
    const edited = scores.some((s, j) => s !== row.scores[j]);
    line([edited ? 'the kernel, before the edit' : 'the kernel', `LSE ${short(row.lse)}`, '', '', '', ...row.o.map(short)]);
    caption.textContent = `LSE = m + ln l = ${short(lse)}.`;
  };
  const caption = element('p', {className: 'quiet'});
  const key = element('input', {type: 'number', min: 0, max: scores.length - 1, value: 0, ariaLabel: 'key'});
  const score = element('input', {type: 'number', step: 'any', value: scores[0], ariaLabel: 'score of this key'});
  key.addEventListener('input', () => { if (scores[key.value] !== undefined) score.value = scores[key.value]; });
  score.addEventListener('input', () => {
    if (scores[key.value] === undefined || !Number.isFinite(score.valueAsNumber)) return;
    scores[key.value] = score.valueAsNumber;
    show();
  });
  const back = element('button', {textContent: 'Undo all edits'});
  back.addEventListener('click', () => { row.scores.forEach((s, j) => { scores[j] = s; }); score.value = scores[key.value]; show(); });
  show();
  return element('div', {className: 'card row-view'},
    element('h2', {textContent: `One row: query ${row.query} of head 0`}),
    element('p', {textContent: 'The scores come from the inputs in float64. Change one and watch m, alpha, l and O. The last tile always agrees with the softmax of the whole row.'}),
    element('p', {}, 'Score of key ', key, ' is ', score, ' ', back),
    element('div', {style: 'overflow-x: auto', tabIndex: 0, role: 'region', ariaLabel: 'the recurrence'}, table), caption);
}

// ---- the page ------------------------------------------------------------------------------------------------------------

const KINDS = ['any', 'load', 'store', 'sram write', 'product', 'row max', 'maximum that grew', 'barrier', 'copy arrives'];
const played = films.filter((film) => film.launches.length);  // a page of --timeline has none
const shown = played.map((film) => new Film(film));
const longest = () => Math.max(0, ...shown.map((one) => one.events.length));
let position = 0, timer = null;

const play = element('button', {textContent: 'Play', id: 'play'});
const slider = element('input', {type: 'range', min: 0, value: 0, ariaLabel: 'Position in the film', id: 'position'});
const speed = element('select', {ariaLabel: 'Speed'}, ...[1, 2, 5, 20, 100].map((n) => element('option', {value: n, textContent: `${n} a second`, selected: n === 5})));
const kind = element('select', {ariaLabel: 'Kind of event'}, ...KINDS.map((name) => element('option', {value: name, textContent: name})));
const block = element('input', {type: 'range', min: 0, max: 1000, value: 0, ariaLabel: 'Block', id: 'block'});
const where = element('span', {className: 'quiet'});

function show(to) {
  position = Math.max(0, Math.min(to, longest()));
  shown.forEach((one) => one.goTo(position));
  slider.max = longest();
  slider.value = position;
  where.textContent = `event ${position} of ${longest()}`;
}
function stop() {
  clearInterval(timer);
  timer = null;
  play.textContent = 'Play';
}
function start() {
  if (position >= longest()) show(0);
  play.textContent = 'Pause';
  timer = setInterval(() => { position >= longest() ? stop() : show(position + 1); }, 1000 / speed.value);
}
const toggle = () => timer ? stop() : start();

/// Is the n-th event of a film of this kind? A maximum that grew is one where alpha is below 1.
function matches(one, n) {
  const event = one.events[n]?.event;
  if (!event) return false;
  if (kind.value === 'any' || event.kind === kind.value) return true;
  if (kind.value !== 'maximum that grew' || event.kind !== 'row max') return false;
  const before = one.events.slice(0, n).findLast((earlier) => earlier.event.kind === 'row max' && earlier.launch === one.events[n].launch);
  return growth(one.film, before?.event.maxima, event.maxima).grown > 0;
}
function jump() {
  for (let n = position; n < longest(); ++n) if (shown.some((one) => matches(one, n))) return show(n + 1);
  show(longest());
}

play.addEventListener('click', toggle);
speed.addEventListener('change', () => { if (timer) stop(), start(); });
slider.addEventListener('input', () => show(Number(slider.value)));
block.addEventListener('input', () => {
  shown.forEach((one) => { one.blockShare = block.value / 1000; one.cut(); });
  show(position);
});
const button = (text, label, action) => {
  const made = element('button', {textContent: text, ariaLabel: label, title: label});
  made.addEventListener('click', action);
  return made;
};
document.addEventListener('keydown', (key) => {
  if (key.target.matches('input, select, pre') || key.ctrlKey || key.metaKey || key.altKey) return;
  const actions = {ArrowRight: () => show(position + 1), ArrowLeft: () => show(position - 1), Home: () => show(0), End: () => show(longest()), n: jump};
  if (key.key === ' ' && !key.target.matches('button')) actions[' '] = toggle;
  if (!actions[key.key]) return;
  key.preventDefault();
  actions[key.key]();
});

/// What each warp does when, drawn by common/harness/timeline.cpp.
function timelineView(film) {
  return element('div', {className: 'card timeline', tabIndex: 0, role: 'region', ariaLabel: `timeline of ${film.step}`, innerHTML: film.timeline});
}

// Two films of one problem have one row to show.
const rows = played.filter((film, n) => !played.slice(0, n).some((earlier) => JSON.stringify(earlier.row.scores) === JSON.stringify(film.row.scores)));
window.addEventListener('resize', () => show(position));

const player = [
  element('p', {textContent: 'Every event and every byte on this page was seen by the CPU executor while it ran the real kernel. Keys: space plays, left and right step, n jumps to the next event of the chosen kind.'}),
  element('div', {className: 'controls', role: 'group', ariaLabel: 'Player'},
    play, button('◀', 'One event back', () => show(position - 1)), button('▶', 'One event on', () => show(position + 1)), slider, where, speed,
    kind, button('Next', 'Next event of this kind', jump), element('label', {}, 'block ', block)),
  element('div', {className: shown.length > 1 ? 'films two' : 'films'}, ...shown.map((one) => one.root))];
document.getElementById('page').append(
  element('h1', {textContent: films.map((film) => `${film.step} ${film.title}`).join('  |  ')}),
  ...(shown.length > 0 ? player : []), ...films.map(timelineView), ...rows.map(rowView));
show(Number(location.hash.slice(1)) || 0);  // film.html#40 opens after 40 events
