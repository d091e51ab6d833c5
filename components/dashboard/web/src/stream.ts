// The stream of the page: watches of API objects over one WebSocket. It reconnects automatically.
import { useEffect, useState } from "preact/hooks";
import { connect, get, loggedIn } from "./api";

/** Spec describes a watch. */
export interface Spec {
  path: string;
  view: "table" | "object" | "pods" | "nodes";
  labels?: string;
  fields?: string;
}

export interface Failure {
  code: number;
  message: string;
  retries?: boolean;
}

/** Column is a column of a table. */
export interface Column {
  name: string;
  type: string;
  format: string;
  description: string;
  priority: number;
}

interface Message {
  id: number;
  begin?: boolean;
  columns?: Column[];
  objects?: { k: string; v: any }[];
  deleted?: string[];
  synced?: boolean;
  error?: Failure;
}

/** Collection is the objects of a watch. */
export class Collection<T = any> {
  objects = new Map<string, T>();
  columns: Column[] = [];
  /** synced means that objects contains all objects. */
  synced = false;
  error?: Failure;
  users = 0;
  private next?: Map<string, T>; // the objects of a list that replaces objects
  private listeners = new Set<() => void>();
  private scheduled = false;

  constructor(
    readonly id: number,
    readonly spec: Spec,
  ) {}

  apply(m: Message): void {
    if (m.begin) {
      // The first objects appear when they arrive. Later lists replace the objects when they are complete.
      if (this.synced) this.next = new Map();
      else this.objects = new Map();
    }
    if (m.columns) this.columns = m.columns;
    const target = this.next ?? this.objects;
    for (const o of m.objects ?? []) target.set(o.k, o.v);
    for (const key of m.deleted ?? []) target.delete(key);
    if (m.synced) {
      if (this.next) this.objects = this.next;
      this.next = undefined;
      this.synced = true;
    }
    this.error = m.error;
    this.notify();
  }

  subscribe(f: () => void): () => void {
    this.listeners.add(f);
    return () => this.listeners.delete(f);
  }

  /** notify calls the listeners once before the next frame. */
  private notify(): void {
    if (this.scheduled) return;
    this.scheduled = true;
    const run = () => {
      this.scheduled = false;
      for (const f of this.listeners) f();
    };
    if (document.hidden) setTimeout(run, 100);
    else requestAnimationFrame(run);
  }
}

export type ConnectionState = "connecting" | "connected" | "reconnecting";

/** linger is how long a watch that is not used stays open, so that the back button shows its objects immediately. */
const linger = 10_000;

class Stream {
  state: ConnectionState = "connecting";
  private socket?: WebSocket;
  private readonly byID = new Map<number, Collection>();
  private readonly byKey = new Map<string, Collection>();
  private nextID = 1;
  private delay = 250;
  private timer?: ReturnType<typeof setTimeout>;
  private readonly listeners = new Set<() => void>();

  /** start connects. */
  start(): void {
    if (this.socket || !loggedIn()) return;
    const socket = connect("/stream", "v1.stream.dashboard.hyperkube.io");
    this.socket = socket;
    socket.onopen = () => {
      this.delay = 250;
      this.setState("connected");
      for (const c of this.byID.values()) this.open(c);
    };
    socket.onmessage = (e) => {
      for (const m of JSON.parse(e.data) as Message[]) this.byID.get(m.id)?.apply(m);
    };
    socket.onclose = () => {
      this.socket = undefined;
      if (!loggedIn()) return;
      this.setState("reconnecting");
      // The browser does not report why a WebSocket is refused. This request does, and ends the session if it is over.
      get("/session").catch(() => {});
      this.timer = setTimeout(() => this.start(), this.delay);
      this.delay = Math.min(this.delay * 2, 5000);
    };
  }

  /** reconnect connects now instead of after the delay. */
  reconnect(): void {
    clearTimeout(this.timer);
    this.start();
  }

  private setState(state: ConnectionState): void {
    this.state = state;
    for (const f of this.listeners) f();
  }

  onState(f: () => void): () => void {
    this.listeners.add(f);
    return () => this.listeners.delete(f);
  }

  private open(c: Collection): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ op: "open", id: c.id, ...c.spec }));
  }

  /** use returns the collection of a watch, which it opens if necessary. The caller must release it. */
  use(spec: Spec): Collection {
    const key = JSON.stringify([spec.path, spec.view, spec.labels ?? "", spec.fields ?? ""]);
    let c = this.byKey.get(key);
    if (c?.error && !c.error.retries && c.users === 0) {
      this.close(key, c);
      c = undefined;
    }
    if (!c) {
      c = new Collection(this.nextID++, spec);
      this.byKey.set(key, c);
      this.byID.set(c.id, c);
      this.open(c);
    }
    c.users++;
    return c;
  }

  release(c: Collection): void {
    c.users--;
    setTimeout(() => {
      if (c.users > 0) return;
      for (const [key, one] of this.byKey) if (one === c) this.close(key, c);
    }, linger);
  }

  private close(key: string, c: Collection): void {
    this.byKey.delete(key);
    this.byID.delete(c.id);
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ op: "close", id: c.id }));
  }
}

export const stream = new Stream();

/** Watched is the state of a watch when the component was rendered. */
export interface Watched<T> {
  list: T[];
  columns: Column[];
  synced: boolean;
  error?: Failure;
  /** version changes whenever the objects change. */
  version: number;
}

const nothing: Watched<any> = { list: [], columns: [], synced: false, version: 0 };

/** useWatch watches objects while the component is shown. Without a spec, it watches nothing. */
export function useWatch<T = any>(spec: Spec | undefined): Watched<T> {
  const key = spec ? JSON.stringify(spec) : "";
  const [state, setState] = useState<{ key: string; watched: Watched<T> }>({ key: "", watched: nothing });
  useEffect(() => {
    if (!spec) return;
    const c = stream.use(spec);
    let version = 0;
    const update = () =>
      setState({ key, watched: { list: [...c.objects.values()], columns: c.columns, synced: c.synced, error: c.error, version: ++version } });
    update();
    const stop = c.subscribe(update);
    return () => {
      stop();
      stream.release(c);
    };
  }, [key]);
  // What was watched before must not be shown for another spec.
  return state.key === key ? state.watched : nothing;
}
