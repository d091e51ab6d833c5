// The page with Services, their endpoints and routes, and the connections that NetworkPolicies allow.
import { useMemo } from "preact/hooks";
import { Connections } from "./connections";
import { collectionPath, ofKind, pageOf, pods as podType, type Resource, type TypeRef } from "./discovery";
import { plural } from "./format";
import { setQuery, type Route } from "./router";
import { useWatch } from "./stream";
import { Loading, Problem } from "./ui";

const serviceType: TypeRef = { group: "", version: "v1", plural: "services" };
const sliceType: TypeRef = { group: "discovery.k8s.io", version: "v1", plural: "endpointslices" };
const ingressType: TypeRef = { group: "networking.k8s.io", version: "v1", plural: "ingresses" };
const policyType: TypeRef = { group: "networking.k8s.io", version: "v1", plural: "networkpolicies" };

interface Endpoint {
  address: string;
  pod: string;
  ready: boolean;
}

/** endpointsOf returns the endpoints of EndpointSlices, each once. */
function endpointsOf(slices: any[]): Endpoint[] {
  const found = new Map<string, Endpoint>();
  for (const e of slices.flatMap((s) => s.endpoints ?? [])) {
    const pod = e.targetRef?.kind === "Pod" ? e.targetRef.name : "";
    const address = e.addresses?.[0] ?? "";
    found.set(pod || address, { address, pod, ready: e.conditions?.ready !== false });
  }
  return [...found.values()].sort((a, b) => Number(a.ready) - Number(b.ready) || a.pod.localeCompare(b.pod));
}

/** ingressBackends returns the names of the Services of an Ingress. */
function ingressBackends(o: any): string[] {
  const all = [o.spec?.defaultBackend, ...(o.spec?.rules ?? []).flatMap((r: any) => (r.http?.paths ?? []).map((p: any) => p.backend))];
  return all.map((b) => b?.service?.name).filter(Boolean);
}

/** leadsTo reports whether an HTTPRoute has a Service as a backend. */
function leadsTo(route: any, namespace: string, name: string): boolean {
  return (route.spec?.rules ?? []).flatMap((r: any) => r.backendRefs ?? [])
    .some((b: any) => (b.kind ?? "Service") === "Service" && !b.group && b.name === name && (b.namespace ?? route.metadata.namespace) === namespace);
}

export function NetworkPage({ all, namespace, route }: { all: Resource[]; namespace: string; route: Route }) {
  const routeType = ofKind(all, "gateway.networking.k8s.io/v1", "HTTPRoute");
  const watch = (type: TypeRef | undefined) => useWatch<any>(type && { path: collectionPath(type, namespace), view: "object" });
  const services = watch(serviceType);
  const slices = watch(sliceType);
  const ingresses = watch(ingressType);
  const routes = watch(routeType);
  const policies = watch(policyType);
  const podList = useWatch<any>({ path: collectionPath(podType, namespace), view: "table" });
  const bySlice = useMemo(() => {
    const found = new Map<string, any[]>();
    for (const s of slices.list) {
      const key = `${s.metadata.namespace}/${s.metadata.labels?.["kubernetes.io/service-name"]}`;
      found.set(key, [...(found.get(key) ?? []), s]);
    }
    return found;
  }, [slices.version]);
  const list = [...services.list].sort((a, b) => a.metadata.namespace.localeCompare(b.metadata.namespace) || a.metadata.name.localeCompare(b.metadata.name));
  const names = podList.list.map((p) => `${p.ns}/${p.name}`).sort();
  const chosen = route.query.get("pod") ?? "";
  const [ns, pod] = chosen.split("/");
  const version = policies.list.map((p) => p.metadata.uid + p.metadata.resourceVersion).join() + podList.list.length;
  return (
    <section class="page">
      <header class="page-head"><h1>Network</h1><span class="muted">{plural(list.length, "Service")}</span></header>
      {services.error && <Problem error={services.error} />}
      {!services.synced && !services.error && <Loading />}
      {list.length > 0 && (
        <div class="scroll" tabIndex={0} role="group" aria-label="Services">
          <table class="simple services">
            <thead><tr><th>Service</th><th>Type</th><th>Ports</th><th>Endpoints</th><th>Routes</th></tr></thead>
            <tbody>
              {list.map((s) => {
                const { namespace: at, name, uid } = s.metadata;
                const own = bySlice.get(`${at}/${name}`) ?? [];
                const endpoints = endpointsOf(own);
                const ready = endpoints.filter((e) => e.ready).length;
                return (
                  <tr key={uid}>
                    <td><a href={pageOf(serviceType, at, name)}>{name}</a><div class="muted small">{at}</div></td>
                    <td>{s.spec.type}<div class="muted small">{s.spec.clusterIP ?? s.spec.externalName}</div></td>
                    <td>{(s.spec.ports ?? []).map((p: any) => `${p.port}/${p.protocol ?? "TCP"}`).join(", ")}</td>
                    <td>
                      {s.spec.type !== "ExternalName" && <span class={"status " + (ready === 0 ? "bad" : ready < endpoints.length ? "warn" : "good")}>{ready} of {endpoints.length} ready</span>}
                      {endpoints.slice(0, 10).map((e) => <div key={e.pod + e.address} class="small">{e.pod ? <a href={pageOf(podType, at, e.pod)}>{e.pod}</a> : e.address}{!e.ready && " (not ready)"}</div>)}
                      {endpoints.length > 10 && <div class="small">and {endpoints.length - 10} more</div>}
                      <div class="small">{own.map((o) => <a key={o.metadata.uid} class="muted" href={pageOf(sliceType, at, o.metadata.name)}>{o.metadata.name} </a>)}</div>
                    </td>
                    <td>
                      {ingresses.list.filter((i) => i.metadata.namespace === at && ingressBackends(i).includes(name)).map((i) => <div key={i.metadata.uid} class="small"><a href={pageOf(ingressType, at, i.metadata.name)}>Ingress {i.metadata.name}</a></div>)}
                      {routeType && routes.list.filter((r) => leadsTo(r, at, name)).map((r) => <div key={r.metadata.uid} class="small"><a href={pageOf(routeType, r.metadata.namespace, r.metadata.name)}>HTTPRoute {r.metadata.name}</a></div>)}
                    </td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      )}
      <h2>Allowed connections</h2>
      <label class="inline">Pod
        <select name="pod" value={chosen} onChange={(e) => setQuery({ pod: e.currentTarget.value })}>
          <option value="">Select a pod</option>
          {chosen && !names.includes(chosen) && <option value={chosen}>{chosen}</option>}
          {names.map((n) => <option key={n} value={n}>{n}</option>)}
        </select>
      </label>
      {pod && <Connections namespace={ns} name={pod} version={version} />}
    </section>
  );
}
