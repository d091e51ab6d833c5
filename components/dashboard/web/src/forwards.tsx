// Ports of this machine that are forwarded to pods and Services.
import { useEffect, useState } from "preact/hooks";
import { get, query, send } from "./api";
import { pageOf, pods as podType, type TypeRef } from "./discovery";
import { attempt, Loading, Problem } from "./ui";

interface Forward {
  id: number;
  kind: "Pod" | "Service";
  namespace: string;
  name: string;
  port: number;
  localPort: number;
  pod: string;
  podPort: number;
  error?: string;
}

interface State {
  version: number;
  forwards: Forward[];
}

const services: TypeRef = { group: "", version: "v1", plural: "services" };

/** useForwards returns the forwards. The server responds to the next request when the list has changed. */
function useForwards(): { value?: State; error?: unknown } {
  const [state, set] = useState<{ value?: State; error?: unknown }>({});
  useEffect(() => {
    const abort = new AbortController();
    const follow = async () => {
      for (let after = 0; ; ) {
        const value = await get<State>("/portforwards" + query({ after }), "application/json", abort.signal);
        after = value.version;
        set({ value });
      }
    };
    follow().catch((error) => abort.signal.aborted || set((s) => ({ ...s, error })));
    return () => abort.abort();
  }, []);
  return state;
}

/** portsOf returns the TCP ports of a pod or Service with their names. */
function portsOf(object: any): { port: number; name: string }[] {
  const all: any[] = object.spec.ports ?? (object.spec.containers ?? []).flatMap((c: any) => c.ports ?? []);
  return all.filter((p) => (p.protocol ?? "TCP") === "TCP").map((p) => ({ port: p.port ?? p.containerPort, name: p.name ?? "" }));
}

/** Forwarding starts, lists and stops the forwards to a pod or Service. */
export function Forwarding({ kind, object }: { kind: "Pod" | "Service"; object: any }) {
  const { namespace, name } = object.metadata;
  const { value, error } = useForwards();
  const [busy, setBusy] = useState(false);
  const ports = portsOf(object);
  const submit = async (e: Event) => {
    e.preventDefault();
    const data = new FormData(e.currentTarget as HTMLFormElement);
    setBusy(true);
    await attempt(() => send("POST", "/portforwards", { kind, namespace, name, port: Number(data.get("port")), localPort: Number(data.get("local")) }), "");
    setBusy(false);
  };
  const own = value?.forwards.filter((f) => f.kind === kind && f.namespace === namespace && f.name === name) ?? [];
  return (
    <section class="forwarding" aria-labelledby="forwarding">
      <h2 id="forwarding">Port forwarding</h2>
      {error ? <Problem error={error} /> : null}
      <form class="toolbar" onSubmit={submit}>
        <label class="inline">Port <input name="port" type="number" min="1" max="65535" required list="ports" defaultValue={ports[0]?.port} /></label>
        <datalist id="ports">{ports.map((p) => <option key={p.port} value={p.port}>{p.name}</option>)}</datalist>
        <label class="inline">Local port <input name="local" type="number" min="1" max="65535" placeholder="a free one" /></label>
        <button disabled={busy}>Forward</button>
      </form>
      {own.length > 0 && <List forwards={own} />}
    </section>
  );
}

/** ForwardsPage lists all forwards. */
export function ForwardsPage() {
  const { value, error } = useForwards();
  return (
    <section class="page">
      <header class="page-head"><h1>Port forwards</h1></header>
      <p class="muted">Ports of 127.0.0.1 that are forwarded to pods until you stop them, or until the command <code>hyperkube dashboard</code> exits. To start one, open a pod or Service.</p>
      {error ? <Problem error={error} /> : null}
      {!value && !error && <Loading rows={2} />}
      {value && (value.forwards.length > 0 ? <List forwards={value.forwards} /> : <p class="empty">No port is forwarded.</p>)}
    </section>
  );
}

function List({ forwards }: { forwards: Forward[] }) {
  return (
    <div class="scroll" tabIndex={0}>
      <table class="simple">
        <thead><tr><th>Address</th><th>To</th><th>Pod</th><th>State</th><th><span class="hidden">Action</span></th></tr></thead>
        <tbody>
          {forwards.map((f) => {
            const local = `127.0.0.1:${f.localPort}`;
            return (
              <tr key={f.id}>
                <td>{f.error ? local : <a href={`http://${local}/`} target="_blank" rel="noreferrer noopener">{local}</a>}</td>
                <td><a href={pageOf(f.kind === "Pod" ? podType : services, f.namespace, f.name)}>{f.kind} {f.namespace}/{f.name}</a> port {f.port}</td>
                <td>{f.pod} port {f.podPort}</td>
                <td>{f.error ? <span class="status bad">Stopped: {f.error}</span> : <span class="status good">Forwarding</span>}</td>
                <td><button aria-label={`Stop ${local}`} onClick={() => attempt(() => send("DELETE", "/portforwards/" + f.id), "")}>{f.error ? "Remove" : "Stop"}</button></td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
