/** Whether people want dark colours, as the system has it; in a notebook's widget, as the notebook has it. */
export const darkness = matchMedia("(prefers-color-scheme: dark)");
