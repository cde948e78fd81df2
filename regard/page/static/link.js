/** The page as it is, as an address: copied, with what it carries. */
import { LONGEST, currentAddress } from "./address.js";
import { byId, targetOf } from "./dom.js";
import { get, runOf } from "./store.js";

const NOTE_TIME = 6000; // milliseconds that the note stays

/** What an address can't carry, shown before it is shared. */
function carries() {
  const { about, compare } = get();
  if (about?.report) return "The address opens this very file, wherever it lies, at what is chosen.";
  if (!about?.writes) return "The address opens this recording’s page where the same recording is served.";
  const long = [runOf("first"), compare === "text" ? runOf("second") : null].filter(
    (one) => one?.text != null && Array.from(one.text).length > LONGEST,
  );
  return long.length
    ? `The text is longer than ${LONGEST} characters, so the address goes without it: whoever opens it has to open the text again.`
    : "The address holds the text and everything chosen.";
}

export function startLink() {
  const message = byId("link-message");
  const field = byId("link-address");
  let timer = 0;
  const hide = () => {
    clearTimeout(timer);
    message.classList.remove("visible");
    byId("link-note").textContent = "";
    field.hidden = true;
  };
  byId("link").onclick = async () => {
    hide();
    const address = location.href.split("#")[0] + currentAddress();
    history.replaceState(null, "", address);
    const copied = await copy(address, field);
    byId("link-note").textContent = copied
      ? `Link copied. ${carries()}`
      : `The browser does not allow copying; take it from here. ${carries()}`;
    message.classList.add("visible");
    if (copied) timer = setTimeout(hide, NOTE_TIME);
  };
  document.addEventListener("pointerdown", (event) => {
    if (!byId("link-menu").contains(targetOf(event))) hide();
  });
  byId("link-menu").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !message.classList.contains("visible")) return;
    hide();
    byId("link").focus();
    event.stopPropagation();
  });
}

/** Whether it could be copied; if not, it stands in the field, chosen, to be copied by hand. */
async function copy(/** @type {string} */ address, /** @type {HTMLInputElement} */ field) {
  try {
    await navigator.clipboard.writeText(address);
    return true;
  } catch {
    /* within a notebook's frame, or without a secure connection, the browser refuses */
  }
  field.hidden = false;
  field.value = address;
  field.focus();
  field.select();
  if (!document.execCommand("copy")) return false;
  field.hidden = true;
  byId("link").focus();
  return true;
}
