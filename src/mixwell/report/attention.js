// Attention pages: four views of one block and head, methods side by side.
(() => {
  const source = document.getElementById("data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const byId = (id) => document.getElementById(id);
  const count = data.tokens.length;
  const longest = Math.max(...data.views.map((view) => view.tokens.length));
  const state = {
    ...data.start, key: 0, difference: false, special: true, fixed: false,
    methods: new Set(data.methods), open: new Set(),
    layers: Object.fromEntries(Object.entries(data.layers).map(([name, all]) => [name, all[0]])),
  };
  state.key = state.word;

  // --- values ---
  const decoded = new Map();
  const bytes = (number) => Uint8Array.from(atob(data.chunks[number]), (sign) => sign.charCodeAt(0)).buffer;
  const array = (number, kind) => {
    if (!decoded.has(number)) decoded.set(number, new kind(bytes(number)));
    return decoded.get(number);
  };
  const titleOf = (method) => data.titles[method];
  const ignoresLam = (method) => method === "none" || data.fixed.includes(method);
  const viewOf = (method) => data.views[data.places[`${method} ${ignoresLam(method) ? "" : state.lam} ${state.layers[method]}`]
    ?? data.places[`${method} ${state.lam}`] ?? data.places[method]];
  const layerName = (method, layer) => method !== "manifold" ? `block ${layer}` : layer === 0 ? "embeddings"
    : layer > data.heads.length ? "sentence vector" : `block ${layer - 1}`;
  const plain = data.views[0];
  // (Q, K) weights of the chosen block and head as rows.
  const weights = (view) => {
    const size = view.tokens.length, all = array(view.weights[state.block], Float32Array);
    const from = state.head * count * size;
    return Array.from({ length: count }, (_, i) => all.subarray(from + i * size, from + (i + 1) * size));
  };
  // What is drawn: weights, or their difference to plain, where only the partner has a token plain is 0.
  const drawn = (view) => {
    const own = weights(view);
    if (!state.difference) return own;
    const base = weights(plain);
    return own.map((row, i) => row.map((value, j) => value - (j < base[i].length ? base[i][j] : 0)));
  };
  // The share of the chosen word's attention that goes elsewhere than in plain.
  const movedOf = (view) => {
    const own = weights(view)[state.word], base = weights(plain)[state.word];
    return own.reduce((sum, value, j) => sum + Math.abs(value - (base[j] ?? 0)), 0) / 2;
  };
  const vectors = (view, name, rows) => {
    const all = array(view[name][state.block], Int16Array), unit = view[`${name}_unit`][state.block];
    const from = state.head * rows * view.size;
    return Array.from({ length: rows }, (_, i) =>
      Float64Array.from(all.subarray(from + i * view.size, from + (i + 1) * view.size), (value) => value * unit));
  };
  const largest = (rows) => rows.reduce((most, row) => row.reduce((top, value) => Math.max(top, Math.abs(value)), most), 0);
  // Plain has no difference to itself.
  const shownMethods = () => data.methods.filter((name) => state.methods.has(name) && !(state.difference && name === "none" && state.view !== "neurons"));
  const percent = (value) => `${(100 * value).toFixed(1)} %`;
  const number = (value, digits = 3) => (state.difference && value > 0 ? "+" : "") + value.toFixed(digits).replace("-", "\u2212");
  const signed = (value, digits = 2) => value.toFixed(digits).replace("-", "\u2212");
  const keyName = (view, j) => (j < count ? view.tokens[j] : `+ ${data.meets[j] ?? ""}`);

  // --- elements ---
  const make = (name, attributes = {}, ...inside) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...inside);
    return element;
  };
  const draw = (name, attributes = {}, ...inside) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) {
      element.setAttribute(key, typeof value === "number" ? String(Math.round(value * 1000) / 1000) : value);
    }
    element.append(...inside);
    return element;
  };
  // Wide scripts need about twice the room of Latin ones.
  const room = (text) => [...text].reduce((sum, sign) => sum + (sign.codePointAt(0) > 0x1100 ? 13 : 7.3), 0);
  const fit = (text, width) => {
    if (room(text) <= width) return text;
    let short = "";
    for (const sign of text) {
      if (room(short + sign) > width - 9) break;
      short += sign;
    }
    return `${short}\u2026`;
  };
  const title = (text) => draw("title", {}, text);

  // A token that can be chosen by mouse or keyboard; only the chosen one is in the tab order, arrows move.
  const token = (view, i, box, label, more = []) => {
    const chosen = i === state.word, pressed = chosen && (state.view !== "lines" || state.fixed);
    const group = draw("g", {
      class: `token${pressed ? " chosen" : ""}`, role: "button", tabindex: chosen ? "0" : "-1", "data-word": String(i),
      "aria-pressed": String(pressed), "aria-label": `${view.tokens[i]}, position ${i}`,
    }, title(view.tokens[i]), ...(box ? [draw("rect", box)] : []), ...more, label);
    return group;
  };

  // --- views ---
  const ROW = 25, TOP = 30;
  function columns(view, width, withBars) {
    const names = view.tokens.map((_, j) => keyName(view, j));
    const widest = Math.max(...names.map(room), 40) + 14;
    const label = Math.min(widest, withBars ? width * 0.22 : width * 0.3);
    return { names, label, left: label, right: withBars ? label + Math.max((width - 2 * label) * 0.38, 40) : width - label };
  }
  function lines(view, width, most, only) {
    const bars = only !== undefined;
    const { names, label, left, right } = columns(view, width, bars);
    const height = TOP + ROW * longest;
    const svg = draw("svg", { class: "attention", viewBox: `0 0 ${width} ${height}`, role: "group" });
    const y = (at) => TOP + ROW * (at + 0.5);
    svg.append(
      draw("text", { x: left - 8, y: 12, "text-anchor": "end", class: "soft" }, "query"),
      draw("text", { x: right + 8, y: 12, class: "soft" }, "key"),
    );
    const rows = drawn(view), all = draw("g", { class: "lines" });
    rows.forEach((row, i) => {
      if (bars && i !== only) return;
      const group = draw("g", { "data-from": String(i) });
      row.forEach((value, j) => {
        const share = most ? Math.min(Math.abs(value) / most, 1) : 0;
        group.append(draw("line", {
          class: `line${state.difference ? (value < 0 ? " less" : " more") : ""}`, x1: left, y1: y(i), x2: right, y2: y(j),
          "stroke-opacity": share, "stroke-width": 0.8 + 3 * share, "data-key": String(j), "data-weight": String(value),
        }));
      });
      all.append(group);
    });
    svg.append(all);
    for (let i = 0; i < count; i++) {
      const text = draw("text", { x: left - 8, y: y(i), "text-anchor": "end" }, fit(view.tokens[i], label - 12));
      const group = token(view, i, { x: 0, y: y(i) - ROW / 2 + 1, width: left - 2, height: ROW - 2 }, text);
      if (bars && i !== only) group.classList.add("pale");
      svg.append(group);
    }
    names.forEach((name, j) => {
      svg.append(draw("text", { x: right + 8, y: y(j), class: j < count ? "" : "beyond" }, fit(name, label - 12), title(name)));
      if (!bars) return;
      const value = rows[only][j], from = right + label + 4, space = width - from - 52;
      const long = most ? (Math.abs(value) / most) * space : 0;
      svg.append(
        draw("rect", { x: from, y: y(j) - 7, width: Math.max(long, 0.5), height: 14, rx: 2,
          class: `bars${state.difference ? (value < 0 ? " less" : " more") : ""}`, "data-key": String(j), "data-weight": String(value) }),
        draw("text", { x: from + long + 6, y: y(j), class: "soft" }, number(value)),
      );
    });
    return svg;
  }
  function isolate(svg, word) {
    for (const group of svg.querySelectorAll(".lines > g")) {
      group.classList.toggle("faint", word !== null && Number(group.dataset.from) !== word);
    }
  }

  function neurons(view, width, most, bound) {
    const query = vectors(view, "queries", count)[state.word], keys = vectors(view, "keys", view.tokens.length);
    const row = weights(view)[state.word], scale = view.scale[state.block];
    const names = keys.map((_, j) => keyName(view, j)), narrow = width < 430, asking = `q: ${view.tokens[state.word]}`;
    const label = Math.min(Math.max(...names.map(room), room(asking) * 1.06, 44) + 12, narrow ? 84 : 120);
    const scoreWide = 46, barWide = narrow ? 26 : 60, strip = (width - label - scoreWide - barWide - 50 - 12) / 2;
    const second = label + strip + 8, score = second + strip + scoreWide - 4, bar = score + 8;
    const top = 26, height = top + ROW * (longest + 1) + 10;
    const svg = draw("svg", { class: "attention", viewBox: `0 0 ${width} ${height}`, role: "group" });
    const head = (x, text, anchor = "middle") => svg.append(draw("text", { x, y: 10, "text-anchor": anchor, class: "soft" }, text));
    head(label + strip / 2, narrow ? "q, k" : "query q, keys k");
    head(second + strip / 2, "q \u00d7 k");
    head(score, "score", "end");
    head(bar, "softmax", "start");
    const cells = (values, x, y, limit, into) => {
      const each = strip / values.length;
      into.append(draw("rect", { class: "frame", x, y: y - 9, width: strip, height: 18 }));
      values.forEach((value, at) => {
        into.append(draw("rect", { class: value < 0 ? "neg" : "pos", x: x + at * each, y: y - 9, width: each + 0.15, height: 18,
          "fill-opacity": limit ? Math.abs(value) / limit : 0, "data-neuron": String(at) }));
      });
    };
    const y0 = top + ROW / 2;
    const first = draw("g", { class: "query" });
    first.append(draw("text", { x: label - 6, y: y0, "text-anchor": "end", class: "strong" }, fit(asking, label - 8), title(asking)));
    cells(query, label, y0, bound.vector, first);
    svg.append(first);
    keys.forEach((key, j) => {
      const y = top + 10 + ROW * (j + 1.5), products = key.map((value, at) => value * query[at]);
      const dot = products.reduce((sum, value) => sum + value, 0) * scale;
      const group = draw("g", { class: `row${j === state.key ? " chosen" : ""}`, "data-key": String(j), "data-score": String(dot), "data-weight": String(row[j]) });
      group.append(
        draw("rect", { class: "back", x: 0, y: y - ROW / 2, width, height: ROW }),
        draw("text", { x: label - 6, y, "text-anchor": "end", class: j < count ? "" : "beyond" }, fit(names[j], label - 8), title(names[j])),
      );
      cells(key, label, y, bound.vector, group);
      cells(products, second, y, bound.product, group);
      const long = most ? (row[j] / most) * barWide : 0;
      group.append(
        draw("text", { x: score, y, "text-anchor": "end", class: "soft" }, signed(dot)),
        draw("rect", { class: "bars", x: bar, y: y - 7, width: Math.max(long, 0.5), height: 14, rx: 2 }),
        draw("text", { x: bar + long + 5, y, class: "soft" }, row[j].toFixed(3)),
      );
      svg.append(group);
    });
    return svg;
  }
  function neuronBounds(views) {
    const bound = { vector: 0, product: 0 };
    for (const view of views) {
      const query = vectors(view, "queries", count)[state.word], keys = vectors(view, "keys", view.tokens.length);
      bound.vector = Math.max(bound.vector, largest([query, ...keys]));
      bound.product = Math.max(bound.product, largest(keys.map((key) => key.map((value, at) => value * query[at]))));
    }
    return bound;
  }

  function graph(view, width, most) {
    const rows = drawn(view), shown = [];
    for (let j = 0; j < longest; j++) if (state.special || !data.special[j]) shown.push(j);
    const names = new Map(view.tokens.map((_, j) => [j, keyName(view, j)]));
    const label = Math.min(Math.max(...[...names.values()].map(room), 30) + 2, width * 0.24);
    const radius = width / 2 - label - 12, middle = width / 2;
    const angle = new Map(shown.map((j, at) => [j, (2 * Math.PI * at) / shown.length - Math.PI / 2]));
    const spot = (j, r = radius) => [middle + r * Math.cos(angle.get(j)), middle + r * Math.sin(angle.get(j))];
    const svg = draw("svg", { class: "attention", viewBox: `0 0 ${width} ${width}`, role: "group" });
    const edges = [];
    rows.forEach((row, i) => row.forEach((value, j) => {
      if (i !== j && angle.has(i) && angle.has(j) && Math.abs(value) >= state.threshold) edges.push([i, j, value]);
    }));
    // Those of the chosen word last, so that they lie on top; then by strength.
    edges.sort((a, b) => (a[0] === state.word) - (b[0] === state.word) || Math.abs(a[2]) - Math.abs(b[2]));
    for (const [i, j, value] of edges) {
      const [x1, y1] = spot(i), [xe, ye] = spot(j), own = i === state.word, share = Math.min(Math.abs(value) / most, 1);
      const far = Math.hypot(xe - x1, ye - y1), stroke = 0.8 + 4.2 * share;
      // Bent to one side, so that the two directions lie apart.
      const cx = (x1 + xe) / 2 - (ye - y1) * 0.16, cy = (y1 + ye) / 2 + (xe - x1) * 0.16;
      const ux = (xe - cx) / Math.hypot(xe - cx, ye - cy), uy = (ye - cy) / Math.hypot(xe - cx, ye - cy);
      const tip = 5 + stroke, x2 = xe - ux * 8, y2 = ye - uy * 8, bx = x2 - ux * tip, by = y2 - uy * tip, half = 2.2 + stroke * 0.6;
      const kind = state.difference ? (value < 0 ? " less" : " more") : own ? " own" : "";
      const opacity = own ? 0.95 : 0.16 + 0.3 * share;
      svg.append(draw("path", { class: `edge${kind}`, d: `M${x1.toFixed(1)} ${y1.toFixed(1)}Q${cx.toFixed(1)} ${cy.toFixed(1)} ${bx.toFixed(1)} ${by.toFixed(1)}`,
        "stroke-width": stroke, "stroke-opacity": opacity, "data-from": String(i), "data-key": String(j), "data-weight": String(value),
        ...(value < 0 ? { "stroke-dasharray": "5 5" } : {}) }, title(`${view.tokens[i]} \u2192 ${keyName(view, j)}: ${number(value)}`)));
      if (far > 4) svg.append(draw("path", { class: `tip${kind}`, "fill-opacity": opacity, d:
        `M${x2.toFixed(1)} ${y2.toFixed(1)}L${(bx - uy * half).toFixed(1)} ${(by + ux * half).toFixed(1)} ${(bx + uy * half).toFixed(1)} ${(by - ux * half).toFixed(1)}Z` }));
    }
    const full = weights(view), received = view.tokens.map((_, j) => full.reduce((sum, row) => sum + row[j], 0) / count);
    const top = Math.max(...received);
    for (const j of shown) {
      if (!names.has(j)) continue; // a position that only another method has
      const [x, y] = spot(j), [lx, ly] = spot(j, radius + 12), flip = Math.cos(angle.get(j)) < -1e-9;
      const turn = (angle.get(j) * 180) / Math.PI + (flip ? 180 : 0);
      const text = draw("text", { x: lx, y: ly, "text-anchor": flip ? "end" : "start", transform: `rotate(${turn.toFixed(1)} ${lx.toFixed(1)} ${ly.toFixed(1)})`,
        class: j < count ? "" : "beyond" }, fit(names.get(j), label));
      const node = draw("circle", { class: "node", cx: x, cy: y, r: 3.5 + 6 * Math.sqrt(received[j] / top) });
      svg.append(j < count ? token(view, j, null, text, [node]) : draw("g", {}, node, text));
    }
    svg.dataset.edges = String(edges.length);
    return svg;
  }

  // --- tables ---
  function table(view, method) {
    const rows = drawn(view), names = view.tokens.map((_, j) => keyName(view, j));
    const head = make("tr", {}, make("th", { scope: "col", class: "t" }, "query \\ key"), ...names.map((name) => make("th", { scope: "col" }, name)));
    const only = state.view === "word" || state.view === "neurons";
    const body = rows.map((row, i) => (only && i !== state.word ? "" : make("tr", {}, make("th", { scope: "row", class: "t" }, view.tokens[i]),
      ...Array.from(row, (value) => make("td", {}, number(value, 4))))));
    return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Weights of ${method}` },
      make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
  }
  function pairTable(methods) {
    const views = methods.map(viewOf).filter((view) => state.key < view.tokens.length);
    if (!views.length) return "";
    const names = methods.filter((name) => state.key < viewOf(name).tokens.length);
    const columns = views.map((view) => {
      const query = vectors(view, "queries", count)[state.word], key = vectors(view, "keys", view.tokens.length)[state.key];
      return { query, key, scale: view.scale[state.block], weight: weights(view)[state.word][state.key] };
    });
    const cell = (value, digits) => make("td", {}, signed(value, digits));
    const body = columns[0].query.length;
    const rows = Array.from({ length: body }, (_, at) => make("tr", {}, make("th", { scope: "row", class: "t" }, `neuron ${at}`),
      ...columns.flatMap(({ query, key }) => [cell(query[at], 3), cell(key[at], 3), cell(query[at] * key[at], 3)])));
    const sum = ({ query, key }) => query.reduce((total, value, at) => total + value * key[at], 0);
    const last = (name, value, digits) => make("tr", { class: "base" }, make("th", { scope: "row", class: "t" }, name),
      ...columns.flatMap((column) => [make("td"), make("td"), cell(value(column), digits)]));
    const head = [
      make("tr", {}, make("td"), ...names.map((name) => make("th", { scope: "colgroup", colspan: "3" }, name))),
      make("tr", {}, make("td"), ...names.flatMap(() => ["q", "k", "q \u00d7 k"].map((each) => make("th", { scope: "col" }, each)))),
    ];
    const details = make("details", { class: "card" },
      make("summary", {}, `Every neuron of ${data.tokens[state.word]} \u2192 ${keyName(views[0], state.key)} as numbers`),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Neurons of the pair" }, make("table", {}, make("thead", {}, ...head),
        make("tbody", {}, ...rows, last("sum = q \u00b7 k", sum, 3), last("score = sum \u00d7 scale", (column) => sum(column) * column.scale, 3),
          last("softmax over all keys", (column) => column.weight, 4)))));
    if (state.open.has("pair")) details.open = true;
    details.addEventListener("toggle", () => (details.open ? state.open.add("pair") : state.open.delete("pair")));
    return details;
  }

  // --- the page ---
  const panels = byId("panels");
  const ABOUT = {
    lines: "Each line joins a word that is being read (left) to a word it looks at (right); the darker and wider, the more attention it pays. All pictures share one scale. Point at a word on the left, or choose it, to see its lines alone.",
    word: "How the chosen word spreads its attention over all words; its numbers sum to 1. Choose another word by mouse, in the list above, or with the arrow keys.",
    neurons: "Why the chosen word looks where it does: its query vector q is compared with the key vector k of every word. Neuron by neuron they are multiplied; the sum, scaled, is the score; the softmax makes weights of the scores. Blue is positive, orange negative, stronger is larger.",
    graph: "Words as a circle, attention as arrows from the word that reads to the word it looks at, wider for more. Arrows of the chosen word are coloured; a dot is larger the more attention its word receives. Attention of a word to itself is not drawn.",
  };
  const CHANGE = {
    lines: "Only what mixing changes: lines that gained attention and lines that lost it, against plain. All pictures share one scale.",
    word: "How mixing changes the chosen word\u2019s attention, against plain; the numbers sum to 0. Choose another word by mouse, in the list above, or with the arrow keys.",
    graph: "Only what mixing changes: arrows that gained attention and arrows that lost it, against plain, if by at least the threshold. Those of the chosen word are stronger.",
  };
  function panel(name, view) {
    const at = data.methods.indexOf(name);
    const card = make("figure", { class: `card panel m${at % 10}`, "data-method": name });
    card.append(make("h3", {}, titleOf(name), ...(data.fixed.includes(name) ? [make("span", { class: "badge" }, "ignores lam")] : [])));
    const moved = make("p", { class: "moved" }), share = view.moved[state.block][state.head];
    if (name === "none") moved.append("no mixing, the reference");
    else {
      const one = state.view === "word" || state.view === "neurons";
      moved.append(make("b", {}, percent(one ? movedOf(view) : share)), one ? " of this word\u2019s attention moved" : " of the attention moved");
      if (share === 0) moved.append(view.mixes && state.lam === "1" && !ignoresLam(name) ? ": lam 1 is plain" : ": nothing is mixed before this attention");
      if (view.layer !== null) moved.append(`; mixed at ${layerName(name, view.layer)}`);
    }
    card.append(moved);
    return card;
  }
  let focus = null;
  function render(announce = true) {
    const methods = shownMethods(), views = methods.map(viewOf), wide = state.view === "neurons";
    panels.className = `panels${wide ? " wide" : ""}`;
    const active = document.activeElement;
    focus = panels.contains(active) && active.closest(".panel") ? active.closest(".panel").dataset.method : null;
    const onToken = focus && active.closest(".token");
    byId("headline").textContent = `Block ${state.block}, head ${state.head}${data.lams.length && byId("lam") && methods.some((name) => !ignoresLam(name)) ? `, lam ${state.lam}` : ""}`;
    if (byId("lam")) {
      byId("lam").disabled = methods.length > 0 && methods.every(ignoresLam);
      byId("lam").title = byId("lam").disabled ? "The methods that are shown ignore lam" : "";
    }
    byId("about").textContent = (state.difference && CHANGE[state.view]) || ABOUT[state.view];
    byId("beyond").hidden = !views.some((view) => view.tokens.length > count);
    byId("tools-neurons").hidden = state.view !== "neurons";
    byId("tools-graph").hidden = state.view !== "graph";
    if (byId("difference")) byId("difference").disabled = state.view === "neurons";
    const cards = methods.map((name, at) => panel(name, views[at]));
    panels.replaceChildren(...cards);
    if (!cards.length) panels.append(make("p", { class: "card" }, state.difference ? "Choose at least one method other than plain." : "Choose at least one method above."));
    const rows = views.map((view) => (state.view === "lines" || state.view === "graph" ? drawn(view) : [drawn(view)[state.word]]));
    const most = Math.max(...rows.map(largest), 1e-12);
    const bound = state.view === "neurons" ? neuronBounds(views) : null;
    const shares = state.view === "neurons" ? Math.max(...views.map((view) => largest([weights(view)[state.word]])), 1e-12) : most;
    cards.forEach((card, at) => {
      const view = views[at], name = methods[at], style = getComputedStyle(card);
      const width = Math.max(Math.floor(card.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight)), 240);
      const svg = state.view === "lines" ? lines(view, width, most) : state.view === "word" ? lines(view, width, most, state.word)
        : state.view === "neurons" ? neurons(view, width, shares, bound) : graph(view, Math.min(width, 480), most);
      svg.setAttribute("aria-label", `${name}: ${state.view} of block ${state.block}, head ${state.head}; the numbers are in the table below`);
      if (state.view === "lines") {
        if (state.fixed) isolate(svg, state.word);
        const over = (event) => {
          const group = event.target.closest(".token");
          if (group) for (const each of panels.querySelectorAll("svg")) isolate(each, Number(group.dataset.word));
        };
        const out = () => { for (const each of panels.querySelectorAll("svg")) isolate(each, state.fixed ? state.word : null); };
        svg.addEventListener("pointerover", over);
        svg.addEventListener("focusin", over);
        svg.addEventListener("pointerout", out);
        svg.addEventListener("focusout", out);
      }
      // A difference of nothing would be an empty picture: words say so.
      const nothing = state.difference && state.view !== "neurons" && view.moved[state.block][state.head] === 0;
      card.append(nothing ? make("p", { class: "nothing" }, "No difference to plain in this block and head. Choose a later block, another layer or a smaller lam.") : svg);
      const details = make("details", {}, make("summary", {}, "The numbers"));
      const fill = () => { if (details.childElementCount < 2) details.append(table(view, name)); };
      details.open = state.open.has(name);
      if (details.open) fill();
      details.addEventListener("toggle", () => {
        if (details.open) { state.open.add(name); fill(); } else state.open.delete(name);
      });
      card.append(details);
    });
    byId("legend").hidden = !state.difference || state.view === "neurons";
    byId("pair").replaceChildren(state.view === "neurons" ? pairTable(methods) : "");
    if (onToken) panels.querySelector(`[data-method="${CSS.escape(focus)}"] .token[data-word="${state.word}"]`)?.focus();
    marks();
    if (announce) {
      byId("status").textContent = `Block ${state.block}, head ${state.head}: ` + methods.filter((name) => name !== "none")
        .map((name) => `${titleOf(name)} moves ${percent(viewOf(name).moved[state.block][state.head])}`).join(", ");
    }
    history.replaceState(null, "", `#${["view", "block", "head", "lam", "word"].map((name) => `${name}=${state[name]}`).join("&")}`);
  }

  // --- the maps of all heads ---
  function maps() {
    const holder = byId("maps");
    if (!holder) return;
    holder.replaceChildren(...data.methods.filter((name) => name !== "none").map((name) => {
      const view = viewOf(name), at = data.methods.indexOf(name), most = Math.max(data.heads.reduce((a, b) => Math.max(a, b), 0), 1);
      const head = make("tr", {}, make("th", { scope: "col" }, "block"), ...Array.from({ length: most }, (_, h) => make("th", { scope: "col" }, String(h))));
      const rows = view.moved.map((heads, b) => make("tr", {}, make("th", { scope: "row" }, String(b)), ...heads.map((share, h) => {
        const button = make("button", { type: "button", tabindex: "-1", "data-block": String(b), "data-head": String(h), "data-share": String(share),
          "aria-label": `${titleOf(name)}, block ${b}, head ${h}: ${Math.round(100 * share)} % moved` }, String(Math.round(100 * share)));
        button.style.setProperty("--part", String(Math.min(100 * share * 0.75, 42)));
        return make("td", {}, button);
      })));
      return make("div", { class: `card panel m${at % 10}` }, make("h3", {}, titleOf(name)), make("p", { class: "moved" }, "percent moved; columns are heads"),
        make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `heads under ${titleOf(name)}` }, make("table", { class: "map" }, make("thead", {}, head), make("tbody", {}, ...rows))));
    }));
    marks();
  }
  function marks() {
    for (const button of document.querySelectorAll(".map button")) {
      const chosen = Number(button.dataset.block) === state.block && Number(button.dataset.head) === state.head;
      button.setAttribute("aria-pressed", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
    }
  }

  // --- choices ---
  const fillSelect = (id, names, value) => {
    const select = byId(id);
    if (!select) return;
    select.replaceChildren(...names.map(([key, name]) => make("option", { value: String(key) }, name)));
    select.value = String(value);
  };
  const wordNames = () => data.tokens.map((name, at) => [at, `${at} ${name}`]);
  function controls() {
    fillSelect("block", data.heads.map((_, at) => [at, String(at)]), state.block);
    fillSelect("head", Array.from({ length: data.heads[state.block] }, (_, at) => [at, String(at)]), state.head);
    fillSelect("lam", data.lams.map((lam) => [lam, lam]), state.lam);
    fillSelect("word", wordNames(), state.word);
    fillSelect("key", Array.from({ length: longest }, (_, at) => [at, `${at} ${at < count ? data.tokens[at] : `+ ${data.meets[at] ?? ""}`}`]), state.key);
    byId("threshold").value = String(state.threshold);
    byId("threshold-value").textContent = state.threshold.toFixed(2);
    byId("special").checked = state.special;
    for (const radio of document.querySelectorAll("input[name=view]")) radio.checked = radio.value === state.view;
  }
  const change = (what) => {
    Object.assign(state, what);
    state.head = Math.min(state.head, data.heads[state.block] - 1);
    controls();
    if ("lam" in what) maps();
    render();
  };
  function fromAddress() {
    const address = new URLSearchParams(location.hash.slice(1)), whole = (name, most) => {
      const value = Number(address.get(name));
      return address.has(name) && Number.isInteger(value) && value >= 0 && value < most ? value : state[name];
    };
    if (document.querySelector(`input[name=view][value="${CSS.escape(address.get("view") ?? "")}"]`)) state.view = address.get("view");
    state.block = whole("block", data.heads.length);
    state.head = whole("head", data.heads[state.block]);
    state.word = whole("word", count);
    if (data.lams.includes(address.get("lam"))) state.lam = address.get("lam");
  }
  for (const name of ["block", "head", "word", "key"]) {
    byId(name).addEventListener("change", (event) => change({ [name]: Number(event.target.value), fixed: name === "word" || state.fixed }));
  }
  for (const select of document.querySelectorAll("select[name=layer]")) {
    const name = select.dataset.layer;
    select.replaceChildren(...data.layers[name].map((layer) => make("option", { value: String(layer) }, layerName(name, layer))));
    select.addEventListener("change", () => {
      state.layers[name] = Number(select.value);
      maps();
      change({});
    });
  }
  byId("lam")?.addEventListener("change", (event) => change({ lam: event.target.value }));
  byId("difference")?.addEventListener("change", (event) => change({ difference: event.target.checked }));
  byId("special").addEventListener("change", (event) => change({ special: event.target.checked }));
  byId("threshold").addEventListener("input", (event) => change({ threshold: Number(event.target.value) }));
  for (const radio of document.querySelectorAll("input[name=view]")) radio.addEventListener("change", () => change({ view: radio.value }));
  for (const box of document.querySelectorAll("input[name=method]")) {
    box.addEventListener("change", () => {
      if (box.checked) state.methods.add(box.value); else state.methods.delete(box.value);
      change({});
    });
  }
  panels.addEventListener("click", (event) => {
    const group = event.target.closest(".token"), row = event.target.closest(".row");
    if (group) {
      const word = Number(group.dataset.word);
      change({ word, fixed: !(state.fixed && state.word === word) });
    } else if (row) change({ key: Number(row.dataset.key) });
  });
  panels.addEventListener("keydown", (event) => {
    const group = event.target.closest?.(".token");
    if (!group) return;
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (step) change({ word: (Number(group.dataset.word) + step + count) % count, fixed: true });
    else if (event.key === "Enter" || event.key === " ") change({ fixed: !state.fixed });
    else if (event.key === "Escape") change({ fixed: false });
    else return;
    event.preventDefault();
  });
  byId("maps")?.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) change({ block: Number(button.dataset.block), head: Number(button.dataset.head) });
  });
  byId("maps")?.addEventListener("keydown", (event) => {
    const button = event.target.closest("button"), move = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    if (!button || !move) return;
    event.preventDefault();
    const block = Math.min(Math.max(state.block + move[0], 0), data.heads.length - 1);
    change({ block, head: Math.min(Math.max(state.head + move[1], 0), data.heads[block] - 1) });
    button.closest(".map").querySelector('[aria-pressed="true"]').focus();
  });

  fromAddress();
  state.key = state.word;
  controls();
  maps();
  render(false);
  let width = panels.clientWidth;
  new ResizeObserver(() => {
    if (Math.abs(panels.clientWidth - width) > 2) { width = panels.clientWidth; render(false); }
  }).observe(panels);
  window.addEventListener("hashchange", () => { fromAddress(); change({}); maps(); });
})();
