import { day, time } from "../lib/format";

/** A time of today, or with its day. */
export function when(seconds: number): string {
  const date = day(seconds * 1000);
  return date === "Today" ? time(seconds * 1000) : `${date}, ${time(seconds * 1000)}`;
}
