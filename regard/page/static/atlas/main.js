/** The pages of an atlas: the overview, or one head. */
import { byId, make } from "../dom.js";
import { startTheme } from "../theme.js";
import { own } from "./facts.js";
import { showHead } from "./head.js";
import { showOverview } from "./overview.js";

startTheme();
const main = byId("page");
if (document.body.dataset.kind === "head") showHead(main, own());
else if (own().heads.length) showOverview(main, own());
else main.append(make("p", { className: "says", textContent: "This atlas holds no head." }));
