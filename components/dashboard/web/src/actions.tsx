// Actions on an object.
import { useState } from "preact/hooks";
import { get, patch, send } from "./api";
import { collectionPath, objectPath, pagePath, pods as podType, type Resource } from "./discovery";
import { plural } from "./format";
import { navigate } from "./router";
import { attempt, Dialog, Loading, Problem, useLoad } from "./ui";

type Open = "" | "delete" | "scale" | "drain" | "rollback" | "debug";

interface Props {
  resource: Resource;
  object: any;
  path: string;
}

/** Actions shows the buttons of the actions that the type of an object has. */
export function Actions({ resource, object, path }: Props) {
  const [open, setOpen] = useState<Open>("");
  const kind = resource.kind;
  const close = () => setOpen("");
  const workload = resource.group === "apps" && ["Deployment", "StatefulSet", "DaemonSet"].includes(kind);
  const isNode = resource.group === "" && kind === "Node";
  const cordoned = !!object.spec?.unschedulable;
  const suspended = !!object.spec?.suspend;
  const name = object.metadata.name;
  return (
    <div class="actions">
      {resource.subresources.includes("scale") && <button onClick={() => setOpen("scale")}>Scale…</button>}
      {workload && (
        <button onClick={() => attempt(() => patch(path, { spec: { template: { metadata: { annotations: { "kubectl.kubernetes.io/restartedAt": new Date().toISOString() } } } } }, "application/strategic-merge-patch+json"), `Restarting ${name}`)}>
          Restart
        </button>
      )}
      {resource.group === "apps" && kind === "Deployment" && <button onClick={() => setOpen("rollback")}>Roll back…</button>}
      {resource.group === "batch" && kind === "CronJob" && (
        <>
          <button onClick={() => attempt(() => patch(path, { spec: { suspend: !suspended } }), suspended ? `Resumed ${name}` : `Suspended ${name}`)}>{suspended ? "Resume" : "Suspend"}</button>
          <button onClick={() => attempt(() => runNow(object), `Created a Job of ${name}`)}>Run now</button>
        </>
      )}
      {isNode && (
        <>
          <button onClick={() => attempt(() => patch(path, { spec: { unschedulable: cordoned ? null : true } }), cordoned ? `${name} accepts pods` : `${name} accepts no new pods`)}>{cordoned ? "Uncordon" : "Cordon"}</button>
          <button onClick={() => setOpen("drain")}>Drain…</button>
        </>
      )}
      {resource.group === "" && kind === "Pod" && <button onClick={() => setOpen("debug")}>Debug…</button>}
      {resource.verbs.includes("delete") && <button class="danger" onClick={() => setOpen("delete")}>Delete…</button>}
      {open === "scale" && <Scale object={object} path={path} onClose={close} />}
      {open === "delete" && <Delete resource={resource} object={object} path={path} onClose={close} />}
      {open === "drain" && <Drain node={name} path={path} onClose={close} />}
      {open === "rollback" && <Rollback object={object} path={path} onClose={close} />}
      {open === "debug" && <Debug object={object} path={path} onClose={close} />}
    </div>
  );
}

function runNow(cron: any): Promise<unknown> {
  const ns = cron.metadata.namespace;
  const template = cron.spec.jobTemplate;
  return send("POST", `/apis/batch/v1/namespaces/${ns}/jobs`, {
    apiVersion: "batch/v1",
    kind: "Job",
    metadata: {
      generateName: cron.metadata.name.slice(0, 50) + "-",
      labels: template.metadata?.labels,
      annotations: { ...template.metadata?.annotations, "cronjob.kubernetes.io/instantiate": "manual" },
      ownerReferences: [{ apiVersion: "batch/v1", kind: "CronJob", name: cron.metadata.name, uid: cron.metadata.uid, controller: true, blockOwnerDeletion: false }],
    },
    spec: template.spec,
  });
}

function Scale({ object, path, onClose }: { object: any; path: string; onClose: () => void }) {
  const now = object.spec?.replicas ?? 1;
  const [n, setN] = useState(String(now));
  const submit = async (e: Event) => {
    e.preventDefault();
    if (await attempt(() => patch(path + "/scale", { spec: { replicas: Number(n) } }), `Scaled ${object.metadata.name} to ${n}`)) onClose();
  };
  return (
    <Dialog title={`Scale ${object.metadata.name}`} onClose={onClose}>
      <form onSubmit={submit}>
        <label>Replicas<input type="number" min="0" max="100000" required autofocus value={n} onInput={(e) => setN(e.currentTarget.value)} /></label>
        <p class="muted">Now: {now}. {object.status?.readyReplicas ?? 0} are ready.</p>
        <footer><button type="button" onClick={onClose}>Cancel</button><button class="primary">Scale</button></footer>
      </form>
    </Dialog>
  );
}

/** owned are the types that may be owned by other objects, for the preview of a deletion. */
const owned = [
  ["apps", "v1", "replicasets"], ["apps", "v1", "controllerrevisions"], ["batch", "v1", "jobs"], ["", "v1", "pods"],
  ["discovery.k8s.io", "v1", "endpointslices"], ["", "v1", "persistentvolumeclaims"],
].map(([group, version, plural]) => ({ group, version, plural }));

interface Dependent {
  type: string;
  name: string;
}

/** dependents returns the objects of common types that the garbage collector deletes together with an object. */
async function dependents(object: any): Promise<Dependent[]> {
  const ns = object.metadata.namespace;
  if (!ns) return [];
  const lists = await Promise.all(
    owned.map((t) =>
      get(collectionPath(t, ns), "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json").then(
        (list) => (list.items ?? []).map((item: any) => ({ type: t.plural, meta: item.metadata })),
        () => [], // not permitted
      ),
    ),
  );
  const all = lists.flat();
  const uids = new Set([object.metadata.uid]);
  const found: Dependent[] = [];
  for (let size = 0; size < uids.size; ) {
    size = uids.size;
    for (const one of all) {
      if (uids.has(one.meta.uid) || !one.meta.ownerReferences?.some((o: any) => uids.has(o.uid))) continue;
      uids.add(one.meta.uid);
      found.push({ type: one.type, name: one.meta.name });
    }
  }
  return found;
}

function Delete({ resource, object, path, onClose }: Props & { onClose: () => void }) {
  const preview = useLoad("dependents", () => dependents(object));
  const inNamespace = resource.kind === "Namespace" && resource.group === "";
  const [orphan, setOrphan] = useState(false);
  const [typed, setTyped] = useState("");
  const run = async () => {
    const body = { propagationPolicy: orphan ? "Orphan" : "Background", preconditions: { uid: object.metadata.uid } };
    if (await attempt(() => send("DELETE", path, body), `Deleting ${object.metadata.name}`)) {
      onClose();
      navigate(pagePath(resource));
    }
  };
  return (
    <Dialog title={`Delete ${resource.kind} ${object.metadata.name}?`} onClose={onClose}>
      {inNamespace && <p class="notice bad">All objects in the namespace are deleted too.</p>}
      {!preview.value && !preview.error ? <Loading rows={2} /> : preview.value?.length ? (
        <>
          <p>{orphan ? "These dependents are kept:" : `${plural(preview.value.length, "dependent")} of common types ${preview.value.length === 1 ? "is" : "are"} deleted too:`}</p>
          <ul class="names">{preview.value.map((d) => <li key={d.type + d.name}><span class="muted">{d.type}</span> {d.name}</li>)}</ul>
          <label class="check"><input type="checkbox" checked={orphan} onChange={(e) => setOrphan(e.currentTarget.checked)} /> Keep the dependents</label>
        </>
      ) : <p>No object of a common type depends on it.</p>}
      {inNamespace && <label>Enter the name of the namespace to confirm<input value={typed} onInput={(e) => setTyped(e.currentTarget.value)} /></label>}
      <footer>
        <button onClick={onClose} autofocus>Cancel</button>
        <button class="danger" disabled={inNamespace && typed !== object.metadata.name} onClick={run}>Delete</button>
      </footer>
    </Dialog>
  );
}

/** Drain cordons a node and evicts its pods. Evictions that a disruption budget blocks are retried. */
function Drain({ node, path, onClose }: { node: string; path: string; onClose: () => void }) {
  const list = useLoad("drain", () => get(collectionPath(podType) + "?fieldSelector=" + encodeURIComponent("spec.nodeName=" + node)));
  const [progress, setProgress] = useState<string[]>();
  const [running, setRunning] = useState(false);
  const controlled = (p: any) => p.metadata.ownerReferences?.find((o: any) => o.controller);
  const pods: any[] = (list.value?.items ?? []).filter(
    (p: any) => controlled(p)?.kind !== "DaemonSet" && !p.metadata.annotations?.["kubernetes.io/config.mirror"] && !["Succeeded", "Failed"].includes(p.status.phase),
  );
  const alone = pods.filter((p) => !controlled(p));
  const run = async () => {
    setRunning(true);
    const ok = await attempt(async () => {
      await patch(path, { spec: { unschedulable: true } });
      const waiting = new Map(pods.map((p) => [p.metadata.uid, p]));
      for (let round = 0; waiting.size > 0 && round < 60; round++) {
        const messages: string[] = [];
        for (const [uid, p] of waiting) {
          const at = objectPath(podType, p.metadata.namespace, p.metadata.name);
          const eviction = { apiVersion: "policy/v1", kind: "Eviction", metadata: { name: p.metadata.name, namespace: p.metadata.namespace } };
          try {
            await send("POST", at + "/eviction", eviction);
            waiting.delete(uid);
          } catch (err: any) {
            if (err.code === 404) waiting.delete(uid);
            else if (err.code === 429) messages.push(`${p.metadata.name}: ${err.message}`);
            else throw err;
          }
        }
        setProgress(messages);
        if (waiting.size > 0) await new Promise((done) => setTimeout(done, 5000));
      }
      if (waiting.size > 0) throw new Error(`${plural(waiting.size, "pod")} could not be evicted within 5 minutes: a disruption budget blocks them`);
    }, `Drained ${node}: its pods are terminating`);
    setRunning(false);
    if (ok) onClose();
  };
  return (
    <Dialog title={`Drain ${node}?`} onClose={onClose}>
      {list.error ? <Problem error={list.error} /> : !list.value ? <Loading rows={2} /> : (
        <>
          <p>The node accepts no new pods, and {plural(pods.length, "pod")} {pods.length === 1 ? "is" : "are"} evicted. Pods of DaemonSets and static pods stay.</p>
          {alone.length > 0 && <p class="notice bad">No controller creates these again: {alone.map((p) => p.metadata.name).join(", ")}</p>}
          <ul class="names">{pods.map((p) => <li key={p.metadata.uid}>{p.metadata.namespace}/{p.metadata.name}</li>)}</ul>
          {progress?.map((m) => <p class="muted" key={m}>{m}</p>)}
        </>
      )}
      <footer>
        <button onClick={onClose} autofocus>Cancel</button>
        <button class="danger" disabled={!list.value || running} onClick={run}>{running ? "Draining…" : "Drain"}</button>
      </footer>
    </Dialog>
  );
}

const revisionKey = "deployment.kubernetes.io/revision";

/** Rollback sets the pod template of a Deployment to that of an earlier revision. */
function Rollback({ object, path, onClose }: { object: any; path: string; onClose: () => void }) {
  const ns = object.metadata.namespace;
  const list = useLoad("revisions", () => get(`/apis/apps/v1/namespaces/${ns}/replicasets`));
  const current = object.metadata.annotations?.[revisionKey];
  const revisions: any[] = (list.value?.items ?? [])
    .filter((rs: any) => rs.metadata.ownerReferences?.some((o: any) => o.uid === object.metadata.uid) && rs.metadata.annotations?.[revisionKey] !== current)
    .sort((a: any, b: any) => Number(b.metadata.annotations?.[revisionKey]) - Number(a.metadata.annotations?.[revisionKey]));
  const run = async (rs: any) => {
    const template = structuredClone(rs.spec.template);
    delete template.metadata?.labels?.["pod-template-hash"];
    const change = [
      { op: "test", path: "/metadata/resourceVersion", value: object.metadata.resourceVersion },
      { op: "replace", path: "/spec/template", value: template },
    ];
    if (await attempt(() => patch(path, change, "application/json-patch+json"), `Rolling back to revision ${rs.metadata.annotations[revisionKey]}`)) onClose();
  };
  return (
    <Dialog title={`Roll back ${object.metadata.name}`} onClose={onClose}>
      {list.error ? <Problem error={list.error} /> : !list.value ? <Loading rows={3} /> : revisions.length === 0 ? <p>There is no earlier revision.</p> : (
        <ul class="names">
          {revisions.map((rs) => (
            <li key={rs.metadata.uid}>
              <button onClick={() => run(rs)}>Revision {rs.metadata.annotations[revisionKey]}</button>{" "}
              <span class="muted">{rs.spec.template.spec.containers.map((c: any) => c.image).join(", ")}</span>
            </li>
          ))}
        </ul>
      )}
      <footer><button onClick={onClose} autofocus>Cancel</button></footer>
    </Dialog>
  );
}

/** Debug adds an ephemeral container to a pod and opens its terminal. */
function Debug({ object, path, onClose }: { object: any; path: string; onClose: () => void }) {
  const containers: string[] = object.spec.containers.map((c: any) => c.name);
  const submit = async (e: Event) => {
    e.preventDefault();
    const form = new FormData(e.currentTarget as HTMLFormElement);
    const name = "debugger-" + Math.random().toString(36).slice(2, 7);
    const container = { name, image: form.get("image"), targetContainerName: form.get("target"), stdin: true, tty: true, terminationMessagePolicy: "File", imagePullPolicy: "IfNotPresent" };
    const body = { spec: { ephemeralContainers: [...(object.spec.ephemeralContainers ?? []), container] } };
    if (await attempt(() => patch(path + "/ephemeralcontainers", body, "application/strategic-merge-patch+json"), `Added container ${name}`)) {
      onClose();
      navigate(`${location.pathname}?tab=terminal&attach=${name}`);
    }
  };
  return (
    <Dialog title={`Debug ${object.metadata.name}`} onClose={onClose}>
      <form onSubmit={submit}>
        <p>A container with your tools is added to the pod. It shares the network and the processes of the target container, and stays until the pod is deleted.</p>
        <label>Image<input name="image" required autofocus placeholder="busybox" /></label>
        <label>Target container<select name="target">{containers.map((c) => <option key={c}>{c}</option>)}</select></label>
        <footer><button type="button" onClick={onClose}>Cancel</button><button class="primary">Add container</button></footer>
      </form>
    </Dialog>
  );
}
