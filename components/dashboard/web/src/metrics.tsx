// CPU and memory usage of a node, a pod or the cluster.
import { useMemo, useState } from "preact/hooks";
import type { Resource } from "./discovery";
import { bytes } from "./format";
import { source, useSamples, type Samples, type Source } from "./history";
import { Lazy } from "./lazy";
import { Loading, Problem } from "./ui";

const ranges: [string, string][] = [["10m", "10 minutes"], ["1h", "1 hour"], ["24h", "1 day"]];

const cpuText = (v: number) => (v < 0.0005 ? "0" : v < 1 ? `${Math.round(v * 1000)}m` : v.toFixed(2));

/** Metrics shows charts of the usage of a pod or a node, or of all nodes without a name. */
export function Metrics({ all, kind, namespace = "", name = "" }: { all: Resource[]; kind: "nodes" | "pods"; namespace?: string; name?: string }) {
  const from = useMemo(() => source(all, kind), [all, kind]);
  return (
    <section class="metrics" aria-labelledby="usage">
      {from ? <Usage from={from} namespace={namespace} name={name} /> : (
        <>
          <h2 id="usage">Usage</h2>
          <p class="muted">The cluster has no metrics. The add-on <code>metrics</code> provides them: <code>hyperkube addon enable metrics</code></p>
        </>
      )}
    </section>
  );
}

function Usage({ from, namespace, name }: { from: Source; namespace: string; name: string }) {
  const [range, setRange] = useState("1h");
  const { value, error, reload } = useSamples(from, namespace, name, range);
  const code = (error as { code?: number } | undefined)?.code;
  return (
    <>
      <div class="section-head">
        <h2 id="usage">Usage</h2>
        {from.history && (
          <label class="inline"><span class="hidden">Time range</span>
            <select value={range} onChange={(e) => setRange(e.currentTarget.value)}>{ranges.map(([id, label]) => <option key={id} value={id}>{label}</option>)}</select>
          </label>
        )}
      </div>
      {code === 404 && <p class="muted">There are no samples yet. The first one appears within 30 seconds after the start.</p>}
      {error && code !== 404 ? <Problem error={error} onRetry={reload} /> : null}
      {!value && !error && <Loading rows={3} />}
      {value && !from.history && <p class="muted">The values are current ones. For charts, the cluster needs the history of the add-on <code>metrics</code> of hyperkube.</p>}
      {value && (
        <div class="charts">
          <Metric title="CPU (cores)" samples={value} values={value.cpu} format={cpuText} />
          <Metric title="Memory" samples={value} values={value.memory} format={bytes} />
        </div>
      )}
    </>
  );
}

interface MetricProps {
  title: string;
  samples: Samples;
  values: (number | null)[];
  format: (v: number) => string;
}

/** Metric shows one metric as a sentence, a chart and a table. */
function Metric({ title, samples, values, format }: MetricProps) {
  const known = values.map((v, i): [number, number | null] => [samples.times[i], v]).filter((s): s is [number, number] => s[1] !== null);
  if (known.length === 0) return <figure class="card"><figcaption><strong>{title}</strong> <span class="muted">unknown yet: rates need two samples</span></figcaption></figure>;
  const last = known[known.length - 1];
  const max = known.reduce((m, s) => (s[1] > m[1] ? s : m));
  const mean = known.reduce((t, s) => t + s[1], 0) / known.length;
  const one = samples.step === 0;
  const text = one ? format(last[1]) : `${format(last[1])} now, ${format(mean)} on average, at most ${format(max[1])} at ${new Date(max[0] * 1000).toLocaleTimeString()}`;
  return (
    <figure class="card">
      <figcaption><strong>{title}</strong> <span class="muted">{text}</span></figcaption>
      {!one && <Lazy load={() => import("./chart")} render={(m) => <m.Chart label={`${title}: ${text}`} times={samples.times} values={values} format={format} />} />}
      {!one && <Table title={title} known={known} format={format} />}
    </figure>
  );
}

/** rows is the number of rows of the table. */
const rows = 20;

/** Table shows evenly distributed samples, the newest first. */
function Table({ title, known, format }: { title: string; known: [number, number][]; format: (v: number) => string }) {
  const [open, setOpen] = useState(false);
  const every = Math.ceil(known.length / rows);
  const shown = open ? [...known].reverse().filter((_, i) => i % every === 0) : [];
  return (
    <details onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary class="small">Table</summary>
      {open && (
        <table class="simple">
          <thead><tr><th>Time</th><th>{title}</th></tr></thead>
          <tbody>{shown.map(([t, v]) => <tr key={t}><td>{new Date(t * 1000).toLocaleTimeString()}</td><td>{format(v)}</td></tr>)}</tbody>
        </table>
      )}
    </details>
  );
}
