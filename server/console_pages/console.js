// The page "Live": events from the server, the newest first. Text is set as text, never as HTML.
"use strict";
(function () {
  const body = document.getElementById("events");
  const state = document.getElementById("state");
  const pause = document.getElementById("pause");
  const source = new EventSource(body.dataset.source);
  let paused = false;
  pause.hidden = false;
  state.textContent = "Connecting …";
  pause.addEventListener("click", function () {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    state.textContent = paused ? "Paused: what happens now is not shown." : "Watching.";
  });
  source.addEventListener("open", function () { if (!paused) state.textContent = "Watching."; });
  source.addEventListener("error", function () { state.textContent = "Connection lost; trying again …"; });
  source.addEventListener("ended", function () {
    source.close();
    state.textContent = "You are logged out.";
  });
  source.addEventListener("message", function (message) {
    if (paused) return;
    const told = JSON.parse(message.data);
    const row = body.insertRow(0);
    row.insertCell().textContent = new Date(told.time).toISOString().replace("T", " ").slice(0, 19);
    row.insertCell().textContent = told.event;
    const cell = row.insertCell();
    if (["add", "meta", "ttl", "fact", "invalidate"].includes(told.event)) {
      const link = document.createElement("a");
      link.href = body.dataset.record + "&id=" + told.to;
      link.textContent = told.id;
      cell.append(link);
    } else {
      cell.textContent = told.id;
    }
    while (body.rows.length > 200) body.deleteRow(-1);
  });
})();
