// Draws charts (report/charts.py) as SVG. Hand-written: some 300 lines instead of 4 MB of Plotly.
"use strict";

const charts = (() => {
  const SPACE = "http://www.w3.org/2000/svg";
  const LEFT_PAD = 8, CHAR = 7.2; // pixels
  const FEW = 24; // points that get marks and bars; more get a band

  // --- small tools ---------------------------------------------------------------------------
  function svg(name, attributes = {}, ...children) {
    const node = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  function html(name, attributes = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children); // strings become text nodes, never markup
    return node;
  }

  function number(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
    return String(Number(value.toPrecision(size >= 1000 ? 6 : 4)));
  }

  // the numbers of an axis, all with as many decimals as their distance needs
  function tickText(ticks) {
    const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : 1;
    const places = [0, 1, 2, 3, 4].find((n) => Math.abs(step * 10 ** n - Math.round(step * 10 ** n)) < 1e-6);
    const even = places !== undefined && Math.max(...ticks.map(Math.abs)) < 1e5;
    return (tick) => (even ? tick.toFixed(places) : number(tick));
  }

  const pen = document.createElement("canvas").getContext("2d");
  function textWidth(text, size) {
    pen.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
    return pen.measureText(text).width;
  }

  const colour = (series) => `var(--${series.colour.replace(" ", "-")})`;

  // --- axes ----------------------------------------------------------------------------------
  function roundTicks(low, high, count) {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find((nice) => nice * power >= rough) * power;
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) ticks.push(i * step);
    return ticks.map((tick) => Number(tick.toPrecision(12)));
  }

  function logTicks(low, high) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high * 1.0001; power++)
      if (10 ** power >= low * 0.9999) ticks.push(10 ** power);
    return ticks.length > 1 ? ticks : [low, high];
  }

  function axis(values, log, pixels, { fromZero = false, pad = 0.06 } = {}) {
    let low = Math.min(...values), high = Math.max(...values);
    if (fromZero && !log) low = Math.min(0, low), high = Math.max(0, high);
    const forth = log ? Math.log : (x) => x, back = log ? Math.exp : (x) => x;
    let a = forth(low), b = forth(high);
    const room = (b - a) * pad || Math.abs(a) * 0.1 || 1;
    if (!(fromZero && low === 0)) a -= room;
    b += room;
    const place = (x) => pixels[0] + ((forth(x) - a) / (b - a)) * (pixels[1] - pixels[0]);
    return { place, low: back(a), high: back(b) };
  }

  // --- the drawing of one chart ----------------------------------------------------------------
  function draw(figure, chart, hidden) {
    const width = Math.max(200, Math.round(figure.clientWidth));
    const visible = chart.series.filter((series) => !hidden.has(series.name) && series.points.length);
    const picture = chart.categories.length
      ? drawBars(chart, visible, width)
      : drawLines(chart, visible, width);
    figure.querySelector("svg")?.remove();
    figure.append(picture.node);
    picture.node.setAttribute("tabindex", "0");
    picture.node.setAttribute("role", "group");
    picture.node.setAttribute("aria-roledescription", "chart");
    const named = [chart.title, chart.y_label, chart.x_label && `against ${chart.x_label}`];
    picture.node.setAttribute("aria-label", `${named.filter(Boolean).join(", ")}. Arrow keys read the values.`);
    attend(figure, picture);
  }

  function group(series) {
    return svg("g", {
      "data-series": series.name,
      "data-published": series.published,
      "data-points": JSON.stringify(series.points),
    });
  }

  function drawLines(chart, visible, width) {
    const height = Math.round(Math.min(300, Math.max(200, width * 0.62)));
    const node = svg("svg", { viewBox: `0 0 ${width} ${height}` });
    if (!visible.length) return { node, stops: [] };
    const points = visible.flatMap((series) => series.points);
    const ys = points.map((p) => p[1]).concat(chart.covers, ...visible.map((s) => [...s.low, ...s.high]));
    const top = chart.y_label ? 24 : 10, bottom = height - (chart.x_label ? 40 : 22);
    const y = axis(ys, chart.log_y, [bottom, top], { fromZero: chart.from_zero });
    const yTicks = chart.log_y ? logTicks(y.low, y.high) : roundTicks(y.low, y.high, height > 240 ? 5 : 4);
    const yText = chart.log_y ? number : tickText(yTicks);
    const left = LEFT_PAD + CHAR * Math.max(...yTicks.map((tick) => yText(tick).length));
    const x = axis(points.map((p) => p[0]), chart.log_x, [left + 4, width - 10], { pad: 0.035 });

    for (const tick of yTicks) {
      const at = y.place(tick);
      node.append(svg("line", { class: "grid", x1: left, x2: width, y1: at, y2: at }));
      node.append(svg("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, yText(tick)));
    }
    node.append(svg("line", { class: "axis", x1: left, x2: width, y1: bottom, y2: bottom }));
    drawXTicks(node, chart, x, [left, width], bottom);
    if (chart.y_label) node.append(svg("text", { x: 0, y: 11 }, chart.y_label));
    if (chart.x_label) {
      const middle = (left + width) / 2;
      node.append(svg("text", { x: middle, y: height - 6, "text-anchor": "middle" }, chart.x_label));
    }
    if (chart.marker !== undefined) {
      const at = x.place(chart.marker);
      node.append(svg("line", { class: "marker", x1: at, x2: at, y1: top, y2: bottom }));
    }
    const shifts = shiftsOf(visible, y);
    for (const series of visible) node.append(drawSeries(series, x, y, shifts(series)));

    const all = [...new Set(points.map((p) => p[0]))].sort((a, b) => a - b);
    const stops = all.map((at) => ({
      at: x.place(at),
      title: `${(chart.x_label || "x").split(",")[0]} = ${number(at)}`,
      rows: visible.flatMap((series) => series.points
        .map((point, i) => [point, i])
        .filter(([point]) => point[0] === at)
        .map(([point, i]) => ({ series, value: point[1], low: series.low[i], high: series.high[i], y: y.place(point[1]) }))),
    }));
    return { node, stops, top, bottom };
  }

  function drawXTicks(node, chart, x, [left, right], bottom) {
    const wanted = chart.ticks.length ? chart.ticks
      : chart.log_x ? logTicks(x.low, x.high) : roundTicks(x.low, x.high, 5);
    let free = -Infinity;
    for (const tick of wanted.filter((one) => one >= x.low && one <= x.high).sort((a, b) => a - b)) {
      const text = number(tick), half = (text.length * CHAR) / 2;
      const at = x.place(tick), middle = Math.min(Math.max(at, left + half - 8), right - half);
      node.append(svg("line", { class: "axis", x1: at, x2: at, y1: bottom, y2: bottom + 4 }));
      if (middle - half < free) continue; // no room for this number
      node.append(svg("text", { x: middle, y: bottom + 16, "text-anchor": "middle" }, text));
      free = middle + half + 6;
    }
  }

  // Series with ranges stand beside each other, so that the ranges do not cover one another.
  function shiftsOf(visible, y) {
    const wide = visible.filter((series) => series.points.length <= FEW
      && series.low.some((low, i) => y.place(low) - y.place(series.high[i]) > 6));
    return (series) => wide.length > 1 && wide.includes(series) ? 6 * (wide.indexOf(series) - (wide.length - 1) / 2) : 0;
  }

  function drawSeries(series, x, y, shift) {
    const all = group(series), stroke = colour(series);
    const places = series.points.map(([a, b]) => [x.place(a) + shift, y.place(b)]);
    const reach = series.low.map((low, i) => [places[i][0], y.place(low), y.place(series.high[i])]);
    if (places.length > FEW && reach.length) {
      const d = [...reach.map(([a, low]) => [a, low]), ...reach.reverse().map(([a, , high]) => [a, high])];
      all.append(svg("polygon", { points: d.map((p) => p.join(" ")).join(","), fill: stroke, opacity: 0.15 }));
    } else reach.forEach(([at, low, high]) => {
      if (Math.abs(low - high) > 1)
        all.append(svg("line", { x1: at, x2: at, y1: low, y2: high, stroke, "stroke-width": 4, opacity: 0.4 }));
    });
    if (series.style !== "marks") {
      const d = places.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
      const dash = series.style === "dashed" ? "5 4" : "none";
      const thick = series.style === "line" ? 2 : 1.3;
      all.append(svg("path", { d, fill: "none", stroke, "stroke-width": thick, "stroke-dasharray": dash, "stroke-linejoin": "round" }));
    }
    if (series.style === "marks" || (series.style === "line" && places.length <= FEW))
      for (const [a, b] of places) all.append(mark(series, a, b));
    return all;
  }

  function mark(series, cx, cy) {
    const hollow = { r: 5.5, fill: "none", stroke: colour(series), "stroke-width": 1.4 };
    const full = { r: 3.4, fill: colour(series) };
    return svg("circle", { cx, cy, ...(series.published || series.style === "marks" ? hollow : full) });
  }

  function drawBars(chart, visible, width) {
    const longest = Math.max(...chart.categories.map((name) => textWidth(name, 12.5)));
    const above = longest > width * 0.4; // names above their bars where there is no room beside them
    const left = above ? 0 : longest + 14, right = width - 62;
    const thick = 16, gap = 5, top = chart.y_label ? 22 : 4;
    const rowHeight = (above ? 20 : 0) + Math.max(1, visible.length) * (thick + gap) + 9;
    const height = top + rowHeight * chart.categories.length;
    const node = svg("svg", { viewBox: `0 0 ${width} ${height}` });
    if (chart.y_label) node.append(svg("text", { x: left, y: 11 }, chart.y_label));
    const values = visible.flatMap((s) => [...s.points.map((p) => p[1]), ...s.high, ...s.low]);
    const x = axis(values.length ? values : [1], false, [left, right], { fromZero: true, pad: 0 });
    const row = (i) => top + i * rowHeight;
    chart.categories.forEach((name, i) => {
      const y = above ? row(i) + 14 : row(i) + (rowHeight - 9) / 2 + 3;
      node.append(svg("text", { class: "name", x: above ? 0 : left - 10, y, "text-anchor": above ? "start" : "end" }, name));
    });
    const stops = chart.categories.map((name, i) => ({ title: name, rows: [], y: row(i), height: rowHeight }));
    visible.forEach((series, order) => {
      const all = group(series);
      series.points.forEach(([place, value], i) => {
        const y = row(place) + (above ? 20 : 0) + order * (thick + gap);
        const [from, to] = [x.place(0), x.place(value)].sort((a, b) => a - b);
        const paint = series.published
          ? { fill: "none", stroke: colour(series), "stroke-width": 1.3, "stroke-dasharray": "3 2" }
          : { fill: colour(series) };
        all.append(svg("rect", { x: from, y, width: Math.max(1, to - from), height: thick, rx: 3, ...paint }));
        let end = to;
        if (series.low.length) {
          const [low, high] = [x.place(series.low[i]), x.place(series.high[i])], middle = y + thick / 2;
          all.append(svg("path", { d: `M${low} ${middle}H${high}M${low} ${middle - 4}v8M${high} ${middle - 4}v8`, stroke: "var(--ink)", "stroke-width": 1.3 }));
          end = Math.max(end, high);
        }
        all.append(svg("text", { class: "value", x: end + 7, y: y + thick - 3.5 }, number(value)));
        stops[place].rows.push({ series, value, low: series.low[i], high: series.high[i] });
      });
      node.append(all);
    });
    return { node, stops, bars: true };
  }

  // --- looking at values: pointer and keys ----------------------------------------------------------
  function attend(figure, { node, stops, top, bottom, bars }) {
    let current = -1;
    const tip = figure.querySelector(".tip");

    function show(index) {
      clear();
      const stop = stops[index];
      if (!stop || !stop.rows.length) return;
      current = index;
      tip.replaceChildren(html("b", {}, stop.title), ...stop.rows.map(line));
      tip.hidden = false;
      const scale = figure.clientWidth / node.viewBox.baseVal.width;
      const held = svg("g", { class: "held" });
      let x, y;
      if (bars) {
        x = figure.clientWidth * 0.3, y = (stop.y + stop.height) * scale;
      } else {
        held.append(svg("line", { class: "cross", x1: stop.at, x2: stop.at, y1: top, y2: bottom }));
        for (const row of stop.rows)
          held.append(svg("circle", { cx: stop.at, cy: row.y, r: 5, fill: colour(row.series), stroke: "var(--ground)", "stroke-width": 1.5 }));
        x = stop.at * scale + 12, y = top * scale;
        if (x + tip.offsetWidth > figure.clientWidth) x = stop.at * scale - 12 - tip.offsetWidth;
      }
      node.append(held);
      tip.style.left = `${Math.max(0, Math.min(x, figure.clientWidth - tip.offsetWidth))}px`;
      tip.style.top = `${node.getBoundingClientRect().top - figure.getBoundingClientRect().top + y}px`;
    }

    function clear() {
      current = -1;
      tip.hidden = true;
      node.querySelector(".held")?.remove();
    }

    function nearest(event) {
      const box = node.getBoundingClientRect(), scale = node.viewBox.baseVal.width / box.width;
      const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
      if (bars) return stops.findIndex((stop) => y >= stop.y && y < stop.y + stop.height);
      let best = 0;
      stops.forEach((stop, i) => { if (Math.abs(stop.at - x) < Math.abs(stops[best].at - x)) best = i; });
      return best;
    }

    node.addEventListener("pointermove", (event) => { const i = nearest(event); if (i !== current) show(i); });
    node.addEventListener("pointerdown", (event) => show(nearest(event)));
    node.addEventListener("pointerleave", clear);
    node.addEventListener("blur", clear);
    node.addEventListener("keydown", (event) => {
      const last = stops.length - 1;
      const next = {
        ArrowRight: Math.min(last, current + 1), ArrowDown: Math.min(last, current + 1),
        ArrowLeft: Math.max(0, current - 1), ArrowUp: Math.max(0, current - 1),
        Home: 0, End: last, Escape: -1,
      }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      show(next);
    });
  }

  function line(row) {
    const range = row.low !== undefined && row.low !== row.high ? ` (${number(row.low)} to ${number(row.high)})` : "";
    const dot = html("span", {}, row.series.published ? "○ " : "● ");
    dot.style.color = colour(row.series);
    const name = html("span", {}, dot, row.series.name);
    return html("div", {}, name, html("span", {}, number(row.value) + range));
  }

  // --- charts that share a legend ---------------------------------------------------------------------
  function swatch(series) {
    const stroke = colour(series), node = svg("svg", { width: 20, height: 12, "aria-hidden": "true" });
    if (series.style === "bars")
      node.append(svg("rect", { x: 3, y: 1, width: 14, height: 10, rx: 2, ...(series.published ? { fill: "none", stroke } : { fill: stroke }) }));
    else {
      if (series.style !== "marks")
        node.append(svg("line", { x1: 0, x2: 20, y1: 6, y2: 6, stroke, "stroke-width": series.style === "line" ? 2 : 1.4, "stroke-dasharray": series.style === "dashed" ? "5 3" : "none" }));
      if (series.style === "line" || series.style === "marks") node.append(mark({ ...series }, 10, 6));
    }
    return node;
  }

  function mount(place, list) {
    const hidden = new Set(), names = new Map();
    for (const chart of list)
      for (const series of chart.series)
        if (chart.series.length > 1) names.set(series.name, series);
    const figures = list.map((chart) => {
      const figure = html("figure", { class: "chart" });
      if (chart.title) figure.append(html("figcaption", {}, chart.title));
      const tip = html("div", { class: "tip", role: "status" });
      tip.hidden = true;
      figure.append(tip);
      return figure;
    });
    const redraw = () => figures.forEach((figure, i) => draw(figure, list[i], hidden));
    const legend = html("div", { class: "legend", role: "group", "aria-label": "Series shown" });
    for (const [name, series] of names) {
      const button = html("button", { type: "button", "aria-pressed": "true" }, swatch(series), name);
      button.addEventListener("click", () => {
        hidden.has(name) ? hidden.delete(name) : hidden.add(name);
        button.setAttribute("aria-pressed", String(!hidden.has(name)));
        redraw();
      });
      legend.append(button);
    }
    const panels = html("div", { class: "panels" }, ...figures);
    if (list.length > 3) panels.style.setProperty("--panel", list.length === 4 ? "22rem" : "16rem");
    place.replaceChildren(...(names.size ? [legend] : []), panels);
    redraw();
    let width = panels.clientWidth;
    new ResizeObserver(() => {
      if (Math.abs(panels.clientWidth - width) > 1) { width = panels.clientWidth; redraw(); }
    }).observe(panels);
    return { update(fresh) { fresh.forEach((chart, i) => { list[i] = chart; }); redraw(); } };
  }

  return { mount, number };
})();

const DATA = JSON.parse(document.getElementById("data").textContent);
for (const place of document.querySelectorAll("[data-charts]")) charts.mount(place, DATA[place.dataset.charts]);

addEventListener("beforeprint", () => document.querySelectorAll(".more").forEach((part) => { part.open = true; }));
