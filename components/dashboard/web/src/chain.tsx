// The chain of a workload as a diagram: Deployment, ReplicaSets, Pods, EndpointSlices, Services.
import { useMemo } from "preact/hooks";
import { collectionPath, pageOf, pods as podType, type Resource, type TypeRef } from "./discovery";
import { plural, tone } from "./format";
import { useWatch } from "./stream";

const sets: TypeRef = { group: "apps", version: "v1", plural: "replicasets" };
const services: TypeRef = { group: "", version: "v1", plural: "services" };
const slices: TypeRef = { group: "discovery.k8s.io", version: "v1", plural: "endpointslices" };

interface Box {
  id: string;
  kind: string;
  name: string;
  /** state is a short text, such as "2 of 3 ready". */
  state: string;
  tone: string;
  href: string;
}

interface Chain {
  columns: Box[][];
  /** edges are pairs of IDs of boxes. */
  edges: [string, string][];
  /** hidden is the number of pods that are not shown. */
  hidden: number;
}

/** maxPods is the number of pods that are shown. The list below the diagram has all. */
const maxPods = 12;

/** podBox returns the box of a pod. */
function podBox(pod: any): Box {
  const waiting = (pod.status?.containerStatuses ?? []).map((s: any) => s.state?.waiting?.reason).find(Boolean);
  const ready = pod.status?.conditions?.some((c: any) => c.type === "Ready" && c.status === "True");
  const phase = pod.status?.phase ?? "Pending";
  const state = pod.metadata.deletionTimestamp ? "Terminating" : waiting ?? (phase === "Running" && !ready ? "NotReady" : phase);
  return { id: pod.metadata.uid, kind: "Pod", name: pod.metadata.name, state, tone: tone(state), href: pageOf(podType, pod.metadata.namespace, pod.metadata.name) };
}

/** matches reports whether a selector of a Service selects labels. */
function matches(selector: Record<string, string> | undefined, labels: Record<string, string> | undefined): boolean {
  const pairs = Object.entries(selector ?? {});
  return pairs.length > 0 && pairs.every(([k, v]) => labels?.[k] === v);
}

/** build returns the chain of a workload. */
function build(resource: Resource, object: any, setList: any[], podList: any[], serviceList: any[], sliceList: any[]): Chain {
  const { namespace, uid, name } = object.metadata;
  const owned = (o: any, owner: string) => o.metadata.ownerReferences?.some((r: any) => r.controller && r.uid === owner);
  const edges: [string, string][] = [];
  const amount = (ready: number, want: number) => ({ state: `${ready} of ${want} ready`, tone: ready >= want ? "good" : "warn" });
  const status = object.status ?? {};
  const top: Box = {
    id: uid, kind: resource.kind, name, href: pageOf(resource, namespace, name),
    ...amount(status.readyReplicas ?? status.numberReady ?? 0, object.spec.replicas ?? status.desiredNumberScheduled ?? 1),
  };
  const active = resource.kind === "Deployment" ? setList.filter((s) => owned(s, uid) && (s.spec.replicas > 0 || s.status?.replicas > 0)) : [];
  const setBoxes = active.map((s): Box => {
    edges.push([uid, s.metadata.uid]);
    return { id: s.metadata.uid, kind: "ReplicaSet", name: s.metadata.name, href: pageOf(sets, namespace, s.metadata.name), ...amount(s.status?.readyReplicas ?? 0, s.spec.replicas ?? 0) };
  });
  const owners = active.length > 0 ? active.map((s) => s.metadata.uid) : [uid];
  const own = podList.filter((p) => owners.some((o) => owned(p, o))).sort((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1));
  const shown = own.slice(0, maxPods);
  for (const p of shown) edges.push([owners.find((o) => owned(p, o))!, p.metadata.uid]);
  const selected = serviceList.filter((s) => matches(s.spec.selector, object.spec.template?.metadata?.labels));
  const sliceBoxes: Box[] = [];
  for (const s of selected) {
    for (const slice of sliceList.filter((one) => one.metadata.labels?.["kubernetes.io/service-name"] === s.metadata.name)) {
      const endpoints: any[] = slice.endpoints ?? [];
      const ready = endpoints.filter((e) => e.conditions?.ready !== false);
      sliceBoxes.push({
        id: slice.metadata.uid, kind: "EndpointSlice", name: slice.metadata.name, state: `${ready.length} ready`, tone: ready.length > 0 ? "good" : "warn",
        href: pageOf(slices, namespace, slice.metadata.name),
      });
      for (const p of shown) if (endpoints.some((e) => e.targetRef?.uid === p.metadata.uid)) edges.push([p.metadata.uid, slice.metadata.uid]);
      edges.push([slice.metadata.uid, s.metadata.uid]);
    }
  }
  const serviceBoxes = selected.map((s): Box => ({ id: s.metadata.uid, kind: "Service", name: s.metadata.name, state: s.spec.type, tone: "", href: pageOf(services, namespace, s.metadata.name) }));
  const columns = [
    [top], setBoxes, shown.map(podBox), sliceBoxes, serviceBoxes,
  ].filter((c) => c.length > 0);
  return { columns, edges, hidden: own.length - shown.length };
}

const width = 190, height = 44, gapX = 56, gapY = 12;

/** short returns a name that fits into a box. The full name is in its title. */
function short(name: string): string {
  return name.length > 25 ? name.slice(0, 10) + "…" + name.slice(-13) : name;
}

/** WorkloadChain shows which objects make a workload available. labels is the selector of its pods. */
export function WorkloadChain({ resource, object, labels }: { resource: Resource; object: any; labels: string }) {
  const ns = object.metadata.namespace;
  const setList = useWatch<any>(resource.kind === "Deployment" ? { path: collectionPath(sets, ns), view: "object", labels } : undefined);
  const podList = useWatch<any>({ path: collectionPath(podType, ns), view: "object", labels });
  const serviceList = useWatch<any>({ path: collectionPath(services, ns), view: "object" });
  const sliceList = useWatch<any>({ path: collectionPath(slices, ns), view: "object" });
  const chain = useMemo(
    () => build(resource, object, setList.list, podList.list, serviceList.list, sliceList.list),
    [object, setList.version, podList.version, serviceList.version, sliceList.version],
  );
  const rows = Math.max(...chain.columns.map((c) => c.length));
  const at = new Map<string, { x: number; y: number }>();
  chain.columns.forEach((c, i) => {
    const first = 2 + ((rows - c.length) * (height + gapY)) / 2;
    c.forEach((b, j) => at.set(b.id, { x: 2 + i * (width + gapX), y: first + j * (height + gapY) }));
  });
  const names = new Map(chain.columns.flatMap((c) => c.map((b) => [b.id, `${b.kind} ${b.name}`] as const)));
  const denied = [setList, podList, serviceList, sliceList].some((w) => w.error?.code === 403);
  const lines = chain.edges.filter(([a, b]) => at.has(a) && at.has(b));
  return (
    <section class="chain" aria-labelledby="chain">
      <h2 id="chain">Chain</h2>
      <div class="scroll" tabIndex={0} role="group" aria-label="Diagram">
        <svg width={chain.columns.length * (width + gapX) - gapX + 4} height={4 + rows * (height + gapY)} role="group" aria-labelledby="chain">
          {lines.map(([a, b]) => {
            const from = at.get(a)!, to = at.get(b)!;
            const x1 = from.x + width, y1 = from.y + height / 2, y2 = to.y + height / 2, middle = (x1 + to.x) / 2;
            return <path key={a + b} aria-hidden="true" class="edge" d={`M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${to.x} ${y2}`} />;
          })}
          {chain.columns.flatMap((c) => c.map((b) => {
            const { x, y } = at.get(b.id)!;
            return (
              <a key={b.id} href={b.href}>
                {short(b.name) !== b.name && <title>{b.name}</title>}
                <rect class={"box " + b.tone} x={x} y={y} width={width} height={height} rx={6} />
                <text x={x + 10} y={y + 18}>{short(b.name)}</text>
                <text class="state" x={x + 10} y={y + 35}>{`${b.kind}, ${b.state}`}</text>
              </a>
            );
          }))}
        </svg>
      </div>
      <details>
        <summary class="small">As text</summary>
        <ul>{lines.map(([a, b]) => <li key={a + b}>{names.get(a)} → {names.get(b)}</li>)}</ul>
      </details>
      {chain.hidden > 0 && <p class="muted">{plural(chain.hidden, "pod")} more: see the list of pods.</p>}
      {denied && <p class="muted">The diagram is incomplete, because your user may not read all objects.</p>}
    </section>
  );
}
