// The connections of a pod that NetworkPolicies allow, as a diagram.
import { get, query } from "./api";
import { pageOf, type TypeRef } from "./discovery";
import { plural } from "./format";
import { Loading, Problem, useLoad } from "./ui";

const policyType: TypeRef = { group: "networking.k8s.io", version: "v1", plural: "networkpolicies" };

interface Rule {
  policy: string;
  peer: string;
  ports: string[];
  pods: string[];
}

interface Direction {
  policies: string[];
  rules: Rule[];
}

interface Allowed {
  ingress: Direction;
  egress: Direction;
}

const width = 270;
const height = 50;
const gapX = 90;
const gapY = 14;

/** short shortens a text in the middle, so that it fits into a box. */
function short(text: string): string {
  return text.length > 38 ? text.slice(0, 20) + "…" + text.slice(-17) : text;
}

interface Box {
  title: string;
  detail: string;
  tone: string;
}

/** boxes returns the boxes of the peers of one direction. */
function boxes(d: Direction): Box[] {
  if (d.policies.length === 0) return [{ title: "any address", detail: "all ports: no policy applies", tone: "good" }];
  if (d.rules.length === 0) return [{ title: "nothing", detail: "a policy without rules applies", tone: "bad" }];
  return d.rules.map((r) => ({ title: r.peer, detail: `${r.ports.join(", ") || "all ports"}${r.pods.length ? `, ${plural(r.pods.length, "pod")}` : ""}`, tone: r.peer === "any address" ? "good" : "" }));
}

/** version is different when policies or pods have changed. */
export function Connections({ namespace, name, version }: { namespace: string; name: string; version: string }) {
  const { value, error, reload } = useLoad(`${namespace}/${name} ${version}`, () => get<Allowed>("/connections" + query({ namespace, name })));
  if (error) return <Problem error={error} onRetry={reload} />;
  if (!value) return <Loading rows={3} />;
  const from = boxes(value.ingress), to = boxes(value.egress);
  const rows = Math.max(from.length, to.length);
  const top = (count: number, i: number) => 2 + ((rows - count) * (height + gapY)) / 2 + i * (height + gapY);
  const middle = 2 + width + gapX;
  const draw = (b: Box, x: number, y: number) => (
    <g key={`${x} ${y}`}>
      <title>{`${b.title}: ${b.detail}`}</title>
      <rect class={"box " + b.tone} x={x} y={y} width={width} height={height} rx={6} />
      <text x={x + 10} y={y + 20}>{short(b.title)}</text>
      <text class="state" x={x + 10} y={y + 38}>{short(b.detail)}</text>
    </g>
  );
  const line = (x: number, y1: number, y2: number) => <path key={`${x} ${y1} ${y2}`} class="edge" d={`M${x} ${y1}C${x + gapX / 2} ${y1} ${x + gapX / 2} ${y2} ${x + gapX} ${y2}`} />;
  const center = top(1, 0) + height / 2;
  return (
    <div class="chain connections">
      <div class="scroll" tabIndex={0} role="group" aria-label="Diagram of allowed connections">
        <svg aria-hidden="true" width={3 * width + 2 * gapX + 4} height={rows * (height + gapY) + 4}>
          {from.map((b, i) => b.tone !== "bad" && line(2 + width, top(from.length, i) + height / 2, center))}
          {to.map((b, i) => b.tone !== "bad" && line(middle + width, center, top(to.length, i) + height / 2))}
          {from.map((b, i) => draw(b, 2, top(from.length, i)))}
          {draw({ title: name, detail: `Pod in namespace ${namespace}`, tone: "" }, middle, top(1, 0))}
          {to.map((b, i) => draw(b, middle + width + gapX, top(to.length, i)))}
        </svg>
      </div>
      <Text heading="May connect to it" d={value.ingress} namespace={namespace} />
      <Text heading="It may connect to" d={value.egress} namespace={namespace} />
      <p class="muted">From the NetworkPolicy objects. The network add-on must enforce them.</p>
    </div>
  );
}

/** Text has the same content as one side of the diagram. */
function Text({ heading, d, namespace }: { heading: string; d: Direction; namespace: string }) {
  return (
    <>
      <h3>{heading}</h3>
      <ul>
        {d.policies.length === 0 ? <li>any address, all ports, because no policy applies</li> : d.rules.length === 0 && <li>nothing</li>}
        {d.rules.map((r, i) => (
          <li key={i}>
            {r.peer}, {r.ports.join(", ") || "all ports"} (<a href={pageOf(policyType, namespace, r.policy)}>{r.policy}</a>){r.pods.length > 0 && `: ${r.pods.slice(0, 20).join(", ")}`}{r.pods.length > 20 && ` and ${r.pods.length - 20} more`}
          </li>
        ))}
      </ul>
    </>
  );
}
