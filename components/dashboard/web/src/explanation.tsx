// Why a pod or workload is in its state, as the command hyperkube explain-pod explains it.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, query } from "./api";
import { pageOf, pods as podType, type Resource } from "./discovery";
import { Problem } from "./ui";

interface Finding {
  reason: string;
  severity: "problem" | "info";
  sentence: string;
  remedy?: string;
}

interface Explained {
  kind: string;
  namespace: string;
  name: string;
  state: string;
  node?: string;
  findings: Finding[] | null;
  unreadable?: string[];
}

/** explained reports whether the server explains objects of a type. */
export function explained(r: Resource): boolean {
  return (r.group === "" && r.kind === "Pod") || (r.group === "apps" && ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"].includes(r.kind)) || (r.group === "batch" && r.kind === "Job");
}

/** delay is the time in milliseconds between a change of the object and the request for its explanation. A pod that starts changes often. */
const delay = 300;

/** useExplanation loads the explanation of an object, and again after the object has changed. The last one stays until the next arrives. */
function useExplanation(kind: string, object: any) {
  const { namespace, name, resourceVersion } = object.metadata;
  const [state, set] = useState<{ value?: Explained; error?: unknown }>({});
  const [round, setRound] = useState(0);
  const first = useRef(true);
  useEffect(() => {
    const abort = new AbortController();
    const load = () =>
      get<Explained>("/explanation" + query({ namespace, name: kind.toLowerCase() + "/" + name }), "application/json", abort.signal).then(
        (value) => set({ value }),
        (error) => abort.signal.aborted || set((s) => ({ ...s, error })),
      );
    const timer = setTimeout(load, first.current ? 0 : delay);
    first.current = false;
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [namespace, name, kind, resourceVersion, round]);
  return { ...state, reload: () => setRound((n) => n + 1) };
}

/** Explanation shows why a pod or workload is in its state: problems with remedies, then the other facts. */
export function Explanation({ resource, object }: { resource: Resource; object: any }) {
  const { value, error, reload } = useExplanation(resource.kind, object);
  if (!value) {
    // The user may read the object, but not everything else. The rest of the page is still useful.
    return error ? <Problem error={error} onRetry={reload} /> : <p class="muted explanation" role="status">Looking for problems…</p>;
  }
  const findings = value.findings ?? [];
  const problems = findings.filter((f) => f.severity === "problem");
  const facts = findings.filter((f) => f.severity !== "problem");
  const other = value.kind === "Pod" && value.name !== object.metadata.name;
  return (
    <section class="explanation" aria-labelledby="explanation" aria-live="polite">
      <h2 id="explanation">State</h2>
      <p>
        {value.kind} {other ? <a href={pageOf(podType, value.namespace, value.name)}>{value.name}</a> : value.name} is {value.state}{value.node && ` on node ${value.node}`}.
        {problems.length === 0 && " No problem was found."}{" "}
        <button class="plain link" onClick={reload}>Check again</button>
      </p>
      {problems.map((f, i) => (
        <div class="notice bad" key={f.reason + i}>
          <strong>{f.sentence}</strong>
          {f.remedy && <p>Remedy: {f.remedy}</p>}
        </div>
      ))}
      {facts.length > 0 && (
        <details open={problems.length > 0}>
          <summary>How it got there</summary>
          <ul>{facts.map((f, i) => <li key={f.reason + i}>{f.sentence}{f.remedy && <span class="muted"> {f.remedy}</span>}</li>)}</ul>
        </details>
      )}
      {value.unreadable && <p class="notice warn">Causes may be missing, because your user may not read: {value.unreadable.join(", ")}.</p>}
    </section>
  );
}
