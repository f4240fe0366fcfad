// Numbers for people.

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function whole(value: number): string {
  return WHOLE.format(value);
}

/** A number with about three digits: 0.42, 4.2, 42, 4,200. */
export function rate(value: number): string {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const digits = value < 1 ? 2 : value < 10 ? 1 : 0;
  return new Intl.NumberFormat("en-US", { maximumFractionDigits: digits }).format(value);
}

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${Math.round(value * 1e6)} µs`;
  if (value < 0.01) return `${(value * 1e3).toFixed(2)} ms`;
  if (value < 1) return `${Math.round(value * 1e3)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit++;
  }
  return `${size >= 100 || unit === 0 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

export function percent(share: number | null): string {
  if (share === null || !Number.isFinite(share)) return "–";
  const value = share * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

export function time(ms: number): string {
  return new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
}

export function day(ms: number): string {
  const date = new Date(ms);
  const today = new Date();
  if (date.toDateString() === today.toDateString()) return "Today";
  today.setDate(today.getDate() - 1);
  if (date.toDateString() === today.toDateString()) return "Yesterday";
  return date.toLocaleDateString([], { year: "numeric", month: "long", day: "numeric" });
}

export function plural(count: number, one: string, several = `${one}s`): string {
  return `${whole(count)} ${count === 1 ? one : several}`;
}
