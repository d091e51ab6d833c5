// The storage of a cluster: which pods use a claim, its volume and class, and its problem.
import { quantity } from "./format";

/** Objects are the API objects of the storage page. */
export interface Objects {
  claims: any[];
  volumes: any[];
  classes: any[];
  pods: any[];
  snapshots: any[];
  events: any[];
}

/** Claim is a PersistentVolumeClaim with what belongs to it. */
export interface Claim {
  id: string;
  namespace: string;
  name: string;
  status: string;
  volume: string;
  /** className is the name of the class, and class the object if it exists. */
  className: string;
  class?: any;
  /** pods are the names of the pods that use the claim, and have not finished. */
  pods: string[];
  snapshots: any[];
  /** capacity is in bytes. It is the requested one until the claim is bound. */
  capacity: number;
  /** problem says why the claim cannot be used. It is empty if it can. */
  problem: string;
}

const defaultClass = "storageclass.kubernetes.io/is-default-class";

/** isDefault reports whether claims without a class get this one. */
export function isDefault(one: any): boolean {
  return one.metadata.annotations?.[defaultClass] === "true";
}

/** usedClaims returns the names of the claims that a pod uses. */
function usedClaims(pod: any): string[] {
  return (pod.spec?.volumes ?? []).flatMap((v: any) =>
    v.persistentVolumeClaim ? [v.persistentVolumeClaim.claimName] : v.ephemeral ? [`${pod.metadata.name}-${v.name}`] : []);
}

/** problemOf returns why a claim cannot be used. event is the message of the last event about the claim. */
function problemOf(claim: any, className: string, found: any, users: string[], event: string): string {
  const phase = claim.status?.phase ?? "Pending";
  if (claim.metadata.deletionTimestamp) return users.length > 0 ? "Terminating because pods still use it. Delete the pods." : "Terminating.";
  if (phase === "Lost") return `Lost because the volume ${claim.spec.volumeName} was deleted. Restore the volume, or delete the claim.`;
  const resize = claim.status?.conditions?.find((c: any) => c.type === "FileSystemResizePending" && c.status === "True");
  if (phase === "Bound") return resize ? "The file system grows when a pod uses the claim again." : "";
  if (claim.spec.volumeName) return `Pending because the volume ${claim.spec.volumeName} is missing or belongs to another claim.`;
  if (className && !found) {
    return `Pending because the StorageClass ${className} does not exist. Create it, or create the claim again with another class.`;
  }
  if (found?.volumeBindingMode === "WaitForFirstConsumer" && users.length === 0) return "Pending because no pod uses it: its class creates a volume for the first pod.";
  if (event) return `Pending: ${event}`;
  if (!className) return "Pending because it has no class, and no volume without a class matches it. Create such a volume, or a default StorageClass.";
  return "Pending because the provisioner has not created a volume yet.";
}

/** claimsOf returns all claims: those with problems first, then by namespace and name. */
export function claimsOf(o: Objects): Claim[] {
  const users = new Map<string, string[]>();
  for (const pod of o.pods) {
    if (pod.status?.phase === "Succeeded" || pod.status?.phase === "Failed") continue;
    for (const claim of usedClaims(pod)) {
      const key = `${pod.metadata.namespace}/${claim}`;
      users.set(key, [...(users.get(key) ?? []), pod.metadata.name]);
    }
  }
  const messages = new Map<string, { time: string; message: string }>();
  for (const e of o.events) {
    const key = e.involvedObject?.uid ?? "";
    const time = e.lastTimestamp ?? e.eventTime ?? e.metadata.creationTimestamp ?? "";
    if (time >= (messages.get(key)?.time ?? "")) messages.set(key, { time, message: e.message ?? "" });
  }
  const classes = new Map(o.classes.map((c) => [c.metadata.name, c]));
  return o.claims
    .map((c): Claim => {
      const { uid, namespace, name } = c.metadata;
      const className = c.spec.storageClassName ?? "";
      const pods = (users.get(`${namespace}/${name}`) ?? []).sort();
      return {
        id: uid, namespace, name, className, pods,
        class: classes.get(className),
        status: c.metadata.deletionTimestamp ? "Terminating" : c.status?.phase ?? "Pending",
        volume: c.spec.volumeName ?? "",
        snapshots: o.snapshots.filter((s) => s.metadata.namespace === namespace && s.spec?.source?.persistentVolumeClaimName === name),
        capacity: quantity(c.status?.capacity?.storage ?? c.spec.resources?.requests?.storage),
        problem: problemOf(c, className, classes.get(className), pods, messages.get(uid)?.message ?? ""),
      };
    })
    .sort((a, b) => Number(!a.problem) - Number(!b.problem) || a.namespace.localeCompare(b.namespace) || a.name.localeCompare(b.name));
}

/** volumeProblem returns why a PersistentVolume cannot be used by a new claim, or an empty string. */
export function volumeProblem(volume: any): string {
  switch (volume.status?.phase) {
    case "Released":
      return "Its claim was deleted, and its reclaim policy keeps the data. Copy what you need, then delete the volume.";
    case "Failed":
      return `Reclaiming it failed: ${volume.status.message ?? "see the events of the volume"}.`;
    default:
      return "";
  }
}

/** usage returns the used bytes of claims, by namespace/name, from the summary of a kubelet. */
export function usage(summary: any): [string, number][] {
  return (summary.pods ?? []).flatMap((p: any) =>
    (p.volume ?? []).filter((v: any) => v.pvcRef && v.usedBytes !== undefined).map((v: any) => [`${v.pvcRef.namespace}/${v.pvcRef.name}`, v.usedBytes]));
}
