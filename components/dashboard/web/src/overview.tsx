// The overview: nodes with their pods, capacity, and problems.
import { Component } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "./api";
import { nodes as nodeType, pageOf, pagePath, pods as podType, collectionPath, type Resource } from "./discovery";
import { bytes, cores, plural, quantity } from "./format";
import { Metrics } from "./metrics";
import { navigate } from "./router";
import { useWatch } from "./stream";
import { Age, Loading, Meter, Problem, useLoad } from "./ui";

export interface PodTile {
  name: string;
  ns: string;
  node?: string;
  state: string;
  reason?: string;
  message?: string;
  restarts?: number;
  cpu?: number;
  mem?: number;
  since?: string;
}

interface NodeTile {
  name: string;
  ready: boolean;
  cordoned?: boolean;
  roles?: string[];
  version?: string;
  cpu: number;
  mem: number;
  pods: number;
  problems?: { type: string; reason?: string; message?: string }[];
}

/** states are the states of pods in the order in which their tiles are shown, with their names. */
const states: [string, string][] = [
  ["failed", "failing"], ["pending", "pending"], ["unready", "not ready"], ["terminating", "terminating"], ["running", "running"], ["done", "completed"],
];

const order = new Map(states.map(([id], i) => [id, i]));

interface NodeView extends NodeTile {
  tiles: PodTile[];
  cpuUsed: number;
  memUsed: number;
}

/** maxCharted is the number of nodes up to which the history of all is loaded: with an hour, each node has some 5 KB. */
const maxCharted = 200;

export function Overview({ namespace, all }: { namespace: string; all?: Resource[] }) {
  const nodes = useWatch<NodeTile>({ path: collectionPath(nodeType), view: "nodes" });
  const pods = useWatch<PodTile>({ path: collectionPath(podType, namespace), view: "pods" });
  const usage = useLoad("usage", () => get("/apis/metrics.k8s.io/v1beta1/nodes").catch(() => undefined));

  const views = useMemo(() => group(nodes.list, pods.list), [nodes.list, pods.list]);
  const problems = useMemo(() => findProblems(nodes.list, pods.list), [nodes.list, pods.list]);
  const counts = useMemo(() => {
    const c = new Map<string, number>();
    for (const p of pods.list) c.set(p.state, (c.get(p.state) ?? 0) + 1);
    return c;
  }, [pods.list]);
  const waiting = useMemo(() => pods.list.filter((p) => !p.node), [pods.list]);
  const total = useMemo(() => sum(views), [views]);
  const used = (usage.value?.items ?? []).reduce(
    (t: { cpu: number; mem: number }, i: any) => ({ cpu: t.cpu + quantity(i.usage.cpu) * 1000, mem: t.mem + quantity(i.usage.memory) }),
    { cpu: 0, mem: 0 },
  );

  return (
    <section class="page">
      <header class="page-head"><h1>Overview</h1></header>
      {nodes.error && <Problem error={nodes.error} />}
      {pods.error && <Problem error={pods.error} />}
      <div class="cards">
        <div class="card">
          <h2><a href={pagePath(nodeType)}>Nodes</a></h2>
          {nodes.synced ? (
            <p class="figure">
              {nodes.list.filter((n) => n.ready).length} <small>of {nodes.list.length} ready</small>
            </p>
          ) : <Loading rows={1} />}
        </div>
        <div class="card">
          <h2><a href={pagePath(podType)}>Pods</a></h2>
          {pods.synced ? (
            <p class="figure">
              {pods.list.length}{" "}
              <small>{states.filter(([id]) => counts.get(id)).map(([id, name]) => `${counts.get(id)} ${name}`).join(", ")}</small>
            </p>
          ) : <Loading rows={1} />}
        </div>
        <div class="card">
          <h2>CPU</h2>
          <Meter label="Requested" used={total.cpuUsed} total={total.cpu} text={`${cores(total.cpuUsed)} of ${cores(total.cpu)} cores`} />
          {usage.value && <Meter label="Used" used={used.cpu} total={total.cpu} text={`${cores(used.cpu)} cores`} />}
        </div>
        <div class="card">
          <h2>Memory</h2>
          <Meter label="Requested" used={total.memUsed} total={total.mem} text={`${bytes(total.memUsed)} of ${bytes(total.mem)}`} />
          {usage.value && <Meter label="Used" used={used.mem} total={total.mem} text={bytes(used.mem)} />}
        </div>
      </div>

      <section aria-labelledby="problems">
        <h2 id="problems">Problems</h2>
        {!pods.synced || !nodes.synced ? <Loading rows={2} /> : problems.length === 0 ? (
          <p class="notice good">There are no problems: all nodes are ready, and all pods run.</p>
        ) : (
          <ul class="problems">
            {problems.slice(0, 100).map((p) => (
              <li key={p.key}>
                <a href={p.href}>{p.subject}</a> <span class={"status " + p.tone}>{p.reason}</span> <span class="muted"><Age time={p.since} /></span>
                {p.message && <p>{p.message}</p>}
                <p class="muted">{p.remedy}</p>
              </li>
            ))}
            {problems.length > 100 && <li class="muted">And {problems.length - 100} more: <a href={pagePath(podType) + "?sort=Status"}>all pods</a></li>}
          </ul>
        )}
      </section>

      {all && nodes.synced && nodes.list.length <= maxCharted && <Metrics all={all} kind="nodes" />}

      <section aria-labelledby="nodes">
        <div class="section-head">
          <h2 id="nodes">Pods by node</h2>
          <ul class="legend">{states.map(([id, name]) => <li key={id}><span class={"swatch " + id} aria-hidden="true" />{name}</li>)}</ul>
        </div>
        {waiting.length > 0 && (
          <p><a href={pagePath(podType) + "?fields=" + encodeURIComponent("spec.nodeName=")}>{plural(waiting.length, "pod")} without a node</a></p>
        )}
        {nodes.synced ? <NodeGrid nodes={views} /> : <Loading />}
      </section>
    </section>
  );
}

function sum(views: NodeView[]) {
  const t = { cpu: 0, mem: 0, cpuUsed: 0, memUsed: 0 };
  for (const v of views) {
    t.cpu += v.cpu;
    t.mem += v.mem;
    t.cpuUsed += v.cpuUsed;
    t.memUsed += v.memUsed;
  }
  return t;
}

/** group returns the nodes with their pods: those with problems first. */
function group(nodes: NodeTile[], pods: PodTile[]): NodeView[] {
  const byName = new Map<string, NodeView>();
  for (const n of nodes) byName.set(n.name, { ...n, tiles: [], cpuUsed: 0, memUsed: 0 });
  for (const p of pods) {
    const v = p.node ? byName.get(p.node) : undefined;
    if (!v) continue;
    v.tiles.push(p);
    if (p.state !== "done") {
      v.cpuUsed += p.cpu ?? 0;
      v.memUsed += p.mem ?? 0;
    }
  }
  const views = [...byName.values()];
  for (const v of views) {
    v.tiles.sort((a, b) => order.get(a.state)! - order.get(b.state)! || (a.ns + a.name < b.ns + b.name ? -1 : 1));
  }
  return views.sort((a, b) => Number(a.ready) - Number(b.ready) || (a.name < b.name ? -1 : 1));
}

const cardWidth = 236;
const size = 11; // of a tile with its margin, in pixels
const perRow = Math.floor((cardWidth - 24) / size);

/** NodeGrid shows a card for each node. It renders only those that are visible. */
function NodeGrid({ nodes }: { nodes: NodeView[] }) {
  const root = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(1000);
  const [range, setRange] = useState({ first: 0, last: 8 });
  const perLine = Math.max(1, Math.floor((width + 12) / (cardWidth + 12)));
  // All cards have the height of the fullest one, so that the position of each is known.
  const most = useMemo(() => nodes.reduce((m, n) => Math.max(m, n.tiles.length), 1), [nodes]);
  const height = 68 + Math.ceil(most / perRow) * size + 12;
  const lines = Math.ceil(nodes.length / perLine);
  useLayoutEffect(() => {
    const scroller = root.current!.closest("main")!;
    // Scrolling renders only when other lines become visible.
    const measure = () => {
      const top = scroller.scrollTop - root.current!.offsetTop;
      const first = Math.max(0, Math.floor(top / height) - 2);
      const last = Math.ceil((top + scroller.clientHeight) / height) + 2;
      setRange((r) => (r.first === first && r.last === last ? r : { first, last }));
    };
    const resize = () => {
      setWidth(root.current!.clientWidth);
      measure();
    };
    resize();
    const observer = new ResizeObserver(resize);
    observer.observe(root.current!.closest(".page")!);
    observer.observe(scroller);
    scroller.addEventListener("scroll", measure, { passive: true });
    return () => {
      observer.disconnect();
      scroller.removeEventListener("scroll", measure);
    };
  }, [height]);
  const first = Math.min(range.first, lines);
  const last = Math.max(first, Math.min(range.last, lines));
  return (
    <div class="nodes" ref={root} style={{ height: lines * height + "px" }}>
      <ul style={{ top: first * height + "px" }}>
        {nodes.slice(first * perLine, last * perLine).map((n) => <PureCard key={n.name} node={n} height={height - 12} />)}
      </ul>
    </div>
  );
}

/** PureCard renders the card of a node only when the node changes. */
class PureCard extends Component<{ node: NodeView; height: number }> {
  override shouldComponentUpdate(next: { node: NodeView; height: number }): boolean {
    return next.node !== this.props.node || next.height !== this.props.height;
  }

  render() {
    return <NodeCard {...this.props} />;
  }
}

function NodeCard({ node, height }: { node: NodeView; height: number }) {
  const paths = useMemo(() => {
    const d = new Map<string, string>();
    node.tiles.forEach((p, i) => {
      const x = (i % perRow) * size, y = Math.floor(i / perRow) * size;
      // Failing pods have another shape, so that the colour is not the only difference.
      const shape = p.state === "failed" ? `M${x + 4.5} ${y}l4.5 9h-9z` : `M${x} ${y}h9v9h-9z`;
      d.set(p.state, (d.get(p.state) ?? "") + shape);
    });
    return [...d];
  }, [node.tiles]);
  const [hover, setHover] = useState<PodTile>();
  const at = (e: MouseEvent) => {
    const box = (e.currentTarget as Element).getBoundingClientRect();
    const column = Math.floor((e.clientX - box.left) / size);
    return column < perRow ? node.tiles[Math.floor((e.clientY - box.top) / size) * perRow + column] : undefined;
  };
  const counts = states.map(([id, name]) => [node.tiles.filter((p) => p.state === id).length, name] as const).filter(([n]) => n > 0);
  const label = counts.map(([n, name]) => `${n} ${name}`).join(", ") || "no pods";
  const problem = node.ready ? (node.cordoned ? "cordoned" : node.problems?.[0]?.type ?? "") : "not ready";
  return (
    <li class={node.ready ? "node" : "node down"} style={{ width: cardWidth + "px", height: height + "px" }}>
      <div class="node-name">
        <a href={pageOf(nodeType, "", node.name)}>{node.name}</a>
        {problem && <span class={"status " + (node.ready ? "warn" : "bad")}>{problem}</span>}
      </div>
      <div class="muted small" aria-live="off">
        {hover ? `${hover.ns}/${hover.name}: ${hover.reason || hover.state}` : `CPU ${percent(node.cpuUsed, node.cpu)}, memory ${percent(node.memUsed, node.mem)}, ${node.tiles.length} of ${node.pods} pods`}
      </div>
      <svg
        role="img" aria-label={"Pods: " + label} width={perRow * size} height={Math.max(1, Math.ceil(node.tiles.length / perRow)) * size}
        onMouseMove={(e) => setHover(at(e))} onMouseLeave={() => setHover(undefined)}
        onClick={(e) => { const p = at(e); if (p) navigate(pageOf(podType, p.ns, p.name)); }}
      >
        {paths.map(([state, d]) => <path key={state} class={"tile " + state} d={d} />)}
      </svg>
    </li>
  );
}

function percent(used: number, total: number): string {
  return total > 0 ? Math.round((100 * used) / total) + "%" : "–";
}

interface Found {
  key: string;
  subject: string;
  href: string;
  reason: string;
  tone: "bad" | "warn";
  message?: string;
  remedy: string;
  since?: string;
}

const remedies: Record<string, string> = {
  CrashLoopBackOff: "The container exits repeatedly. Read its previous logs (tab Logs, option Previous), and check its command and configuration.",
  ImagePullBackOff: "The image cannot be pulled. Check its name and tag, and the pull secret.",
  ErrImagePull: "The image cannot be pulled. Check its name and tag, and the pull secret.",
  ErrImageNeverPull: "The image is not on the node, and the pull policy is Never. Import the image, or change the policy.",
  InvalidImageName: "Correct the name of the image.",
  CreateContainerConfigError: "A ConfigMap, a Secret or a key that the container refers to does not exist. Create it.",
  CreateContainerError: "The runtime cannot create the container. Read the events of the pod.",
  RunContainerError: "The runtime cannot start the container. Check that its command exists in the image.",
  Unschedulable: "No node fits. Free resources, add a node, or change the requests, node selector, affinity or tolerations of the pod.",
  OOMKilled: "The container needs more memory than its limit. Raise the limit.",
  Evicted: "The node was under pressure. Set requests that match the usage, or free resources of the node.",
  NotReady: "The readiness probe fails. Read the events and logs of the pod.",
  Error: "The container exited with an error. Read its logs.",
};

function findProblems(nodes: NodeTile[], pods: PodTile[]): Found[] {
  const found: Found[] = [];
  for (const n of nodes) {
    for (const c of n.problems ?? []) {
      const down = c.type === "Ready";
      found.push({
        key: n.name + c.type, subject: "Node " + n.name, href: pageOf(nodeType, "", n.name), reason: down ? "NotReady" : c.type, tone: "bad", message: c.message,
        remedy: down
          ? "Check that the node is running and reaches the API server, and read the log of its kubelet."
          : "Free the resource on the node: delete unused images, files and pods.",
      });
    }
  }
  const now = Date.now();
  for (const p of pods) {
    const bad = p.state === "failed";
    const slow = (p.state === "unready" || p.state === "pending") && now - Date.parse(p.since ?? "") > 30_000;
    if (!bad && !slow && p.reason !== "Unschedulable") continue;
    const reason = p.reason || (bad ? "Failed" : p.state === "pending" ? "Pending" : "NotReady");
    found.push({
      key: p.ns + "/" + p.name, subject: `Pod ${p.ns}/${p.name}`, href: pageOf(podType, p.ns, p.name), reason, tone: bad ? "bad" : "warn",
      message: p.message, remedy: remedies[reason] ?? "Read the events of the pod.", since: p.since,
    });
  }
  return found.sort((a, b) => (a.tone < b.tone ? -1 : a.tone > b.tone ? 1 : a.subject < b.subject ? -1 : 1));
}
