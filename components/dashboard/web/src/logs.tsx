// Logs of one or all pods of a workload.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { query, request } from "./api";
import { plural } from "./format";
import { useWatch } from "./stream";
import { Loading, notify, Problem } from "./ui";

/** Line is a record of a log. source is the pod and the container. */
export interface Line {
  time: string;
  source: string;
  text: string;
}

/** maxLines is the number of lines that are kept. */
const maxLines = 50_000;
/** maxStreams is the number of containers whose logs are followed. */
const maxStreams = 40;

/** Source is a container whose log is shown. */
interface Source {
  pod: string;
  container: string;
}

function containersOf(pod: any): string[] {
  return [...(pod.spec.containers ?? []), ...(pod.spec.initContainers ?? []), ...(pod.spec.ephemeralContainers ?? [])].map((c: any) => c.name);
}

export function Logs({ namespace, pod, labels }: { namespace: string; pod?: any; labels?: string }) {
  const watched = useWatch<any>(pod ? undefined : { path: `/api/v1/namespaces/${namespace}/pods`, view: "object", labels });
  const pods: any[] = pod ? [pod] : watched.list;
  const [container, setContainer] = useState("");
  const [previous, setPrevious] = useState(false);
  const [follow, setFollow] = useState(true);
  const [times, setTimes] = useState(false);
  const [wrap, setWrap] = useState(false);
  const [word, setWord] = useState("");

  const names = useMemo(() => [...new Set(pods.flatMap(containersOf))], [pods]);
  const sources = useMemo(() => {
    const list: Source[] = [];
    for (const p of pods) {
      for (const c of containersOf(p)) if (container === "" || c === container) list.push({ pod: p.metadata.name, container: c });
    }
    return list;
  }, [pods, container]);
  const key = sources.slice(0, maxStreams).map((s) => s.pod + "/" + s.container).sort().join(",");
  const { lines, error, version } = useLines(namespace, key, previous);
  const several = sources.length > 1;
  const shown = useMemo(() => {
    if (!word) return lines;
    const w = word.toLowerCase();
    return lines.filter((l) => l.text.toLowerCase().includes(w));
  }, [version, word]);

  const download = () => downloadLines(shown, several, pod?.metadata.name ?? namespace);
  const stored = "/logs" + query({ ns: namespace, l: labels, pod: pod?.metadata.name });

  if (!pod && watched.error) return <Problem error={watched.error} />;
  if (!pod && !watched.synced) return <Loading />;
  if (!pod && pods.length === 0) return <p class="empty">There are no pods.</p>;
  return (
    <div class="logs">
      <div class="toolbar">
        <label class="inline">Container
          <select value={container} onChange={(e) => setContainer(e.currentTarget.value)}>
            <option value="">All</option>
            {names.map((n) => <option key={n}>{n}</option>)}
          </select>
        </label>
        <input type="search" placeholder="Search" aria-label="Search in the log" value={word} onInput={(e) => setWord(e.currentTarget.value)} />
        <label class="check"><input type="checkbox" checked={follow} onChange={(e) => setFollow(e.currentTarget.checked)} /> Follow</label>
        <label class="check"><input type="checkbox" checked={previous} onChange={(e) => setPrevious(e.currentTarget.checked)} /> Previous</label>
        <label class="check"><input type="checkbox" checked={times} onChange={(e) => setTimes(e.currentTarget.checked)} /> Times</label>
        <label class="check"><input type="checkbox" checked={wrap} onChange={(e) => setWrap(e.currentTarget.checked)} /> Wrap</label>
        <span class="grow" />
        <span class="muted">{word ? `${shown.length} of ${plural(lines.length, "line")}` : plural(lines.length, "line")}</span>
        <a class="button" href={stored}>Search stored logs</a>
        <button onClick={download} disabled={shown.length === 0}>Download</button>
      </div>
      {sources.length > maxStreams && <p class="notice warn">The logs of {maxStreams} of {sources.length} containers are shown. Select a container.</p>}
      {error && lines.length === 0 && <p class="notice warn" role="status">{error}</p>}
      <LogView lines={shown} follow={follow} onScrollUp={() => setFollow(false)} times={times} several={several} wrap={wrap} word={word} />
    </div>
  );
}

/** downloadLines saves lines as a file. */
export function downloadLines(lines: Line[], sources: boolean, name: string): void {
  const text = lines.map((l) => `${l.time} ${sources ? l.source + " " : ""}${l.text}\n`).join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = name + ".log";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  notify(`Downloaded ${plural(lines.length, "line")}`);
}

/** useLines follows the logs of containers. key is a list of POD/CONTAINER. */
function useLines(namespace: string, key: string, previous: boolean) {
  const [state, setState] = useState({ version: 0, error: "" });
  const lines = useRef<Line[]>([]);
  useEffect(() => {
    lines.current = [];
    let scheduled = false;
    let sorted = true;
    const sources = key.split(",").filter(Boolean);
    const show = () => {
      if (scheduled) return;
      scheduled = true;
      setTimeout(() => {
        scheduled = false;
        if (!sorted) lines.current.sort((a, b) => (a.time < b.time ? -1 : a.time > b.time ? 1 : 0));
        sorted = true;
        if (lines.current.length > maxLines) lines.current.splice(0, lines.current.length - maxLines);
        setState((s) => ({ ...s, version: s.version + 1 }));
      }, 60);
    };
    setState((s) => ({ version: s.version + 1, error: "" }));
    const abort = new AbortController();
    const add = (line: Line) => {
      const last = lines.current.at(-1);
      if (last && last.time > line.time) sorted = false;
      lines.current.push(line);
      show();
    };
    for (const source of sources) {
      void followLog(namespace, source, previous, sources.length, abort.signal, add).catch((err) => {
        if (err.name !== "AbortError") setState((s) => ({ ...s, error: err.message }));
      });
    }
    return () => abort.abort();
  }, [namespace, key, previous]);
  return { lines: lines.current, ...state };
}

/** followLog calls add for each line of a container's log until the container terminates. */
async function followLog(namespace: string, source: string, previous: boolean, count: number, signal: AbortSignal, add: (l: Line) => void) {
  const [pod, container] = source.split("/");
  const q = query({ container, follow: !previous, previous, timestamps: true, tailLines: Math.max(100, Math.floor(5000 / count)) });
  const response = await request(`/api/v1/namespaces/${namespace}/pods/${pod}/log${q}`, { signal });
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop()!;
    for (const part of parts) {
      const space = part.indexOf(" ");
      add({ time: part.slice(0, space), source, text: plain(part.slice(space + 1)) });
    }
  }
}

/** escapes are the terminal sequences for colours. */
const escapes = /\x1b\[[0-9;]*[A-Za-z]/g;

/** plain returns a text without terminal sequences. */
export function plain(text: string): string {
  return text.replace(escapes, "");
}

const lineHeight = 18;

export function LogView(p: { lines: Line[]; follow: boolean; onScrollUp: () => void; times: boolean; several: boolean; wrap: boolean; word: string }) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const bottom = useRef(true);
  useLayoutEffect(() => {
    const el = box.current!;
    const measure = () => setView({ top: el.scrollTop, height: el.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(el);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (p.follow) {
      bottom.current = true;
      box.current!.scrollTop = box.current!.scrollHeight;
    }
  });
  const onScroll = () => {
    const el = box.current!;
    const atEnd = el.scrollTop + el.clientHeight >= el.scrollHeight - lineHeight;
    if (bottom.current && !atEnd && p.follow && el.scrollTop < view.top) p.onScrollUp();
    bottom.current = atEnd;
    setView({ top: el.scrollTop, height: el.clientHeight });
  };
  // Wrapped lines have different heights, so only the last ones are rendered.
  const first = p.wrap ? Math.max(0, p.lines.length - 2000) : Math.max(0, Math.floor(view.top / lineHeight) - 20);
  const last = p.wrap ? p.lines.length : Math.min(p.lines.length, Math.ceil((view.top + view.height) / lineHeight) + 20);
  return (
    <div class={p.wrap ? "log wrap" : "log"} ref={box} onScroll={onScroll} tabIndex={0} role="log" aria-label="Log" aria-live="off">
      <div style={p.wrap ? undefined : { height: p.lines.length * lineHeight + "px", paddingTop: first * lineHeight + "px" }}>
        {p.lines.slice(first, last).map((l, i) => (
          <div class="line" key={first + i}>
            {p.times && <span class="muted">{l.time.slice(0, 23)} </span>}
            {p.several && <span class="source">{l.source} </span>}
            <Marked text={l.text} word={p.word} />
          </div>
        ))}
      </div>
    </div>
  );
}

/** Marked marks where a word occurs. */
function Marked({ text, word }: { text: string; word: string }) {
  if (!word) return <>{text || " "}</>;
  const parts = [];
  const lower = text.toLowerCase(), w = word.toLowerCase();
  let from = 0;
  for (let at = lower.indexOf(w); at >= 0; at = lower.indexOf(w, from)) {
    parts.push(text.slice(from, at), <mark key={at}>{text.slice(at, at + w.length)}</mark>);
    from = at + w.length;
  }
  return <>{parts}{text.slice(from)}</>;
}
