// The history of metrics, and current metrics of clusters without it.
import { useEffect, useState } from "preact/hooks";
import { get, query } from "./api";
import { objectPath, collectionPath, type Resource } from "./discovery";
import { quantity } from "./format";

/** Samples are the CPU and memory usage of an object. Unknown samples are null. */
export interface Samples {
  /** times are in seconds since 1970, from old to new. */
  times: number[];
  /** cpu is in cores, memory in bytes. */
  cpu: (number | null)[];
  memory: (number | null)[];
  /** step is the time between two samples in seconds. It is 0 if there is only the current value. */
  step: number;
}

interface History {
  start: string;
  stepSeconds: number;
  series: Record<string, { values: (number | null)[] }>;
}

/** Source is the API with the metrics of an object. */
export interface Source {
  resource: Resource;
  history: boolean;
}

/** source returns the API with the metrics of nodes or pods, the one with a history if the cluster has both, or undefined if it has none. */
export function source(all: Resource[], plural: "nodes" | "pods"): Source | undefined {
  const find = (group: string) => all.find((r) => r.group === group && r.plural === plural);
  const history = find("history.metrics.hyperkube.io");
  if (history) return { resource: history, history: true };
  const current = find("metrics.k8s.io");
  return current && { resource: current, history: false };
}

/** add adds up the histories of several objects by time. */
export function add(items: History[]): Samples {
  const step = items[0]?.stepSeconds ?? 15;
  const byTime = new Map<number, { cpu: number | null; memory: number | null }>();
  const plus = (sum: number | null, value: number | null | undefined) => (value == null ? sum : (sum ?? 0) + value);
  for (const item of items) {
    const start = Math.round(Date.parse(item.start) / 1000 / step);
    const { cpu, memory } = item.series;
    for (let i = 0; i < Math.max(cpu?.values.length ?? 0, memory?.values.length ?? 0); i++) {
      const old = byTime.get(start + i) ?? { cpu: null, memory: null };
      byTime.set(start + i, { cpu: plus(old.cpu, cpu?.values[i]), memory: plus(old.memory, memory?.values[i]) });
    }
  }
  const ticks = [...byTime.keys()].sort((a, b) => a - b);
  return { step, times: ticks.map((t) => t * step), cpu: ticks.map((t) => byTime.get(t)!.cpu), memory: ticks.map((t) => byTime.get(t)!.memory) };
}

/** current returns the sum of the current metrics of nodes or of one pod as a single sample. */
function current(items: any[]): Samples {
  const usages: any[] = items.flatMap((i) => (i.containers ? i.containers.map((c: any) => c.usage) : [i.usage]));
  const sum = (name: string) => usages.reduce((t, u) => t + quantity(u?.[name]), 0);
  return { step: 0, times: [Math.round(Date.now() / 1000)], cpu: [sum("cpu")], memory: [sum("memory")] };
}

async function load(from: Source, namespace: string, name: string, range: string, signal: AbortSignal): Promise<Samples> {
  const path = name ? objectPath(from.resource, namespace, name) : collectionPath(from.resource);
  const answer = await get(path + (from.history ? query({ range }) : ""), "application/json", signal);
  const items = name ? [answer] : answer.items;
  return from.history ? add(items) : current(items);
}

/** useSamples loads the samples of an object, or the sum of all nodes without a name, and again when there is a new sample. */
export function useSamples(from: Source, namespace: string, name: string, range: string) {
  const [state, set] = useState<{ range: string; value?: Samples; error?: unknown }>({ range });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout>;
    // Metrics have no events. The period is that of the samples.
    const again = (seconds: number) => (timer = setTimeout(() => (document.hidden ? again(seconds) : void next()), seconds * 1000));
    const next = async () => {
      try {
        const value = await load(from, namespace, name, range, abort.signal);
        set({ range, value });
        again(Math.min(value.step || 15, 60));
      } catch (error) {
        if (abort.signal.aborted) return;
        set((s) => ({ range, value: s.range === range ? s.value : undefined, error }));
        again(15); // a new object has no sample yet
      }
    };
    void next();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [from.resource, from.history, namespace, name, range, round]);
  return { ...(state.range === range ? state : { range }), reload: () => setRound((n) => n + 1) };
}
