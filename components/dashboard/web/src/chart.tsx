// A chart of a metric over time.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";

/** color returns a color of the theme. */
function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const height = 150;
/** axisWidth is the width of the axis with the values in pixels. */
const axisWidth = 72;

/** Chart draws values over time. The text next to it describes the same for users who do not see it. */
export function Chart({ label, times, values, format }: { label: string; times: number[]; values: (number | null)[]; format: (v: number) => string }) {
  const root = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const [at, setAt] = useState("");
  const data: uPlot.AlignedData = [times, values];
  useLayoutEffect(() => {
    const axis: uPlot.Axis = { stroke: () => color("--muted"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { show: false } };
    const p = new uPlot(
      {
        width: Math.max(200, root.current!.clientWidth), height, legend: { show: false },
        cursor: { y: false, drag: { setScale: false, x: false, y: false } },
        scales: { y: { range: (_u, _min, max) => [0, max > 0 ? max * 1.1 : 1] } },
        axes: [axis, { ...axis, size: axisWidth, values: (_u, ticks) => ticks.map(format) }],
        series: [{}, { stroke: () => color("--accent"), width: 1.5, points: { show: times.length < 3 } }],
        hooks: {
          setCursor: [(u) => {
            const i = u.cursor.idx;
            const v = i == null ? null : u.data[1][i];
            setAt(i == null || v == null ? "" : `${new Date(u.data[0][i] * 1000).toLocaleTimeString()}: ${format(v)}`);
          }],
        },
      },
      data,
      root.current!,
    );
    plot.current = p;
    const observer = new ResizeObserver(() => p.setSize({ width: Math.max(200, root.current!.clientWidth), height }));
    observer.observe(root.current!);
    const redraw = () => p.redraw(false);
    const themes = new MutationObserver(redraw);
    themes.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", redraw);
    return () => {
      observer.disconnect();
      themes.disconnect();
      dark.removeEventListener("change", redraw);
      p.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData(data), [times, values]);
  return (
    <div class="chart">
      <div ref={root} role="img" aria-label={label} />
      <p class="muted small" aria-hidden="true">{at || " "}</p>
    </div>
  );
}
