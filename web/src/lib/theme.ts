// Light, dark, or as the system has it. Kept in localStorage: it says nothing about anybody.
import { effect, signal } from "@preact/signals";

export type Theme = "auto" | "light" | "dark";
const NAME = "headrace.theme";

function kept(): Theme {
  const found = localStorage.getItem(NAME);
  return found === "light" || found === "dark" ? found : "auto";
}

export const theme = signal<Theme>(kept());
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
export const isDark = signal(false);

function apply(): void {
  isDark.value = theme.value === "dark" || (theme.value === "auto" && prefersDark.matches);
  document.documentElement.dataset["theme"] = isDark.value ? "dark" : "light";
}

effect(() => {
  localStorage.setItem(NAME, theme.value);
  apply();
});
prefersDark.addEventListener("change", apply);

export function nextTheme(): void {
  theme.value = theme.value === "auto" ? "light" : theme.value === "light" ? "dark" : "auto";
}

/** The value of a variable of the style sheet, for what is drawn on a canvas. */
export function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
