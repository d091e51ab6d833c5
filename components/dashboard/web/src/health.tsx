// The page with the health of the control plane.
import { useEffect, useState } from "preact/hooks";
import { ApiError, request } from "./api";
import { Certificates } from "./certificates";
import { bytes, plural } from "./format";
import { Loading, Problem } from "./ui";

/** period is how often the metrics are read while the page is shown. They have no events. */
const period = 10_000;

interface Sample {
  labels: Record<string, string>;
  value: number;
}

/** parse returns the samples of some metrics by name. */
function parse(text: string, names: string[]): Map<string, Sample[]> {
  const found = new Map(names.map((n): [string, Sample[]] => [n, []]));
  for (const line of text.split("\n")) {
    const end = line.search(/[{ ]/);
    const list = end > 0 && found.get(line.slice(0, end));
    if (!list) continue;
    const labels: Record<string, string> = {};
    for (const m of line.matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)) labels[m[1]] = m[2];
    list.push({ labels, value: Number(line.slice(line.lastIndexOf(" ") + 1)) });
  }
  return found;
}

const metrics = {
  requests: "apiserver_request_total",
  sum: "apiserver_request_sli_duration_seconds_sum",
  count: "apiserver_request_sli_duration_seconds_count",
  objects: "apiserver_storage_objects",
  size: "apiserver_storage_size_bytes",
  inflight: "apiserver_current_inflight_requests",
  queued: "apiserver_flowcontrol_current_inqueue_requests",
};

interface Verb {
  requests: number;
  errors: number;
  seconds: number;
  measured: number;
}

/** Requests are the requests for a resource. */
interface Requests {
  total: number;
  byVerb: Map<string, number>;
}

interface State {
  at: number;
  checks: { name: string; ok: boolean }[];
  verbs: Map<string, Verb>;
  resources: Map<string, Requests>;
  objects: Sample[];
  size: number;
  inflight: number;
  queued: number;
}

async function load(): Promise<State> {
  const [ready, text] = await Promise.all([
    // A failed check is part of an error response.
    request("/readyz?verbose").then((r) => r.text(), (err) => (err instanceof ApiError && err.code === 500 ? err.message : Promise.reject(err))),
    request("/metrics").then((r) => r.text()),
  ]);
  const found = parse(text, Object.values(metrics));
  const verbs = new Map<string, Verb>();
  const resources = new Map<string, Requests>();
  const verb = (s: Sample) => {
    const name = s.labels.verb ?? "";
    let v = verbs.get(name);
    if (!v) verbs.set(name, (v = { requests: 0, errors: 0, seconds: 0, measured: 0 }));
    return v;
  };
  for (const s of found.get(metrics.requests)!) {
    verb(s).requests += s.value;
    if (s.labels.code?.startsWith("5")) verb(s).errors += s.value;
    const resource = [s.labels.resource || "none", s.labels.group].filter(Boolean).join(".");
    let r = resources.get(resource);
    if (!r) resources.set(resource, (r = { total: 0, byVerb: new Map() }));
    r.total += s.value;
    r.byVerb.set(s.labels.verb ?? "", (r.byVerb.get(s.labels.verb ?? "") ?? 0) + s.value);
  }
  for (const s of found.get(metrics.sum)!) verb(s).seconds += s.value;
  for (const s of found.get(metrics.count)!) verb(s).measured += s.value;
  const sum = (name: string) => found.get(name)!.reduce((t, s) => t + s.value, 0);
  return {
    at: Date.now(),
    checks: [...ready.matchAll(/^\[([+-])\](\S+)/gm)].map((m) => ({ name: m[2], ok: m[1] === "+" })),
    verbs,
    resources,
    objects: found.get(metrics.objects)!.filter((s) => s.value > 0).sort((a, b) => b.value - a.value),
    size: sum(metrics.size), inflight: sum(metrics.inflight), queued: sum(metrics.queued),
  };
}

export function HealthPage() {
  const [states, setStates] = useState<State[]>([]);
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    let current = true;
    let timer: ReturnType<typeof setTimeout>;
    const next = async () => {
      try {
        const s = await load();
        if (!current) return;
        setStates((old) => [...old.slice(-1), s]);
        setError(undefined);
      } catch (err) {
        if (!current) return;
        setError(err);
      }
      timer = setTimeout(next, period);
    };
    void next();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, []);
  const now = states.at(-1);
  const before = states.length > 1 ? states[0] : undefined;
  const failed = now?.checks.filter((c) => !c.ok) ?? [];
  return (
    <section class="page">
      <header class="page-head"><h1>Control plane health</h1></header>
      {error ? <Problem error={error} /> : null}
      {!now && !error && <Loading />}
      {now && (
        <>
          {failed.length > 0 ? (
            <p class="notice bad" role="alert">The API server is not ready: {failed.map((c) => c.name).join(", ")}. Read its log.</p>
          ) : <p class="notice good">The API server is ready. {plural(now.checks.length, "check")} passed.</p>}
          <div class="cards">
            <div class="card"><h2>Storage</h2><p class="figure">{bytes(now.size)}</p></div>
            <div class="card"><h2>Objects</h2><p class="figure">{now.objects.reduce((t, s) => t + s.value, 0)}</p></div>
            <div class="card"><h2>Active requests</h2><p class="figure">{now.inflight}</p></div>
            <div class="card"><h2>Waiting requests</h2><p class="figure">{now.queued}</p></div>
          </div>
          <h2>Requests</h2>
          <div class="scroll" tabIndex={0}>
            <table class="simple">
              <thead><tr><th>Verb</th><th>Per second</th><th>Since the start</th><th>Server errors</th><th>Mean duration</th></tr></thead>
              <tbody>
                {[...now.verbs].sort((a, b) => b[1].requests - a[1].requests).map(([name, v]) => {
                  const old = before?.verbs.get(name);
                  return (
                    <tr key={name}>
                      <td>{name || "other"}</td>
                      <td>{before ? ((v.requests - (old?.requests ?? 0)) / ((now.at - before.at) / 1000)).toFixed(1) : "…"}</td>
                      <td>{v.requests}</td><td>{v.errors}</td>
                      <td>{v.measured ? `${((1000 * v.seconds) / v.measured).toFixed(1)} ms` : ""}</td>
                    </tr>
                  );
                })}
              </tbody>
            </table>
          </div>
          <h2>Requests by resource</h2>
          <div class="scroll" tabIndex={0} role="group" aria-label="Requests by resource">
            <table class="simple requests">
              <thead><tr><th>Resource</th><th>Per second</th><th>Since the start</th><th>Verbs</th></tr></thead>
              <tbody>
                {[...now.resources].sort((a, b) => b[1].total - a[1].total).slice(0, 20).map(([name, r]) => (
                  <tr key={name}>
                    <td>{name}</td>
                    <td>{before ? ((r.total - (before.resources.get(name)?.total ?? 0)) / ((now.at - before.at) / 1000)).toFixed(1) : "…"}</td>
                    <td>{r.total}</td>
                    <td>{[...r.byVerb].sort((a, b) => b[1] - a[1]).map(([verb, n]) => `${verb || "other"} ${n}`).join(", ")}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <p class="muted">The API server does not count requests by user. The audit log has the user of each request.</p>
          <h2>Objects by type</h2>
          <div class="scroll" tabIndex={0}>
            <table class="simple">
              <thead><tr><th>Type</th><th>Group</th><th>Objects</th></tr></thead>
              <tbody>
                {now.objects.slice(0, 20).map((s) => {
                  const [plural, ...group] = (s.labels.resource ?? "").split(".");
                  return <tr key={s.labels.group + s.labels.resource}><td>{plural}</td><td>{s.labels.group || group.join(".") || "core"}</td><td>{s.value}</td></tr>;
                })}
              </tbody>
            </table>
          </div>
        </>
      )}
      <Certificates />
    </section>
  );
}
