// The page that searches the stored logs of pods, which the add-on logging collects.
import { useEffect, useState } from "preact/hooks";
import { get, query, request, type ApiError } from "./api";
import { plural } from "./format";
import { downloadLines, LogView, plain, type Line } from "./logs";
import { setQuery, type Route } from "./router";
import { Loading, Problem, useLoad } from "./ui";

const api = "/apis/logs.hyperkube.io/v1alpha1";

/** maxLines is the number of the newest records that are shown. */
const maxLines = 10_000;

const ranges: [string, string][] = [["15m", "15 minutes"], ["1h", "1 hour"], ["6h", "6 hours"], ["24h", "1 day"], ["all", "All"]];

const seconds: Record<string, number> = { "15m": 900, "1h": 3600, "6h": 6 * 3600, "24h": 86400 };

/** Search is what to search for. It is part of the address of the page. */
interface Search {
  namespace: string;
  text: string;
  /** expression means that text is a regular expression (RE2). Otherwise the records that contain it are found, whatever their case. */
  expression: boolean;
  since: string;
  selector: string;
  pod: string;
}

/** available reports whether the cluster has the add-on. A request of its API would fail otherwise. */
async function available(): Promise<boolean> {
  const list = await get("/apis");
  return (list.groups ?? []).some((g: any) => g.name === "logs.hyperkube.io");
}

export function LogSearchPage({ route, namespace }: { route: Route; namespace: string }) {
  const on = useLoad("available", available);
  return (
    <section class="page fill">
      <header class="page-head"><h1>Log search</h1><span class="muted">{namespace ? "namespace " + namespace : "all namespaces"}</span></header>
      {on.error ? <Problem error={on.error} onRetry={on.reload} /> : null}
      {on.value === undefined && !on.error && <Loading rows={3} />}
      {on.value === false && (
        <p class="notice warn" role="status">
          Log collection is off in this cluster. To enable it, run <code>hyperkube addon enable logging</code>. The logs of pods that exist are on the pages of the pods.
        </p>
      )}
      {on.value && <SearchLogs route={route} namespace={namespace} />}
    </section>
  );
}

function SearchLogs({ route, namespace }: { route: Route; namespace: string }) {
  const q = route.query;
  const search: Search = {
    namespace, text: q.get("q") ?? "", expression: q.get("re") === "1", since: q.get("since") ?? "1h", selector: q.get("l") ?? "", pod: q.get("pod") ?? "",
  };
  const [round, setRound] = useState(0);
  const [times, setTimes] = useState(true);
  const [wrap, setWrap] = useState(false);
  const { lines, warnings, error, busy } = useSearch(search, round);
  const submit = (e: Event) => {
    e.preventDefault();
    const data = new FormData(e.currentTarget as HTMLFormElement);
    const value = (name: string) => ((data.get(name) as string | null) ?? "").trim();
    setQuery({ q: value("q"), re: data.get("re") ? "1" : "", since: value("since"), l: value("l"), pod: value("pod"), ns: namespace }, false);
    setRound((n) => n + 1);
  };
  return (
    <div class="logs">
      <form class="toolbar" role="search" onSubmit={submit} key={location.search}>
        <input type="search" name="q" placeholder="Text" aria-label="Text" defaultValue={search.text} />
        <label class="check"><input type="checkbox" name="re" defaultChecked={search.expression} /> Regular expression</label>
        <label class="inline">Since
          <select name="since">{ranges.map(([id, label]) => <option key={id} value={id} selected={id === search.since}>{label}</option>)}</select>
        </label>
        <label class="inline">Labels <input name="l" placeholder="app=web" defaultValue={search.selector} /></label>
        <label class="inline">Pod <input name="pod" defaultValue={search.pod} /></label>
        <button class="primary">Search</button>
      </form>
      <div class="toolbar">
        <label class="check"><input type="checkbox" checked={times} onChange={(e) => setTimes(e.currentTarget.checked)} /> Times</label>
        <label class="check"><input type="checkbox" checked={wrap} onChange={(e) => setWrap(e.currentTarget.checked)} /> Wrap</label>
        <span class="grow" />
        <span class="muted" role="status">{busy ? "Searching…" : plural(lines.length, "record")}</span>
        <button disabled={lines.length === 0} onClick={() => downloadLines(lines, true, "search")}>Download</button>
      </div>
      {warnings.map((w) => <p key={w} class="notice warn" role="status">{w}</p>)}
      {error ? <Failed error={error} /> : null}
      {lines.length === maxLines && <p class="notice warn">The newest {maxLines} records are shown. Narrow the search to see others.</p>}
      {!error && !busy && lines.length === 0 && <p class="empty">No record matches.</p>}
      {lines.length > 0 && <LogView lines={lines} follow={false} onScrollUp={() => {}} times={times} several wrap={wrap} word={search.expression ? "" : search.text} />}
    </div>
  );
}

function Failed({ error }: { error: ApiError }) {
  if (error.code === 503) {
    return <p class="notice warn" role="alert">The logging agents are not ready. See <code>kubectl -n kube-system get pods -l k8s-app=hyperkube-logging</code>, and search again.</p>;
  }
  return <Problem error={error} />;
}

/** useSearch searches when the search or the round changes. */
function useSearch(search: Search, round: number) {
  const [state, set] = useState<{ lines: Line[]; warnings: string[]; error?: ApiError; busy: boolean }>({ lines: [], warnings: [], busy: true });
  useEffect(() => {
    const abort = new AbortController();
    set((s) => ({ ...s, error: undefined, busy: true }));
    run(search, abort.signal).then(
      (found) => set({ ...found, busy: false }),
      (error) => abort.signal.aborted || set({ lines: [], warnings: [], error, busy: false }),
    );
    return () => abort.abort();
  }, [JSON.stringify(search), round]);
  return state;
}

async function run(s: Search, signal: AbortSignal): Promise<{ lines: Line[]; warnings: string[] }> {
  const since = seconds[s.since];
  const q = query({
    grep: s.text && (s.expression ? s.text : "(?i)" + s.text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")),
    sinceTime: since && new Date(Date.now() - since * 1000).toISOString(),
    labelSelector: s.selector, pod: s.pod, tailLines: maxLines,
  });
  const response = await request(api + (s.namespace ? `/namespaces/${s.namespace}` : "") + "/logs" + q, { signal });
  const lines: Line[] = [];
  const warnings: string[] = [];
  for (const text of (await response.text()).split("\n")) {
    if (!text) continue;
    const l = JSON.parse(text);
    if (l.warning) warnings.push(l.warning);
    else lines.push({ time: l.time, source: `${s.namespace ? "" : l.namespace + "/"}${l.pod}/${l.container}`, text: plain(l.text) });
  }
  return { lines, warnings };
}
