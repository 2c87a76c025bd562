// The rule under the reader's hands: the functions of eqco.theory, on one query with fixed cosines.
"use strict";

(() => {
  const POSITIVE = 0.8, HARDEST = 0.5; // cosines; all other negatives have 0

  // --- eqco.theory, line by line ---------------------------------------------------------------
  const margin = (alpha, K, tau) => tau * (Math.log(alpha) - Math.log(K)); // Eq. 5
  const rate = (base, N, reference) => (base * N) / reference; // Eq. 8
  const ceiling = (alpha) => Math.log1p(alpha); // Eq. 6 at L = 0
  const prior = (alpha) => 1 / (1 + alpha); // Remark 1
  const softplus = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
  const sigmoid = (x) => 1 / (1 + Math.exp(-x));

  // log of (all negatives / positive) in Eq. 1
  function logOdds(K, tau, m) {
    const sum = 1 + (K - 1) * Math.exp(-HARDEST / tau); // relative to the hardest
    return HARDEST / tau + Math.log(sum) - POSITIVE / tau + m / tau;
  }
  const loss = (K, tau, m) => softplus(logOdds(K, tau, m)); // Eq. 1
  const gradient = (K, tau, m) => (2 / tau) * sigmoid(logOdds(K, tau, m)); // Eq. 14
  // (1 − posterior) · softmax of the hardest: its weight in Eq. 13
  const weight = (K, tau, m) => sigmoid(logOdds(K, tau, m)) / (1 + (K - 1) * Math.exp(-HARDEST / tau));

  // --- the sliders --------------------------------------------------------------------------------
  const halfPower = (place) => Math.round(2 ** (place / 2));
  const SCALES = { K: halfPower, N: halfPower, alpha: halfPower, tau: (place) => place };
  const inputs = Object.fromEntries(Object.keys(SCALES).map((name) => [name, document.getElementById(name)]));
  const read = () => Object.fromEntries(Object.entries(SCALES).map(([name, scale]) => [name, scale(Number(inputs[name].value))]));

  const PRESETS = {
    "SiMo: 16 negatives like 256": { K: 8, alpha: 16, tau: 0.2, N: 16 },
    "16 like 65536": { K: 8, alpha: 32, tau: 0.2, N: 16 },
    "MoCo: 256 like 65536": { K: 16, alpha: 32, tau: 0.07, N: 16 },
    "A batch of 16": { K: 8, alpha: 24, tau: 0.1, N: 8 },
    "Plain InfoNCE: α = K": { K: 16, alpha: 16, tau: 0.2, N: 16 },
  };

  const QUANTITIES = {
    "Gradient": { label: "‖dL/dq‖ at most", of: (alpha, K, tau, m) => gradient(K, tau, m) },
    "Loss": { label: "loss L, nats", of: (alpha, K, tau, m) => loss(K, tau, m) },
    "Ceiling of f̂": { label: "largest f̂, nats", of: (alpha) => ceiling(alpha) },
  };
  const COUNTS = Array.from({ length: 17 }, (_, power) => 2 ** power);
  let chosen = "Gradient", live = null;

  function chart({ K, alpha, tau }) {
    const { label, of } = QUANTITIES[chosen];
    const line = (name, colour, imitated) => ({
      name, colour, style: "line", published: false, low: [], high: [],
      points: COUNTS.map((k) => [k, of(imitated(k), k, tau, margin(imitated(k), k, tau))]),
    });
    return {
      title: "", x_label: "K, negatives per query", y_label: label, log_x: true, log_y: false,
      from_zero: true, categories: [], covers: [], marker: K, ticks: [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536],
      series: [line("InfoNCE", "infonce", (k) => k), line("EqCo", "eqco", () => alpha)],
    };
  }

  function show(quantity, value, text = charts.number(value)) {
    const place = document.querySelector(`[data-quantity="${quantity}"]`);
    place.textContent = text;
    place.dataset.value = value;
  }

  function update() {
    const setting = read(), { K, N, alpha, tau } = setting, m = margin(alpha, K, tau);
    for (const [name, value] of Object.entries(setting)) {
      const shown = document.getElementById(`${name}-shown`);
      shown.textContent = charts.number(value);
      shown.dataset.value = value;
      inputs[name].setAttribute("aria-valuetext", charts.number(value));
    }
    show("margin", m);
    show("rate", rate(0.03, N, 256));
    show("ceiling", ceiling(alpha), `${charts.number(ceiling(alpha))} nats`);
    show("ceiling-plain", ceiling(K));
    show("prior", prior(alpha));
    show("prior-plain", prior(K));
    show("hardest", weight(K, tau, m));
    show("hardest-plain", weight(K, tau, 0));
    show("gradient", gradient(K, tau, m));
    show("gradient-plain", gradient(K, tau, 0));
    const over = ceiling(alpha) - ceiling(K);
    document.getElementById("guarantee").textContent = alpha > K
      ? `With α > K, f̂ is an estimate: it may exceed the truth by up to ${charts.number(over)} nats.`
      : "With α ≤ K, f̂ is a guaranteed lower bound of the information.";
    document.getElementById("pool").textContent = K > N - 1
      ? `A batch of ${N} offers ${N - 1} negatives: ${K} of them need a queue.`
      : `A batch of ${N} offers ${N - 1} negatives: ${K} of them can be drawn from it.`;
    const queue = K > N - 1 ? " --framework mocov2" : "";
    document.getElementById("plan").textContent =
      `eqco plan${queue} --num-queries ${N} --num-negatives ${K} --alpha ${alpha} --temperature ${tau}`;
    for (const button of document.querySelectorAll(".presets button"))
      button.setAttribute("aria-pressed", String(Object.entries(PRESETS[button.textContent]).every(([name, place]) => Number(inputs[name].value) === place)));
    for (const button of document.querySelectorAll(".tabs button"))
      button.setAttribute("aria-pressed", String(button.textContent === chosen));
    if (live) live.update([chart(setting)]);
    else live = charts.mount(document.getElementById("live-chart"), [chart(setting)]);
  }

  function place(preset) {
    for (const [name, position] of Object.entries(preset)) inputs[name].value = position;
    update();
  }

  function buttons(selector, names, act) {
    for (const name of names) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.addEventListener("click", () => act(name));
      document.querySelector(selector).append(button);
    }
  }

  buttons(".presets", Object.keys(PRESETS), (name) => place(PRESETS[name]));
  buttons(".tabs", Object.keys(QUANTITIES), (name) => { chosen = name; update(); });
  for (const input of Object.values(inputs)) input.addEventListener("input", update);
  place(PRESETS["16 like 65536"]);
})();
