/* SPDX-License-Identifier: Apache-2.0 */
"use strict";

// A link to a rung opens it.
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
    target.scrollIntoView({ block: "start" });
  }
}
addEventListener("hashchange", openTarget);
openTarget();

// What is under the pointer says its numbers.
const tip = document.getElementById("tip");
addEventListener("pointerover", (event) => {
  const words = event.target.dataset ? event.target.dataset.tip : undefined;
  tip.hidden = !words;
  if (!words) return;
  tip.textContent = words;
  const at = event.target.getBoundingClientRect();
  const x = at.left + at.width / 2 - tip.offsetWidth / 2;
  const above = at.top - tip.offsetHeight - 6;
  const right = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = Math.max(8, Math.min(x, right)) + scrollX + "px";
  tip.style.top = (above < 8 ? at.bottom + 6 : above) + scrollY + "px";
});
