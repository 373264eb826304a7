// The graph of a model: laid out with dagre, drawn as SVG, folded by module, colored, searched, compared.
//
// Every name comes from a file that anybody may have made: names become text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";
const GAP = 14; // between boxes of a row
const ROW = 26; // between rows
const PAD = 12; // inside a module
const HEAD = 20; // of a module that is open, for its name
const HEIGHT = 34;
const FEW = 150; // so many nodes are shown at once; of more, the modules
const SMALL = 220; // so many boxes are laid out as a whole
const FAR = 120; // an edge over so many boxes is drawn, and does not count for the layout of large graphs
const PIECE = 80; // so many boxes are given to dagre at once: its time grows with the square, and with long lines
const QUICK = 60; // of more boxes the ranks are found by the quicker way
const SLICE_MS = 40; // so long the layout of a large graph keeps the page busy before others have their turn
const FIRST_MS = 120; // after so long the beginning of a large graph is drawn; all of it follows
const GRID = 8; // widths are multiples of it, so that blocks that differ by a digit of a name are equal
const SHADES = 9;
const [NAME, OP, MODULE, INPUTS, OUTPUTS, ATTRIBUTES, PRECISION, CONSTANT, LAYER] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

function element(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  made.append(...children);
  return made;
}

function html(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function short(text, most) {
  return text.length <= most ? text : "…" + text.slice(1 - most);
}

function told(value) {
  return typeof value === "number" ? Number(value.toPrecision(4)).toString() : value;
}

// ---- the tree of modules ------------------------------------------------------------------------------------------

/** Return the root of the tree of modules; a module of one node alone is not worth a box. */
function treeOf(graph, withConstants) {
  const root = { path: "", name: "", parent: null, modules: new Map(), nodes: [], count: 0, open: true };
  const owner = new Map();
  graph.nodes.forEach((node, number) => {
    if (node[CONSTANT] && !withConstants) return;
    let place = root;
    root.count += 1;
    const path = node[MODULE] < 0 ? "" : graph.modules[node[MODULE]];
    for (const part of path ? path.split(".").slice(0, 12) : []) {
      let inner = place.modules.get(part);
      if (!inner) {
        inner = { path: place.path ? `${place.path}.${part}` : part, name: part, parent: place, modules: new Map(), nodes: [], count: 0, open: true };
        place.modules.set(part, inner);
      }
      place = inner;
      place.count += 1;
    }
    place.nodes.push(number);
  });
  simplify(root);
  const walk = (group) => {
    for (const number of group.nodes) owner.set(number, group);
    group.modules.forEach(walk);
  };
  walk(root);
  return { root, owner };
}

function simplify(group) {
  for (const [key, inner] of [...group.modules]) {
    simplify(inner);
    const only = inner.nodes.length === 0 && inner.modules.size === 1 ? [...inner.modules.values()][0] : null;
    if (inner.count < 2) {
      group.modules.delete(key);
      group.nodes.push(...inner.nodes);
    } else if (only) {
      only.parent = group;
      only.name = `${inner.name}.${only.name}`;
      group.modules.set(key, only);
    }
  }
}

function allModules(root) {
  const found = [];
  const walk = (group) => group.modules.forEach((inner) => {
    found.push(inner);
    walk(inner);
  });
  walk(root);
  return found;
}

// ---- layout -------------------------------------------------------------------------------------------------------

const known = new Map(); // blocks repeat in most networks: one is laid out, the others take its places

function widthOf(text, letter) {
  return Math.ceil(Math.min(230, Math.max(52, text.length * letter + 18)) / GRID) * GRID;
}

/**
 * Lay a graph out: boxes with places, and the lines between them, in the coordinates of the whole.
 * Yields now and then, each time a function that gives the part that is laid out; returns the whole.
 */
function* layingOut(graph, tree) {
  const producers = new Map();
  graph.nodes.forEach((node, number) => {
    if (tree.owner.has(number)) for (const tensor of node[OUTPUTS]) producers.set(tensor, number);
  });
  const boxes = new Map();
  const add = (key, box) => boxes.set(key, { key, ...box });
  graph.nodes.forEach((node, number) => {
    if (!tree.owner.has(number)) return;
    const label = short(node[OP], 30);
    const path = node[MODULE] < 0 ? node[NAME] : graph.modules[node[MODULE]];
    const name = short(path, 28);
    add(number, { kind: "node", label, name, width: Math.max(widthOf(label, 7), widthOf(name, 5.6)), height: HEIGHT, group: tree.owner.get(number) });
  });
  const ends = [];
  const end = (tensor, key, word) => {
    const label = short(graph.tensors[tensor][0], 30);
    const name = graph.tensors[tensor][1] ? short(graph.tensors[tensor][1], 34) : word;
    add(key, { kind: "end", label, name, tensor, width: Math.max(widthOf(label, 7), widthOf(name, 5.6)), height: HEIGHT, group: tree.root });
    ends.push(key);
  };
  const lines = [];
  const line = (from, to) => lines.push([from, to]);
  graph.inputs.forEach((tensor) => end(tensor, `in ${tensor}`, "input"));
  graph.nodes.forEach((node, number) => {
    if (!tree.owner.has(number)) return;
    for (const tensor of new Set(node[INPUTS])) {
      if (producers.has(tensor)) {
        if (producers.get(tensor) !== number) line(producers.get(tensor), number);
      } else if (boxes.has(`in ${tensor}`)) line(`in ${tensor}`, number);
    }
  });
  graph.outputs.forEach((tensor, index) => {
    if (!producers.has(tensor)) return;
    const key = `out ${tensor} ${index}`;
    end(tensor, key, "output");
    line(producers.get(tensor), key);
  });

  // What a box is part of where modules are closed.
  const seen = (key) => {
    let shown = key;
    for (let group = boxes.get(key).group; group.parent; group = group.parent) if (!group.open) shown = group;
    return shown;
  };
  const groupsOf = (item) => {
    const found = [];
    for (let group = typeof item === "object" ? item.parent : boxes.get(item).group; group; group = group.parent) found.push(group);
    return found;
  };

  const levels = new Map(); // of each open module: its items and the lines between them
  const level = (group) => {
    if (!levels.has(group)) levels.set(group, { items: new Map(), lines: new Map() });
    return levels.get(group);
  };
  for (const key of boxes.keys()) {
    const item = seen(key);
    if (typeof item === "object") {
      level(item.parent).items.set(item, { item, width: widthOf(short(item.path, 30), 7) + 20, height: HEIGHT + 4 });
      for (let group = item.parent; group.parent; group = group.parent) level(group.parent).items.set(group, { item: group });
    } else {
      const box = boxes.get(key);
      level(box.group).items.set(key, { item: key, width: box.width, height: box.height });
      for (let group = box.group; group.parent; group = group.parent) level(group.parent).items.set(group, { item: group });
    }
  }
  // A line that enters or leaves an open module does so through a port at its edge, one for each source.
  const port = (group, side, source) => {
    const key = `${side} ${typeof source === "object" ? "m " + source.path : source}`;
    const items = level(group).items;
    if (!items.has(key)) items.set(key, { item: key, port: side, width: 1, height: 1 });
    return key;
  };
  const join = (group, from, to, source) => {
    const own = level(group).lines;
    const key = `${idOf(from)} > ${idOf(to)} > ${typeof from === "object" || typeof to === "object" ? idOf(source) : ""}`;
    if (!own.has(key)) own.set(key, { from, to, source });
  };
  const drawn = new Set();
  for (const [from, to] of lines) {
    const source = seen(from);
    const target = seen(to);
    if (source === target) continue;
    const once = `${idOf(source)} > ${idOf(target)}`;
    if (drawn.has(once)) continue;
    drawn.add(once);
    const up = groupsOf(source);
    const down = groupsOf(target);
    const shared = up.find((group) => down.includes(group));
    let left = source;
    for (const group of up) {
      if (group === shared) break;
      join(group, left, port(group, "leave", source), source);
      left = group;
    }
    let right = target;
    for (const group of down) {
      if (group === shared) break;
      join(group, port(group, "enter", source), right, source);
      right = group;
    }
    join(shared, left, right, source);
  }

  const sized = (group, size) => ({ left: size.left, top: size.top, width: Math.max(size.width + 2 * PAD, widthOf(short(group.path, 30), 6.6)), height: size.height + PAD + (group.parent ? HEAD : PAD) });
  function* arranged(group, isWhole) {
    const { items, lines: own } = level(group);
    for (const [item, place] of items) {
      if (typeof item === "object" && item.open) Object.assign(place, yield* arranged(item, false));
    }
    const work = placing([...items.values()], [...own.values()]);
    let step = work.next();
    for (; !step.done; step = work.next()) yield isWhole ? () => result(sized(group, step.value())) : null;
    return sized(group, step.value);
  }
  const result = (whole) => resultOf({ boxes, lines, seen, level, root: tree.root, whole });
  return result(yield* arranged(tree.root, true));
}

/** Return what is drawn of a layout: of the boxes that have their places, in the coordinates of the whole. */
function resultOf({ boxes, lines, seen, level, root, whole }) {
  const shapes = [];
  const paths = [];
  const spread = (group, left, top) => {
    const { items, lines: own } = level(group);
    const headed = group.parent ? HEAD : PAD;
    const at = (item) => {
      const place = items.get(item);
      return { x: left + PAD + place.x, y: top + headed + place.y, place };
    };
    for (const [item, place] of items) {
      if (place.port || place.x === undefined) continue;
      const { x, y } = at(item);
      const shape = { item, x, y, width: place.width, height: place.height, isOpen: typeof item === "object" && item.open };
      if (shape.isOpen) shapes.unshift(shape);
      else shapes.push(shape);
    }
    for (const { from, to, source, points } of own.values()) {
      if (items.get(from).x === undefined || items.get(to).x === undefined) continue;
      const ending = (item, side) => {
        const { x, y, place } = at(item);
        if (place.port) return [x, place.port === "enter" ? top : top + group.size.height];
        if (typeof item === "object" && item.open) {
          const key = `${side === "bottom" ? "leave" : "enter"} ${typeof source === "object" ? "m " + source.path : source}`;
          const inner = level(item).items.get(key);
          if (inner) return [x - place.width / 2 + PAD + inner.x, side === "bottom" ? y + place.height / 2 : y - place.height / 2];
        }
        return [x, side === "bottom" ? y + place.height / 2 : y - place.height / 2];
      };
      const bends = (points ?? []).map(([x, y]) => [left + PAD + x, top + headed + y]);
      paths.push({ far: !points, points: [ending(from, "bottom"), ...bends, ending(to, "top")] });
    }
    for (const [item, place] of items) {
      if (typeof item === "object" && item.open && place.x !== undefined) spread(item, left + PAD + place.x - place.width / 2, top + headed + place.y - place.height / 2);
    }
  };
  const sizes = (group, size) => {
    group.size = size;
    for (const [item, place] of level(group).items) if (typeof item === "object" && item.open) sizes(item, place);
  };
  sizes(root, whole);
  spread(root, whole.left ?? 0, whole.top ?? 0);
  // Outer modules first, so that inner ones lie on top of them.
  const depth = (group) => (group.parent ? 1 + depth(group.parent) : 0);
  const open = shapes.filter((shape) => shape.isOpen).sort((one, two) => depth(one.item) - depth(two.item));
  return { boxes, open, shapes: shapes.filter((shape) => !shape.isOpen), paths, width: whole.width, height: whole.height, lines, seen };
}

function wholeOf(work) {
  let step = work.next();
  while (!step.done) step = work.next();
  return step.value;
}

const ids = new WeakMap();
function idOf(item) {
  if (typeof item !== "object") return String(item);
  if (!ids.has(item)) ids.set(item, `module ${item.path}`);
  return ids.get(item);
}

/**
 * Give items their places (the middles), and lines their bends; returns the size of the whole. Yields between stretches,
 * each time a function that tells the size of what has its place.
 * A network is mostly a row of blocks: what lies between two boxes that every path goes through is laid out by itself,
 * so that the time grows with the number of nodes and not with its square.
 */
function* placing(items, lines) {
  const order = inOrder(items, lines);
  let counted = lines;
  if (items.length > SMALL) {
    counted = lines.filter(({ from, to }) => Math.abs(order.get(to) - order.get(from)) <= FAR || isPort(from) || isPort(to));
  }
  const sorted = [...items].sort((one, two) => order.get(one.item) - order.get(two.item));
  const stretches = stretchesOf(sorted, counted, order);
  const linesOf = linesBy(stretches, counted, order, sorted.length);
  const sizeNow = () => {
    const { least, most, top, bottom } = boundsOf(items, lines);
    return { width: most - least, height: bottom - top, left: -least, top: -top };
  };
  let anchor = null;
  for (const [number, [first, last]] of stretches.entries()) {
    const part = sorted.slice(first, last + 1);
    const own = linesOf[number];
    const isLong = part.length > PIECE;
    const before = anchor;
    const put = (size) => {
      const [begin, end] = [size.places[0], size.places.at(-1)];
      // The first box of a stretch is the last of the one before. A block that leads to one side is turned over where
      // that leads back to the middle, or a long row of them would wander off; not so one that is drawn before its end
      // is known.
      const [x, y] = before ?? begin;
      const turn = !isLong && Math.abs(x + end[0] - begin[0]) > Math.abs(x - end[0] + begin[0]) ? -1 : 1;
      const at = ([a, b]) => [x + turn * (a - begin[0]), y + b - begin[1]];
      size.places.forEach((place, index) => {
        if (index > 0 || before === null) [part[index].x, part[index].y] = at(place);
      });
      own.forEach((line, index) => (line.points = size.bends[index]?.map(at)));
      anchor = at(end);
    };
    if (isLong) {
      for (const size of inPieces(part, own)) {
        put(size);
        yield sizeNow;
      }
    } else put(laid(part, own));
    yield sizeNow;
  }
  const { least, most, top, bottom } = boundsOf(items, lines);
  for (const item of items) [item.x, item.y] = [item.x - least, item.y - top];
  for (const line of lines) for (const point of line.points ?? []) [point[0], point[1]] = [point[0] - least, point[1] - top];
  return { width: most - least, height: bottom - top };
}

/** Return the ends of what has its place. */
function boundsOf(items, lines) {
  let [least, most, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const item of items) {
    if (item.x === undefined) continue;
    least = Math.min(least, item.x - item.width / 2);
    most = Math.max(most, item.x + item.width / 2);
    top = Math.min(top, item.y - item.height / 2);
    bottom = Math.max(bottom, item.y + item.height / 2);
  }
  for (const line of lines) {
    for (const [x] of line.points ?? []) {
      least = Math.min(least, x);
      most = Math.max(most, x);
    }
  }
  return { least, most, top, bottom };
}

function isPort(item) {
  return typeof item === "string" && (item.startsWith("enter ") || item.startsWith("leave "));
}

/** Return the lines inside each stretch. */
function linesBy(stretches, lines, order, count) {
  const stretchOf = new Int32Array(count);
  stretches.forEach(([first, last], number) => stretchOf.fill(number, first + 1, last + 1));
  const found = stretches.map(() => []);
  for (const line of lines) {
    const [one, two] = [order.get(line.from), order.get(line.to)];
    const number = stretchOf[Math.max(one, two)];
    if (one !== two && Math.min(one, two) >= stretches[number][0]) found[number].push(line);
  }
  return found;
}

/** Return the place of each item in an order in which lines lead forward, as far as there are no circles. */
function inOrder(items, lines) {
  const waits = new Map(items.map(({ item }) => [item, 0]));
  const next = new Map(items.map(({ item }) => [item, []]));
  for (const { from, to } of lines) {
    waits.set(to, waits.get(to) + 1);
    next.get(from).push(to);
  }
  const order = new Map();
  const visit = (item) => {
    // Depth first, with what has one reader before it: branches stay together.
    const stack = [item];
    while (stack.length) {
      const at = stack.pop();
      if (order.has(at)) continue;
      order.set(at, order.size);
      for (const after of next.get(at)) {
        waits.set(after, waits.get(after) - 1);
        if (waits.get(after) === 0) stack.push(after);
      }
    }
  };
  for (const { item } of items) if (waits.get(item) === 0) visit(item);
  for (const { item } of items) if (!order.has(item)) visit(item); // circles: modules that are called again
  // What has no source of its own stands before its first reader, not at the top.
  const first = new Map();
  for (const { from, to } of lines) first.set(from, Math.min(first.get(from) ?? Infinity, order.get(to)));
  const sourced = new Set(lines.map(({ to }) => to));
  const keys = items.map(({ item }) => [!sourced.has(item) && first.has(item) && order.get(item) > 0 ? Math.max(0, first.get(item) - 0.5) : order.get(item), item]);
  keys.sort(([one], [two]) => one - two);
  return new Map(keys.map(([, item], index) => [item, index]));
}

/** Return the stretches between boxes that no line passes by. */
function stretchesOf(sorted, lines, order) {
  const count = sorted.length;
  const passing = new Int32Array(count + 1);
  for (const { from, to } of lines) {
    const [one, two] = [order.get(from), order.get(to)].sort((a, b) => a - b);
    if (two > one + 1) {
      passing[one + 1] += 1;
      passing[two] -= 1;
    }
  }
  const joined = new Int32Array(count);
  for (const { from, to } of lines) {
    const [one, two] = [order.get(from), order.get(to)];
    joined[Math.max(one, two)] += 1;
    joined[Math.min(one, two)] += 1;
  }
  const stretches = [];
  let open = 0;
  let over = 0;
  for (let place = 0; place < count; place += 1) {
    over += passing[place];
    if (place > open && place < count - 1 && over === 0 && joined[place] > 0) {
      stretches.push([open, place]);
      open = place;
    }
  }
  stretches.push([open, count - 1]);
  return stretches;
}

/** Lay a stretch out; the places are those of its first box at the top left. */
function laid(part, lines) {
  if (part.length === 1) return { places: [[0, 0]], bends: lines.map(() => []) };
  if (part.length === 2 && lines.length === 1) {
    return { places: [[0, 0], [0, part[0].height / 2 + ROW + part[1].height / 2]], bends: [[]] };
  }
  const numbers = new Map(part.map((box, index) => [box.item, index]));
  const form = part.map((box) => `${Math.round(box.width)}x${Math.round(box.height)}`).join(" ") + "|" +
    lines.map(({ from, to }) => `${numbers.get(from)},${numbers.get(to)}`).join(" ");
  const before = known.get(form);
  if (before) return before;
  const pairs = lines.map(({ from, to }) => [numbers.get(from), numbers.get(to)]);
  const found = arrange(part, pairs);
  const made = { places: found.places, bends: pairs.map(([from, to]) => found.bends(from, to)) };
  if (known.size < 5000) known.set(form, made);
  return made;
}

/** Have dagre place boxes, with lines between their numbers; `bends` tells those of a line. */
function arrange(boxes, pairs, hidden = []) {
  const graph = new dagre.graphlib.Graph({ multigraph: false });
  const ranker = boxes.length > QUICK ? "tight-tree" : "network-simplex";
  graph.setGraph({ nodesep: GAP, ranksep: ROW, edgesep: 8, ranker, acyclicer: "greedy" });
  boxes.forEach((box, index) => graph.setNode(String(index), { width: box.width, height: box.height }));
  for (const [from, to] of hidden) graph.setEdge(String(from), String(to), { weight: 0 });
  for (const [from, to] of pairs) graph.setEdge(String(from), String(to), { weight: 1 });
  dagre.layout(graph);
  const places = boxes.map((_, index) => {
    const { x, y } = graph.node(String(index));
    return [x, y];
  });
  // dagre begins and ends a line on its boxes; what lies between are its bends.
  const bends = (from, to) => {
    const points = graph.edge(String(from), String(to))?.points ?? [];
    return points.slice(1, -1).map(({ x, y }) => [x, y]);
  };
  return { places, bends };
}

/**
 * Lay a long stretch out in pieces that stand below each other, and yield it after each of them. A line to the next piece leaves through the bottom of
 * the one and enters through the top of the other; one that goes farther does not count for the layout (its bends are
 * null).
 */
function* inPieces(part, lines) {
  const numbers = new Map(part.map((box, index) => [box.item, index]));
  const pairs = lines.map(({ from, to }) => [numbers.get(from), numbers.get(to)]);
  const cuts = cutsOf(part.length, pairs);
  const pieceOf = new Int32Array(part.length);
  cuts.forEach((first, number) => pieceOf.fill(number, first));
  const places = [];
  const bends = pairs.map(() => null);
  let bottom = 0;
  let exits = new Map(); // where the lines of a source leave the piece before
  for (const [piece, first] of cuts.entries()) {
    const boxes = part.slice(first, cuts[piece + 1] ?? part.length);
    const [top, end] = [boxes.length, boxes.length + 1];
    const within = [];
    const entering = [];
    const leaving = new Set();
    const [led, leads] = [new Set(), new Set()];
    pairs.forEach(([from, to], index) => {
      const [here, there] = [pieceOf[from] === piece, pieceOf[to] === piece];
      if (here && there) {
        within.push([from - first, to - first, index]);
        leads.add(from - first);
        led.add(to - first);
      } else if (there && pieceOf[from] === piece - 1) entering.push([from, to - first, index]);
      else if (here && pieceOf[to] === piece + 1) leaving.add(from - first);
    });
    const inner = [...within, ...entering.map(([, to]) => [top, to]), ...[...leaving].map((from) => [from, end])];
    // What begins or ends inside the piece keeps its own top and bottom outside of it.
    const hidden = boxes.flatMap((_, index) => [...(led.has(index) ? [] : [[top, index]]), ...(leads.has(index) ? [] : [[index, end]])]);
    const point = { width: 1, height: 1 };
    const found = arrange([...boxes, point, point], inner, hidden);
    const own = found.places.slice(0, boxes.length);
    const shifts = entering.map(([from, to]) => (exits.get(from)?.at(-1)[0] ?? 0) - (found.bends(top, to)[0] ?? own[to])[0]).sort((one, two) => one - two);
    const shift = shifts.length ? shifts[shifts.length >> 1] : 0;
    const highest = Math.min(...own.map(([, y], index) => y - boxes[index].height / 2));
    const at = ([x, y]) => [x + shift, y - highest + bottom];
    places.push(...own.map(at));
    for (const [from, to, index] of within) bends[index] = found.bends(from, to).map(at);
    for (const [from, to, index] of entering) bends[index] = [...exits.get(from).slice(1), ...found.bends(top, to).map(at)];
    exits = new Map([...leaving].map((from) => [from + first, [at(own[from]), ...found.bends(from, end).map(at)]]));
    bottom += Math.max(...own.map(([, y], index) => y + boxes[index].height / 2)) - highest + 2 * ROW;
    yield { places, bends };
  }
}

/** Return where pieces begin: not too far apart, where few lines pass. */
function cutsOf(count, pairs) {
  const passing = new Int32Array(count + 1);
  for (const [from, to] of pairs) {
    passing[Math.min(from, to) + 1] += 1;
    passing[Math.max(from, to) + 1] -= 1;
  }
  for (let place = 1; place <= count; place += 1) passing[place] += passing[place - 1];
  const cuts = [0];
  while (count - cuts.at(-1) > PIECE) {
    let best = cuts.at(-1) + PIECE;
    for (let place = best - 1; place > cuts.at(-1) + PIECE / 2; place -= 1) if (passing[place] < passing[best]) best = place;
    cuts.push(best);
  }
  return cuts;
}

/** Return a smooth line through points. */
function curve(points) {
  const [first, ...rest] = points;
  let text = `M${first[0].toFixed(1)} ${first[1].toFixed(1)}`;
  let [x, y] = first;
  for (const [a, b] of rest) {
    const middle = (y + b) / 2;
    text += a === x ? `L${a.toFixed(1)} ${b.toFixed(1)}` : `C${x.toFixed(1)} ${middle.toFixed(1)} ${a.toFixed(1)} ${middle.toFixed(1)} ${a.toFixed(1)} ${b.toFixed(1)}`;
    [x, y] = [a, b];
  }
  return text;
}

// ---- one view -----------------------------------------------------------------------------------------------------

class View {
  constructor(side, graph, hooks) {
    this.graph = graph;
    this.hooks = hooks;
    this.place = side.querySelector(".graph-view");
    side.querySelector(".graph-title").textContent = hooks.isOne ? "" : `${graph.title} · ${graph.kind} · ${graph.nodes.length} nodes`;
    side.querySelector(".graph-title").hidden = hooks.isOne;
    this.place.setAttribute("aria-label", `Graph of ${graph.title}, ${graph.nodes.length} nodes`);
    this.layer = element("g");
    this.svg = element("svg", { "aria-hidden": "true", focusable: "false" }, this.layer);
    this.place.replaceChildren(this.svg);
    this.withConstants = false;
    this.chosen = null;
    this.found = new Set();
    this.zoom = { scale: 1, x: 0, y: 0 };
    this.build();
    this.listen();
  }

  /** Make the tree of modules; of a large graph the outermost modules are shown, closed. */
  build() {
    this.tree = treeOf(this.graph, this.withConstants);
    this.modules = allModules(this.tree.root);
    if (this.tree.root.count > FEW) this.foldToFit();
  }

  foldToFit() {
    for (const group of this.modules) group.open = false;
    // Open what has few parts, from the outside in, while the whole stays readable.
    const visible = () => {
      let boxes = 0;
      const walk = (group) => {
        boxes += group.nodes.length;
        group.modules.forEach((inner) => (inner.open ? walk(inner) : (boxes += 1)));
      };
      walk(this.tree.root);
      return boxes;
    };
    let outer = [...this.tree.root.modules.values()];
    while (outer.length) {
      for (const group of outer) group.open = true;
      if (visible() > FEW / 2) {
        for (const group of outer) group.open = false;
        break;
      }
      outer = outer.flatMap((group) => [...group.modules.values()]);
    }
  }

  foldAll(open) {
    for (const group of this.modules) group.open = open;
    this.render();
    this.home();
  }

  /** Lay all out and draw it, at once. */
  render() {
    this.work = null;
    this.draw(wholeOf(layingOut(this.graph, this.tree)));
  }

  /**
   * Lay out and draw for the first time: what takes long is drawn from its beginning as soon as that has its place, and
   * the page stays awake meanwhile. Whoever asks for the whole before, with `render`, ends this.
   */
  begin(told) {
    const work = layingOut(this.graph, this.tree);
    const started = performance.now();
    let due = FIRST_MS;
    this.work = work;
    const go = () => {
      if (this.work !== work) return told(true);
      const until = performance.now() + SLICE_MS;
      let step = work.next();
      while (!step.done && performance.now() < until) step = work.next();
      if (step.done) this.drawMore(step.value);
      else if (performance.now() - started > due && step.value) {
        this.drawMore(step.value());
        told(false);
        due = 8 * (performance.now() - started);
      }
      if (!step.done) return setTimeout(go);
      this.work = null;
      return told(true);
    };
    go();
  }

  /** Draw more of what was drawn; what the reader looks at stays where it is. */
  drawMore(laidOut) {
    const isUntouched = !this.laidOut || this.isHome;
    const [item, before] = this.shapes?.entries().next().value ?? [];
    this.draw(laidOut);
    if (isUntouched) return this.home();
    const after = this.shapes.get(item);
    this.zoom.x += (before.x - after.x) * this.zoom.scale;
    this.zoom.y += (before.y - after.y) * this.zoom.scale;
    return this.move();
  }

  draw(laidOut) {
    this.laidOut = laidOut;
    this.shapes = new Map();
    const made = [];
    for (const shape of laidOut.open) made.push(this.drawModule(shape));
    for (const { points, far } of laidOut.paths) made.push(element("path", { class: far ? "edge far" : "edge", d: curve(points) }));
    for (const shape of laidOut.shapes) made.push(typeof shape.item === "object" ? this.drawModule(shape) : this.drawNode(shape));
    this.layer.replaceChildren(...made);
    this.color();
    this.mark();
    this.move();
  }

  drawNode(shape) {
    const box = this.laidOut.boxes.get(shape.item);
    const [x, y] = [shape.x - shape.width / 2, shape.y - shape.height / 2];
    const drawn = element("g", { class: box.kind },
      element("rect", { x: x.toFixed(1), y: y.toFixed(1), width: shape.width.toFixed(1), height: shape.height, rx: box.kind === "end" ? 12 : 4 }),
      element("text", { x: shape.x.toFixed(1), y: (shape.y - 2).toFixed(1) }, box.label),
      element("text", { class: "name", x: shape.x.toFixed(1), y: (shape.y + 11).toFixed(1) }, box.name));
    drawn.item = shape.item;
    this.shapes.set(shape.item, { ...shape, drawn });
    return drawn;
  }

  drawModule(shape) {
    const group = shape.item;
    const [x, y] = [shape.x - shape.width / 2, shape.y - shape.height / 2];
    const rect = element("rect", { x: x.toFixed(1), y: y.toFixed(1), width: shape.width.toFixed(1), height: shape.height.toFixed(1), rx: 6 });
    const name = `${shape.isOpen ? "−" : "+"} ${short(group.path, 30)}`;
    const text = element("text", shape.isOpen ? { x: (x + 8).toFixed(1), y: (y + 14).toFixed(1) } : { x: shape.x.toFixed(1), y: (shape.y - 2).toFixed(1) }, name);
    const parts = [rect, text];
    if (!shape.isOpen) parts.push(element("text", { class: "name", x: shape.x.toFixed(1), y: (shape.y + 12).toFixed(1) }, `${group.count} nodes`));
    const drawn = element("g", { class: shape.isOpen ? "open" : "module" }, ...parts);
    drawn.item = group;
    this.shapes.set(group, { ...shape, drawn });
    return drawn;
  }

  // -- colors

  color() {
    const coloring = this.hooks.coloring(this.graph);
    const scale = coloring ? this.hooks.scale(coloring.key) : null;
    for (const [item, { drawn }] of this.shapes) {
      const base = drawn.getAttribute("class").replace(/ ?(heat|word)-\d/g, "");
      if (!coloring || drawn.classList.contains("open")) {
        drawn.setAttribute("class", base);
        continue;
      }
      const value = typeof item === "number" ? coloring.values[item] : typeof item === "object" ? this.valueOf(item, coloring) : null;
      const shade = value === null || value === undefined ? "" : scale(value);
      drawn.setAttribute("class", shade ? `${base} ${shade}` : base);
    }
  }

  /** Return the value of a closed module: the largest number, or the word that most of its nodes have. */
  valueOf(group, coloring) {
    const values = this.nodesIn(group).map((number) => coloring.values[number]).filter((value) => value !== null && value !== undefined);
    if (!values.length) return null;
    if (typeof values[0] === "number") return Math.max(...values);
    const counts = new Map();
    for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
    return [...counts].sort(([, one], [, two]) => two - one)[0][0];
  }

  nodesIn(group) {
    const found = [...group.nodes];
    group.modules.forEach((inner) => found.push(...this.nodesIn(inner)));
    return found;
  }

  // -- choosing

  choose(item, { reveal = true, tell = true } = {}) {
    this.chosen = item;
    if (typeof item === "number" && !this.shapes.has(item)) {
      for (let group = this.tree.owner.get(item); group?.parent; group = group.parent) group.open = true;
      this.render();
    }
    this.mark();
    if (reveal) this.reveal(item);
    if (tell) this.hooks.chosen(this, item);
  }

  mark() {
    for (const [item, { drawn }] of this.shapes) {
      drawn.classList.toggle("chosen", item === this.chosen);
      drawn.classList.toggle("found", this.found.has(item));
    }
  }

  find(words) {
    this.found = new Set();
    if (words.length) {
      this.graph.nodes.forEach((node, number) => {
        const text = `${node[NAME]} ${node[OP]} ${node[MODULE] < 0 ? "" : this.graph.modules[node[MODULE]]}`.toLowerCase();
        if (this.tree.owner.has(number) && words.every((word) => text.includes(word))) this.found.add(number);
      });
    }
    const first = [...this.found][0];
    if (first !== undefined) this.choose(first);
    else this.mark();
    return this.found.size;
  }

  toggle(group) {
    group.open = !group.open;
    const before = this.shapes.get(group);
    this.render();
    // What was clicked stays where it was.
    const after = this.shapes.get(group);
    if (before && after) {
      this.zoom.x += (before.x - before.width / 2 - after.x + after.width / 2) * this.zoom.scale;
      this.zoom.y += (before.y - before.height / 2 - after.y + after.height / 2) * this.zoom.scale;
      this.move();
    }
    this.chosen = group;
    this.mark();
    this.hooks.chosen(this, group);
  }

  /** Go from the chosen box to another: along the lines, or to a neighbor of the same height. */
  step(direction) {
    if (this.chosen === null || !this.shapes.has(this.chosen)) {
      this.choose(this.laidOut.shapes.reduce((one, two) => (two.y < one.y ? two : one)).item);
      return;
    }
    const at = this.shapes.get(this.chosen);
    const { lines, seen } = this.laidOut;
    let others;
    if (direction === "ArrowDown" || direction === "ArrowUp") {
      const isDown = direction === "ArrowDown";
      others = lines.map(([from, to]) => [seen(from), seen(to)]).filter(([from, to]) => from !== to && (isDown ? from : to) === this.chosen).map(([from, to]) => (isDown ? to : from));
    } else {
      const sign = direction === "ArrowRight" ? 1 : -1;
      others = [...this.shapes.values()].filter((shape) => !shape.isOpen && Math.abs(shape.y - at.y) < HEIGHT * 2 && sign * (shape.x - at.x) > 1).map((shape) => shape.item);
    }
    const near = others.map((item) => this.shapes.get(item)).filter(Boolean).sort((one, two) => Math.hypot(one.x - at.x, one.y - at.y) - Math.hypot(two.x - at.x, two.y - at.y));
    if (near.length) this.choose(near[0].item);
  }

  // -- moving

  move() {
    this.isHome = false;
    const { scale, x, y } = this.zoom;
    this.layer.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)}) scale(${scale.toFixed(4)})`);
    this.layer.classList.toggle("tiny", scale < 0.35);
  }

  /** The beginning of the graph, as large as it can be read. */
  home() {
    const { width } = this.place.getBoundingClientRect();
    const scale = Math.max(0.4, Math.min(1, (width - 20) / this.laidOut.width));
    const first = this.laidOut.shapes.reduce((one, two) => (two.y < one.y ? two : one));
    const middle = this.laidOut.width * scale <= width ? this.laidOut.width / 2 : first.x;
    this.zoom = { scale, x: width / 2 - middle * scale, y: 10 };
    this.move();
    this.isHome = true;
  }

  fit() {
    const { width, height } = this.place.getBoundingClientRect();
    const scale = Math.min(1.5, (width - 20) / this.laidOut.width, (height - 20) / this.laidOut.height);
    this.zoom = { scale, x: (width - this.laidOut.width * scale) / 2, y: (height - this.laidOut.height * scale) / 2 };
    this.move();
  }

  zoomBy(factor, clientX, clientY) {
    const box = this.place.getBoundingClientRect();
    const [x, y] = [(clientX ?? box.x + box.width / 2) - box.x, (clientY ?? box.y + box.height / 2) - box.y];
    const scale = Math.min(4, Math.max(0.002, this.zoom.scale * factor));
    const ratio = scale / this.zoom.scale;
    this.zoom = { scale, x: x - (x - this.zoom.x) * ratio, y: y - (y - this.zoom.y) * ratio };
    this.move();
  }

  reveal(item) {
    const shape = this.shapes.get(item);
    if (!shape) return;
    const { width, height } = this.place.getBoundingClientRect();
    if (this.zoom.scale < 0.5) this.zoom.scale = 0.8;
    const { scale } = this.zoom;
    const [x, y] = [shape.x * scale + this.zoom.x, shape.y * scale + this.zoom.y];
    if (x < 60 || x > width - 60 || y < 40 || y > height - 40) {
      this.zoom.x += width / 2 - x;
      this.zoom.y += height / 2 - y;
    }
    this.move();
  }

  listen() {
    const pointers = new Map();
    let moved = 0;
    let apart = 0;
    this.place.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, [event.clientX, event.clientY]);
      moved = 0;
      apart = 0;
    });
    this.place.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) return;
      const [dx, dy] = [event.clientX - before[0], event.clientY - before[1]];
      moved += Math.abs(dx) + Math.abs(dy);
      if (moved > 4) this.place.setPointerCapture?.(event.pointerId);
      pointers.set(event.pointerId, [event.clientX, event.clientY]);
      if (pointers.size === 2) {
        const [one, two] = [...pointers.values()];
        const now = Math.hypot(one[0] - two[0], one[1] - two[1]);
        if (apart) this.zoomBy(now / apart, (one[0] + two[0]) / 2, (one[1] + two[1]) / 2);
        apart = now;
        return;
      }
      if (moved > 4) {
        this.place.classList.add("dragging");
        this.zoom.x += dx;
        this.zoom.y += dy;
        this.move();
      }
    });
    const release = (event) => {
      pointers.delete(event.pointerId);
      this.place.classList.remove("dragging");
    };
    this.place.addEventListener("pointerup", release);
    this.place.addEventListener("pointercancel", release);
    this.place.addEventListener("click", (event) => {
      if (moved > 4) return;
      const drawn = event.target.closest("g.node, g.end, g.module, g.open");
      if (!drawn || !this.layer.contains(drawn)) return;
      if (drawn.classList.contains("module")) this.toggle(drawn.item);
      else if (drawn.classList.contains("open")) {
        const shape = this.shapes.get(drawn.item);
        const top = this.place.getBoundingClientRect().y + this.zoom.y + (shape.y - shape.height / 2) * this.zoom.scale;
        if (event.clientY - top < HEAD * this.zoom.scale) this.toggle(drawn.item);
      } else this.choose(drawn.item, { reveal: false });
    });
    this.place.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) this.zoomBy(Math.exp(-event.deltaY / 250), event.clientX, event.clientY);
      else {
        this.zoom.x -= event.deltaX;
        this.zoom.y -= event.deltaY;
        this.move();
      }
    }, { passive: false });
    this.place.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key.startsWith("Arrow")) this.step(event.key);
      else if (event.key === "+" || event.key === "=") this.zoomBy(1.25);
      else if (event.key === "-") this.zoomBy(0.8);
      else if (event.key === "0") this.fit();
      else if (event.key === "Home") this.home();
      else if (event.key === "Enter" && this.chosen !== null && typeof this.chosen === "object") this.toggle(this.chosen);
      else if (event.key === "Enter" && typeof this.chosen === "number") this.hooks.follow(this, this.chosen);
      else return;
      event.preventDefault();
    });
  }
}

// ---- the whole ----------------------------------------------------------------------------------------------------

/** Draw the graphs of a page into its section; `follow` gets the number of a layer that is asked for. */
export function openGraph(section, data, { follow = null } = {}) {
  const { graphs, pairs } = data;
  const sides = [...section.querySelectorAll(".graph-side")];
  const tools = section.querySelector(".graph-tools");
  const panel = section.querySelector(".graph-panel");
  const picker = section.querySelector(".graph-color");
  const keys = new Map();
  for (const graph of graphs) for (const coloring of graph.colorings) keys.set(coloring.key, coloring);
  for (const [key, { title, unit }] of keys) picker.append(new Option(unit ? `${title}, ${unit}` : title, key));
  picker.append(new Option("Nothing", ""));
  picker.value = [...keys.keys()][0] ?? "";
  const other = [new Map(pairs), new Map(pairs.map(([one, two]) => [two, one]))];
  const scales = new Map([...keys.keys()].map((key) => [key, scaleOf(graphs.flatMap((graph) => graph.colorings.find((one) => one.key === key)?.values ?? []))]));
  const hooks = {
    isOne: graphs.length === 1,
    coloring: (graph) => graph.colorings.find(({ key }) => key === picker.value) ?? null,
    scale: (key) => scales.get(key).shade,
    chosen: (view, item) => {
      const place = views.indexOf(view);
      show(panel, view, item, (number) => hooks.follow(view, number), keys);
      const match = typeof item === "number" ? other[place]?.get(item) : undefined;
      if (graphs.length > 1 && match !== undefined) views[1 - place].choose(match, { tell: false });
    },
    follow: (view, number) => {
      const layer = view.graph.nodes[number][LAYER];
      if (layer && follow) follow(layer);
    },
    canFollow: follow !== null,
  };
  const views = graphs.map((graph, index) => new View(sides[index], graph, hooks));
  let waiting = views.length;
  for (const view of views) {
    view.begin((isWhole) => {
      if (isWhole) waiting -= 1;
      section.dataset.drawn = waiting ? "part" : "yes";
    });
  }
  tools.hidden = false;
  const has = (test) => graphs.some((graph) => graph.nodes.some(test));
  section.querySelector(".graph-constants").closest("label").hidden = !has((node) => node[CONSTANT]);
  const isFlat = views.every((view) => view.modules.length === 0);
  for (const name of [".graph-fold", ".graph-unfold"]) section.querySelector(name).hidden = isFlat;
  const legend = () => showLegend(section.querySelector(".graph-legend"), keys.get(picker.value), scales.get(picker.value));
  legend();
  const notes = section.querySelector(".graph-notes");
  notes.textContent = [...new Set(graphs.flatMap((graph) => graph.notes))].join(" ");
  notes.hidden = !notes.textContent;
  picker.addEventListener("change", () => {
    views.forEach((view) => view.color());
    legend();
  });
  const each = (name, act) => section.querySelector(name).addEventListener("click", () => views.forEach(act));
  each(".graph-in", (view) => view.zoomBy(1.25));
  each(".graph-out", (view) => view.zoomBy(0.8));
  each(".graph-fit", (view) => view.fit());
  each(".graph-fold", (view) => view.foldAll(false));
  each(".graph-unfold", (view) => view.foldAll(true));
  section.querySelector(".graph-constants").addEventListener("change", (event) => views.forEach((view) => {
    view.withConstants = event.target.checked;
    view.build();
    view.render();
    view.home();
  }));
  const finder = section.querySelector(".graph-find");
  finder.addEventListener("change", () => {
    const words = finder.value.toLowerCase().split(/\s+/).filter(Boolean);
    const count = views.map((view) => view.find(words)).reduce((one, two) => one + two, 0);
    if (words.length && !count) panel.replaceChildren(html("p", "No node matches."));
  });
  return {
    /** Show the first node of a layer of the table. */
    showLayer: (layer) => {
      const number = graphs[0].nodes.findIndex((node) => node[LAYER] === layer);
      if (number < 0) return;
      views[0].choose(number);
      section.scrollIntoView({ block: "center", behavior: "instant" });
      views[0].place.focus({ preventScroll: true });
    },
    layers: [...new Set(graphs[0].nodes.map((node) => node[LAYER]).filter(Boolean))],
    views,
  };
}

/** Return what gives a value its class, and the ends or words for the legend. */
function scaleOf(all) {
  const values = all.filter((value) => value !== null && value !== undefined);
  if (typeof values[0] === "number") {
    const numbers = values.filter((value) => typeof value === "number");
    const [least, most] = numbers.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
    const isWide = least > 0 && most / least > 20;
    const place = (value) => (most === least ? 0 : isWide ? Math.log(value / least) / Math.log(most / least) : (value - least) / (most - least));
    return { least, most, shade: (value) => `heat-${Math.min(SHADES - 1, Math.floor(place(value) * SHADES))}` };
  }
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  const words = [...counts.keys()].sort();
  return { words, counts, shade: (value) => `word-${Math.min(6, words.indexOf(value) + 1)}` };
}

function showLegend(place, coloring, scale) {
  place.hidden = !coloring;
  if (!coloring) return;
  const swatch = (name) => element("svg", { class: name, width: 12, height: 12, "aria-hidden": "true" }, element("rect", { width: 12, height: 12, rx: 2 }));
  const entry = (name, text) => {
    const made = html("span");
    made.append(swatch(name), text);
    return made;
  };
  const unit = coloring.unit ? ` ${coloring.unit}` : "";
  const parts = scale.words
    ? scale.words.map((word) => entry(scale.shade(word), `${short(String(word), 40)} (${scale.counts.get(word)})`))
    : [entry("heat-0", `${told(scale.least)}${unit}`), entry("heat-4", "to"), entry("heat-8", `${told(scale.most)}${unit}`)];
  if (coloring.note) parts.push(html("span", coloring.note));
  place.replaceChildren(...parts);
}

function show(panel, view, item, follow, keys) {
  const { graph } = view;
  const parts = [];
  const line = (word, text) => {
    const made = html("p");
    made.append(html("span", `${word} `, "soft"), text);
    parts.push(made);
  };
  if (typeof item === "object") {
    const head = html("p");
    head.append(html("b", item.path), ` module, ${item.count} nodes, ${item.open ? "open" : "closed"}`);
    parts.push(head);
  } else if (typeof item === "string") {
    const tensor = graph.tensors[view.laidOut.boxes.get(item).tensor];
    const head = html("p");
    head.append(html("b", tensor[0]), ` ${item.startsWith("in ") ? "input" : "output"} ${tensor[1]}`);
    parts.push(head);
  } else {
    const node = graph.nodes[item];
    const head = html("p");
    head.append(html("b", node[OP]), ` ${node[NAME]}`);
    parts.push(head);
    if (node[MODULE] >= 0) line("module", graph.modules[node[MODULE]]);
    const values = graph.colorings.map(({ title, unit, values: all }) => [title, unit, all[item]]).filter(([, , value]) => value !== null && value !== undefined);
    if (values.length) line("", values.map(([title, unit, value]) => `${title.toLowerCase()} ${told(value)}${unit ? " " + unit : ""}`).join(" · "));
    const listed = (numbers) => numbers.map((number) => graph.tensors[number].slice(0, 2).join(" ").trim()).join(", ");
    if (node[INPUTS].length) line("inputs", listed(node[INPUTS]));
    if (node[OUTPUTS].length) line("outputs", listed(node[OUTPUTS]));
    if (node[ATTRIBUTES].length) line("attributes", node[ATTRIBUTES].map(([name, value]) => `${name}=${value}`).join(" "));
    if (node[LAYER] && view.hooks.canFollow) {
      const button = html("button", `Layer ${node[LAYER]} in the table`);
      button.type = "button";
      button.addEventListener("click", () => follow(item));
      parts.push(button);
    }
  }
  panel.replaceChildren(...parts);
}

const alone = document.getElementById("graph-data");
if (alone && !document.getElementById("chart-data")) openGraph(document.getElementById("graph"), JSON.parse(alone.textContent));
