import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { rate, time } from "../lib/format";
import { color, isDark } from "../lib/theme";

export interface Series {
  label: string;
  color: string; // a variable of the style sheet
  values: (number | null)[];
  isDashed?: boolean;
}

interface Props {
  title: string;
  unit: string;
  times: number[]; // Unix seconds
  series: Series[];
  shown?: (value: number) => string;
  isCount?: boolean; // whole numbers only
}

const HEIGHT = 190;
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120];
const TABLE_ROWS = 10;

/** Lines over time, with the last values as a table for those who do not see them. */
export function Chart({ title, unit, times, series, shown = rate, isCount = false }: Props): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const dark = isDark.value;
  const said = (value: number | null | undefined): string => (value === null || value === undefined ? "–" : shown(value));

  useEffect(() => {
    const element = box.current!;
    const axis = { stroke: color("--muted"), grid: { stroke: color("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    plot.current = new uPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        padding: [12, 28, 0, 0],
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { time: true }, y: { range: (_, __, most) => [0, isCount ? Math.max(4, most + 1) : most > 0 ? most * 1.1 : 1] } },
        axes: [
          { ...axis, space: 80, incrs: SECONDS, values: (_, ticks) => ticks.map((tick) => time(tick * 1000)) },
          { ...axis, size: 64, ...(isCount ? { incrs: WHOLE } : {}), values: (_, ticks) => ticks.map((tick) => shown(tick)) },
        ],
        series: [
          {},
          ...series.map((one) => ({
            label: one.label,
            stroke: color(one.color),
            width: 2,
            ...(one.isDashed ? { dash: [5, 4] } : {}),
            points: { show: false },
            spanGaps: false,
          })),
        ],
      },
      [times, ...series.map((one) => one.values)] as uPlot.AlignedData,
      element,
    );
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
    };
  }, [dark, series.length]);

  useEffect(() => plot.current?.setData([times, ...series.map((one) => one.values)] as uPlot.AlignedData));

  const summary = series.map((one) => `${one.label} ${said(one.values.at(-1))}`).join(", ");
  return (
    <figure class="card chart">
      <figcaption>
        <h2>{title}</h2>
        <ul class="legend">
          {series.map((one) => (
            <li key={one.label}>
              <span class={`swatch ${one.isDashed ? "dashed" : ""}`} style={{ color: `var(${one.color})` }} aria-hidden="true" />
              {one.label} <b>{said(one.values.at(-1))}</b>
            </li>
          ))}
          <li class="unit">{unit}</li>
        </ul>
      </figcaption>
      <div ref={box} class="plot" role="img" aria-label={`${title}: ${summary}`} />
      <details>
        <summary>As a table</summary>
        <table>
          <caption class="sr-only">
            {title}, the last {TABLE_ROWS} seconds
          </caption>
          <thead>
            <tr>
              <th scope="col">Time</th>
              {series.map((one) => (
                <th scope="col" class="num" key={one.label}>
                  {one.label}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {times.slice(-TABLE_ROWS).map((at, index, all) => (
              <tr key={at}>
                <th scope="row">{time(at * 1000)}</th>
                {series.map((one) => (
                  <td class="num" key={one.label}>
                    {said(one.values[one.values.length - all.length + index])}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </figure>
  );
}
